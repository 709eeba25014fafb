"""Python functions as kernels of a plan. The core calls them for the library ``python``.

A function receives its operands as arrays over the run's memory (NumPy arrays or torch tensors), numbers and None unchanged, and the
node's attributes by keyword. Its return values are copied to the results. On a GPU its work is queued on the run's stream, and the run
uses no CUDA graph.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...errors import XpuError
from ...plugins.registered import HostFunction, host_function
from ...types import DType
from .control import registered

__all__ = ["enable"]

Spec = tuple[str, list[int], list[int]]


@functools.cache
def enable() -> None:
    """Register the lookup function of Python kernels with the core, once per process."""
    _core.set_host_kernels(_find)


def _find(
    name: str, options: Mapping[str, Any], specs: Sequence[Spec], inputs: int, device: str
) -> Callable[[list[int], int], str | tuple[str, str]] | str:
    """Return a callable that runs a registered function for one call of a plan, or the reason why there is none."""
    if "control" in options:
        return registered(int(options["control"]))
    try:
        function = host_function(name, str(options["digest"]), f"kernel {options['kernel']}")
    except XpuError as error:
        return str(error)
    if device != "cpu" and function.arrays != "torch":
        return f"kernel {options['kernel']} takes {function.arrays} arrays, which cannot be on {device}; register it with arrays='torch'"
    return _HostCall(function, json.loads(str(options["call"])), specs, inputs, device)


class _HostCall:
    """One call of a plan. ``specs``: dtype, shape and strides of its buffers, operands before results."""

    def __init__(
        self, function: HostFunction, call: Mapping[str, Any], specs: Sequence[Spec], inputs: int, device: str
    ) -> None:
        self._function, self._specs, self._inputs, self._device = function, specs, inputs, device
        self._operands = call["operands"]
        self._attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in call["attrs"].items()}

    def __call__(self, addresses: list[int], stream: int) -> str:
        """Run the function. Return an empty string, or the error message."""
        try:
            with self._queue(stream):
                arrays = [self._array(a, s) for a, s in zip(addresses, self._specs, strict=True)]
                operands = [arrays[o["buffer"]] if isinstance(o, dict) else o for o in self._operands]
                returned = self._function.function(*operands, **self._attrs)
                results = returned if isinstance(returned, tuple | list) else (returned,)
                return self._write(results, arrays[self._inputs :])
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            return f"{self._function.name}: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"

    def _write(self, results: Sequence[Any], outputs: Sequence[Any]) -> str:
        if len(results) != len(outputs):
            return f"{self._function.name} returns {len(results)} results; the node has {len(outputs)}"
        for i, (result, output, spec) in enumerate(
            zip(results, outputs, self._specs[self._inputs :], strict=True)
        ):
            if result is output:
                continue
            value = np.asarray(result) if self._function.arrays == "numpy" else result
            if tuple(value.shape) != tuple(output.shape) or value.dtype != output.dtype:
                result_spec = f"{value.dtype}{list(value.shape)}"
                return f"{self._function.name} returns {result_spec} as result {i}; the node has {spec[0]}{spec[1]}"
            if self._function.arrays == "numpy":
                np.copyto(output, value)
            else:
                output.copy_(value)
        return ""

    def _array(self, address: int, spec: Spec) -> Any:
        if self._device == "cpu":
            array = _over(address, spec)
            return array if self._function.arrays == "numpy" else _torch().from_dlpack(_exported(array, spec))
        return _torch().as_tensor(_OnDevice(address, spec), device=self._device).view(_torch_dtype(spec[0]))

    def _queue(self, stream: int) -> contextlib.AbstractContextManager[Any]:
        if self._device == "cpu":
            return contextlib.nullcontext()
        cuda = _torch().cuda
        context: contextlib.AbstractContextManager[Any] = cuda.stream(
            cuda.ExternalStream(stream, device=self._device)
        )
        return context


def _over(address: int, spec: Spec) -> NDArray[Any]:
    """Return a NumPy array over memory that the core keeps alive for the call."""
    dtype = DType(spec[0]).numpy
    size = math.prod(spec[1]) * dtype.itemsize
    memory = (ctypes.c_char * size).from_address(address)
    return np.frombuffer(memoryview(memory), dtype).reshape(spec[1])


def _exported(array: NDArray[Any], spec: Spec) -> Any:
    """Return an object that torch can import. NumPy cannot export bfloat16, so such arrays are exported as a DLPack capsule."""
    if spec[0] != "bfloat16":
        return array
    strides = [s // array.itemsize for s in array.strides]
    return _core.dlpack_capsule(array.ctypes.data, array.shape, strides, 4, 16, array)


class _OnDevice:
    """GPU memory with the CUDA array interface. Elements are exposed as integers of their size, since the interface has no bfloat16."""

    def __init__(self, address: int, spec: Spec) -> None:
        typestr = f"<i{DType(spec[0]).numpy.itemsize}"
        self.__cuda_array_interface__ = {
            "shape": tuple(spec[1]),
            "typestr": typestr,
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def _torch() -> Any:
    """Return the torch module. It is usually imported already by the code that registered the function."""
    return sys.modules.get("torch") or importlib.import_module("torch")


def _torch_dtype(name: str) -> Any:
    return getattr(_torch(), name)
