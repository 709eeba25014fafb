"""Tensors of other libraries (DLPack) as inputs and outputs of a vendor engine, in the memory of a runtime backend and on the caller's stream.

The same functions serve the host's memory and a GPU's: nothing is copied if a tensor is already in the backend's memory.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from ..types import DType, TensorSpec, dim

if TYPE_CHECKING:
    from ..runtime.backends.base import RuntimeBackend
    from ..runtime.memory.buffer import DeviceBuffer

__all__ = ["ANY_RANK", "TensorIO", "admits"]

ANY_RANK = (dim("..."),)
"""The shape of a value of unknown rank."""


class TensorIO:
    """Imports the inputs of a run into a backend's memory, allocates its outputs there, and hands them to the inputs' library."""

    def __init__(self, who: str, inputs: Sequence[TensorSpec], backend: RuntimeBackend) -> None:
        self.who, self._inputs, self.backend = who, tuple(inputs), backend

    def stream(self) -> int:
        """Return the stream that the caller's library currently uses."""
        return self.backend.current_stream()

    def imported(self, tensors: Mapping[str, Any], stream: int) -> dict[str, DeviceBuffer]:
        """Return the inputs as buffers, ordered on the stream. A tensor outside the backend's memory is copied. Raises InputError."""
        names = {s.name for s in self._inputs}
        if tensors.keys() != names:
            raise InputError(
                self.who,
                f"takes the inputs {', '.join(sorted(names))}",
                got=", ".join(map(str, tensors)) or "none",
                do="Give one tensor for each of these names.",
            )
        return {s.name: self._buffer(s, tensors[s.name], stream) for s in self._inputs}

    def _buffer(self, spec: TensorSpec, tensor: Any, stream: int) -> DeviceBuffer:
        buffer = self._imported(spec, tensor, stream)
        buffer.settle(stream)
        if self.backend.stages:
            buffer.native_handle.used_on(stream)  # otherwise its memory may be reused before the run
        if buffer.spec.dtype is not spec.dtype:
            raise InputError(
                self.who,
                f"input {spec.name!r} must be {spec.dtype.value}",
                got=buffer.spec.dtype.value,
                do="Convert the tensor to that dtype.",
            )
        if not admits(spec, buffer.shape):
            raise InputError(
                self.who,
                f"input {spec.name!r} must be {spec}",
                got=f"the shape {list(buffer.shape)}",
                do="Give a tensor of that shape.",
            )
        return buffer

    def _imported(self, spec: TensorSpec, tensor: Any, stream: int) -> DeviceBuffer:
        """Return a tensor as a dense buffer of the backend: over the same memory if it is there already, otherwise a copy."""
        from ..runtime.memory.buffer import DeviceBuffer

        if isinstance(tensor, DeviceBuffer):
            if tensor.spec.is_dense and self.backend.shares_memory(tensor.backend):
                return tensor
            return DeviceBuffer.from_numpy(tensor.to_numpy(), self.backend)
        try:
            if hasattr(tensor, "resolve_neg"):
                tensor = tensor.resolve_neg()  # DLPack drops PyTorch's negative bit
            buffer = self.backend.import_tensor(tensor, stream)
            return DeviceBuffer.from_dlpack(tensor, self.backend) if buffer is None else buffer
        except InputError as error:
            raise InputError(
                self.who, f"cannot read input {spec.name!r}", got=error.got, do=error.do
            ) from error
        except (BufferError, RuntimeError, TypeError, ValueError) as error:  # of the tensor's library
            do = "Copy it to the session's device, and detach it from gradients."
            got = str(error)[:200]
            raise InputError(self.who, f"cannot read input {spec.name!r}", got=got, do=do) from error

    def empty(self, name: str, dtype: DType, shape: Sequence[int], stream: int) -> DeviceBuffer:
        """Allocate an output for work that is queued on the stream."""
        from ..runtime.memory.buffer import DeviceBuffer

        spec = TensorSpec(tuple(int(d) for d in shape), dtype, name)
        return DeviceBuffer(self.backend.allocate_on(spec.size_bytes or 0, stream), spec, self.backend)

    def exported(self, outputs: Sequence[DeviceBuffer], tensors: Mapping[str, Any], stream: int) -> list[Any]:
        """Return outputs that are written on the stream as tensors of the inputs' library, without a copy. Arrays of the host have no device."""
        for buffer in outputs:
            buffer.pending = stream
        on_host = self.backend.core_is_host
        libraries = (_from_dlpack(t) for t in tensors.values() if on_host or not isinstance(t, np.ndarray))
        library = next((f for f in libraries if f is not None), None)
        return list(outputs) if library is None else [library(buffer) for buffer in outputs]


def admits(spec: TensorSpec, shape: Sequence[Any]) -> bool:
    """Return True if an input of this spec may have the shape."""
    if spec.shape == ANY_RANK:
        return True
    return len(shape) == len(spec.shape) and all(
        not isinstance(want, int) or want == have for want, have in zip(spec.shape, shape, strict=True)
    )


def _from_dlpack(tensor: Any) -> Any:
    """Return ``from_dlpack`` of a tensor's library; None if it has none."""
    module = sys.modules.get(type(tensor).__module__.partition(".")[0])
    return getattr(module, "from_dlpack", None) if hasattr(tensor, "__dlpack__") else None
