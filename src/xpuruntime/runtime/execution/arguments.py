"""Checks of a program's inputs and outputs. Arrays are copied only if kernels cannot read them in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...types import DType, TensorSpec
from ..memory.buffer import DeviceBuffer, host_array

__all__ = ["Arguments", "dtype_of", "lies_on_a_device"]


class Arguments:
    """Checks and conversions for the inputs and outputs of one executor's program.

    who: subject of error messages. backend: the device's driver. converted: number of inputs that were copied into another form.
    """

    def __init__(self, who: str, backend: Any) -> None:
        self.who, self.backend = who, backend
        self.on_host: bool = backend.core_is_host
        self.converted = 0

    def arrays(self, inputs: Sequence[Any], specs: Sequence[TensorSpec]) -> tuple[NDArray[Any], ...]:
        """Return inputs of any kind as arrays that the core reads in place."""
        arrays = []
        for value, spec in zip(inputs, specs, strict=True):
            array = value.to_numpy() if isinstance(value, DeviceBuffer) else host_array(value)
            self.fit(TensorSpec(tuple(array.shape), dtype_of(array)), spec, f"input {spec.name!r}")
            arrays.append(np.require(array, spec.dtype.numpy, ["C", "A"]))
        return tuple(arrays)

    def empty(self, spec: TensorSpec, stream: int | None) -> DeviceBuffer:
        """Allocate an output buffer; with ``stream``, in the order of that stream."""
        if stream is None or spec.size_bytes is None:
            return DeviceBuffer.empty(spec, self.backend)
        return DeviceBuffer(self.backend.allocate_on(spec.size_bytes, stream), spec, self.backend)

    def buffer(self, value: Any, spec: TensorSpec, stream: int | None = None) -> DeviceBuffer:
        """Return a checked input as a buffer of this device, over the caller's memory if the device can use it."""
        description = f"input {spec.name!r}"
        if stream is not None and not isinstance(value, DeviceBuffer):
            value = self.backend.import_tensor(value, stream) or value
        self._at_hand(value, description)
        if isinstance(value, DeviceBuffer):
            self.fit(value.spec, spec, description)
            if value.pending is not None and value.pending != stream:
                value.settle(stream)
            return value
        array = host_array(value)
        self.fit(TensorSpec(tuple(array.shape), dtype_of(array)), spec, description)
        whole = spec.dtype.bits >= 8  # smaller types are packed in buffers
        if (
            self.on_host
            and whole
            and array.flags.c_contiguous
            and array.flags.aligned
            and array.dtype.isnative
        ):
            return self.wrapped(array, spec)
        self.converted += 1
        return DeviceBuffer.from_numpy(array.astype(spec.dtype.numpy, copy=False), self.backend, spec=spec)

    def result(self, buffer: DeviceBuffer, spec: TensorSpec) -> None:
        """Check an output buffer of the caller. Raises InputError."""
        description = f"output {spec.name!r}"
        self.fit(buffer.spec, spec, description)
        self._at_hand(buffer, description)

    def _at_hand(self, value: Any, description: str) -> None:
        """Raise InputError for a value in the memory of another device, whose address means nothing here."""
        if isinstance(value, DeviceBuffer):
            if self.backend.shares_memory(value.backend):
                return
            place = str(value.backend.device)
        elif lies_on_a_device(value):
            place = f"cuda:{value.__dlpack_device__()[1]}"
            if place == str(self.backend.device):
                return
        else:
            return
        do = f"Copy it to {self.backend.device}, or run on {place}."
        raise InputError(
            self.who, f"{description} must be on {self.backend.device}", got=f"a tensor on {place}", do=do
        )

    def wrapped(self, array: NDArray[Any], spec: TensorSpec) -> DeviceBuffer:
        """Return a buffer over the memory of a host array."""
        return DeviceBuffer(array.reshape(-1).view(np.uint8), spec, self.backend)

    def fit(self, actual: TensorSpec, expected: TensorSpec, description: str) -> None:
        """Raise InputError unless ``actual`` has the program's shape and dtype and is dense."""
        if actual.shape != expected.shape or actual.dtype is not expected.dtype or not actual.is_dense:
            raise InputError(
                self.who,
                f"{description} must be {expected}, dense",
                got=actual,
                do="Give a contiguous array of that type and shape.",
            )


def lies_on_a_device(value: Any) -> bool:
    """Return True for another library's tensor in device memory."""
    if isinstance(value, np.ndarray | DeviceBuffer) or not hasattr(value, "__dlpack_device__"):
        return False
    return int(value.__dlpack_device__()[0]) == 2  # kDLCUDA


def dtype_of(array: NDArray[Any]) -> DType:
    """Return the tensor dtype of an array. Raises InputError."""
    try:
        return DType.of(array.dtype)
    except ValueError as error:
        raise InputError(
            "array",
            "has a dtype that no tensor has",
            got=array.dtype,
            do="Convert it to a numeric dtype first.",
        ) from error
