"""Tensors that the core cannot read in place: from libraries without DLPack's C function table, with gaps, or with swapped bytes."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ... import _core
from ...errors import InputError
from ...runtime.device import Device
from ...runtime.execution.demands import SETTLED
from ...runtime.execution.executor import Executor
from ...runtime.memory.buffer import DeviceBuffer, host_array
from .op_table import ROWS
from .policy_scope import effective_demands
from .prepare import device_of, graph_of, held_demands, program_of, store_of
from .tensor_layout import TensorFacts, dense_block

__all__ = ["Elsewhere", "from_host", "readable"]

_CUDA = 2  # DLPack's kDLCUDA


def readable(op: str, operands: tuple[Any, ...], mask: int) -> tuple[Any, ...]:
    """Return the operands, those in the bit mask as dense tensors that the core reads. Raises InputError."""
    return tuple(_dense(op, i, o) if mask >> i & 1 else o for i, o in enumerate(operands))


def _dense(op: str, position: int, operand: Any) -> Any:
    """Return a copy made by the tensor's own library, or a NumPy array over the same memory."""
    kind = type(operand)
    try:
        if _core.knows_tensors(kind) and not isinstance(operand, np.ndarray):
            copied = operand.contiguous() if hasattr(operand, "contiguous") else operand.copy()
            copied = operand.clone() if copied is operand and hasattr(operand, "clone") else copied
        elif isinstance(operand, np.ma.MaskedArray):
            copied = None  # a copy would lose its mask
        elif isinstance(operand, np.ndarray | np.generic) or hasattr(operand, "__dlpack__"):
            copied = np.asarray(host_array(operand))
            if copied is operand or _core.Ops.unread((copied,)):
                copy = np.empty(copied.shape, np.dtype(copied.dtype.type))  # in native byte order
                copy[...] = copied
                copied = copy
        else:
            copied = None
    except (InputError, RuntimeError, NotImplementedError) as error:
        raise _unread(op, position, operand, str(error)[:200]) from error
    if copied is None or _core.Ops.unread((copied,)):
        raise _unread(op, position, operand, f"{kind.__name__} of {getattr(operand, 'dtype', 'no dtype')}")
    return copied


def _unread(op: str, position: int, operand: Any, got: str) -> InputError:
    do = "Hand in a NumPy array or a dense DLPack tensor of numbers."
    return InputError(f"ops.{op}", f"cannot read {ROWS[op].operands[position]}", got=got, do=do)


def from_host(operands: tuple[Any, ...], out: Any) -> Callable[[Any], Any] | None:
    """Return the conversion of the core's result to the caller's kind of tensor, or None if none is needed."""
    if out is not None and not _core.knows_tensors(type(out)):
        return lambda _: out
    first = next((o for o in operands if o is not None), None)
    if out is not None or _core.knows_tensors(type(first)) or not hasattr(first, "__dlpack__"):
        return None
    return library(first)


def library(tensor: Any) -> Callable[[Any], Any]:
    """Return ``from_dlpack`` of a tensor's library, or the identity if it has none."""
    if isinstance(tensor, DeviceBuffer):
        return DeviceBuffer.from_dlpack
    module = sys.modules.get(type(tensor).__module__.partition(".")[0])
    for holder in (module, getattr(module, "numpy", None)):
        if from_dlpack := getattr(holder, "from_dlpack", None):
            return from_dlpack  # type: ignore[no-any-return]
    return lambda made: made


class Elsewhere:
    """A call on CUDA tensors whose library offers ``__dlpack__`` only. It runs the same programs without the core's table.

    At most ``most`` programs are cached by the facts of the dense operands.
    """

    most = 256
    _kept: ClassVar[OrderedDict[Any, Executor]] = OrderedDict()

    def __init__(self, op: str, operands: tuple[Any, ...]) -> None:
        self.op, self.operands = op, operands

    @classmethod
    def of(cls, op: str, operands: tuple[Any, ...]) -> Elsewhere | None:
        """Return the call if it is of this kind, otherwise None."""
        strange = [o for o in operands if o is not None and not _core.knows_tensors(type(o))]
        if any(_device_type(o) == _CUDA for o in strange):
            return cls(op, operands)
        return None

    def run(self, number: int, request: Any, attributes: tuple[Any, ...], out: Any) -> Any:
        """Return a tensor of the first operand's library. The op is queued on PyTorch's current stream, or on the default one."""
        who = f"ops.{self.op}"
        if out is not None:
            do = "Leave it out, or use a library with DLPack's table of C functions (PyTorch 2.10 or later)."
            raise InputError(
                who, "does not support out= for tensors of this library", got=type(out).__name__, do=do
            )
        first = next(o for o in self.operands if o is not None)
        index = int(first.__dlpack_device__()[1])
        backend = Device(f"cuda:{index}").backend
        stream = backend.current_stream()
        buffers = [None if o is None else backend.import_tensor(o, stream) for o in self.operands]
        for position, (buffer, operand) in enumerate(zip(buffers, self.operands, strict=True)):
            if buffer is None and operand is not None:
                raise _unread(self.op, position, operand, f"not dense, or not on cuda:{index}")
        facts = [None if b is None else _facts(b, index) for b in buffers]
        executor = self._executor((self.op, number, attributes, tuple(facts)), request, attributes, facts)
        names = ROWS[self.op].operands
        inputs = {n: b for n, b in zip(names, buffers, strict=True) if b is not None}
        (output,) = executor.run(inputs, stream=stream).values()
        return library(first)(output)

    def _executor(
        self, key: Any, request: Any, attributes: tuple[Any, ...], facts: list[TensorFacts | None]
    ) -> Executor:
        executor = self._kept.get(key)
        if executor is None:
            device = device_of(self.op, facts)
            graph = graph_of(
                self.op, attributes, facts, [None if f is None else dense_block(f) for f in facts]
            )
            dtypes = {f.dtype for f in facts if f is not None}
            demands = held_demands(self.op, effective_demands(request), device, dtypes)
            program, _ = program_of(graph, device, demands)
            executor = Executor(program, Device(device), policy=SETTLED, store=store_of(demands))
            self._kept[key] = executor
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return executor


def _facts(buffer: DeviceBuffer, index: int) -> TensorFacts:
    strides = tuple(int(s) for s in buffer.spec.physical.strides)
    return TensorFacts(buffer.shape, strides, buffer.spec.dtype, (_CUDA, index))


def _device_type(tensor: Any) -> int:
    ask = getattr(tensor, "__dlpack_device__", None)
    try:
        return 0 if ask is None else int(ask()[0])
    except (
        TypeError,
        ValueError,
        BufferError,
        RuntimeError,
    ):  # tensors without values are refused later
        return 0
