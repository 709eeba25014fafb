"""Tensors that the core does not read in place: of libraries without DLPack's table of C functions, with gaps, of odd byte orders."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ... import _core
from ...errors import InputError
from ...runtime.buffer import DeviceBuffer, host_array
from ...runtime.demands import SETTLED
from ...runtime.device import Device
from ...runtime.executor import Executor
from .op_table import ROWS
from .policy_scope import effective_demands
from .prepare import device_of, graph_of, held_demands, program_of
from .tensor_layout import Facts, lying

__all__ = ["Elsewhere", "from_host", "readable"]

_CUDA = 2  # DLPack's kDLCUDA


def readable(op: str, operands: tuple[Any, ...], mask: int) -> tuple[Any, ...]:
    """The operands with those of the mask, by bit, as dense tensors that the core reads. Raises InputError."""
    return tuple(_dense(op, i, o) if mask >> i & 1 else o for i, o in enumerate(operands))


def _dense(op: str, position: int, operand: Any) -> Any:
    """A copy by the tensor's own library, or over the same memory as an array of NumPy's."""
    kind = type(operand)
    try:
        if _core.knows_tensors(kind) and not isinstance(operand, np.ndarray):
            made = operand.contiguous() if hasattr(operand, "contiguous") else operand.copy()
            made = operand.clone() if made is operand and hasattr(operand, "clone") else made
        elif isinstance(operand, np.ma.MaskedArray):
            made = None  # its mask would be lost
        elif isinstance(operand, np.ndarray | np.generic) or hasattr(operand, "__dlpack__"):
            made = np.asarray(host_array(operand))
            if made is operand or _core.Ops.unread((made,)):
                copy = np.empty(made.shape, np.dtype(made.dtype.type))  # in this machine's byte order
                copy[...] = made
                made = copy
        else:
            made = None
    except (InputError, RuntimeError, NotImplementedError) as error:
        raise _unread(op, position, operand, str(error)[:200]) from error
    if made is None or _core.Ops.unread((made,)):
        raise _unread(op, position, operand, f"{kind.__name__} of {getattr(operand, 'dtype', 'no dtype')}")
    return made


def _unread(op: str, position: int, operand: Any, got: str) -> InputError:
    do = "Hand in a NumPy array or a dense DLPack tensor of numbers."
    return InputError(f"ops.{op}", f"cannot read {ROWS[op].operands[position]}", got=got, do=do)


def from_host(operands: tuple[Any, ...], out: Any) -> Callable[[Any], Any] | None:
    """How the core's result becomes what the caller gets; None where it is that already."""
    if out is not None and not _core.knows_tensors(type(out)):
        return lambda _: out
    first = next((o for o in operands if o is not None), None)
    if out is not None or _core.knows_tensors(type(first)) or not hasattr(first, "__dlpack__"):
        return None
    return library(first)


def library(tensor: Any) -> Callable[[Any], Any]:
    """``from_dlpack`` of the library that a tensor is of; what that has none stays what it is."""
    if isinstance(tensor, DeviceBuffer):
        return DeviceBuffer.from_dlpack
    module = sys.modules.get(type(tensor).__module__.partition(".")[0])
    for holder in (module, getattr(module, "numpy", None)):
        if found := getattr(holder, "from_dlpack", None):
            return found  # type: ignore[no-any-return]
    return lambda made: made


class Elsewhere:
    """A call on tensors of a CUDA device whose library shows them by ``__dlpack__`` alone: the same programs, without the core's table.

    They are kept by what the dense operands look like, as many as ``most``.
    """

    most = 256
    _kept: ClassVar[OrderedDict[Any, Executor]] = OrderedDict()

    def __init__(self, op: str, operands: tuple[Any, ...]) -> None:
        self.op, self.operands = op, operands

    @classmethod
    def of(cls, op: str, operands: tuple[Any, ...]) -> Elsewhere | None:
        """The call, where it is one."""
        strange = [o for o in operands if o is not None and not _core.knows_tensors(type(o))]
        if any(_device_type(o) == _CUDA for o in strange):
            return cls(op, operands)
        return None

    def run(self, number: int, asked: Any, attributes: tuple[Any, ...], out: Any) -> Any:
        """A tensor of the first operand's library, queued on the stream that PyTorch works on, else on the default one."""
        who = f"ops.{self.op}"
        if out is not None:
            do = "Leave it out, or use a library with DLPack's table of C functions (PyTorch 2.10 or later)."
            raise InputError(who, "takes out only from such libraries", got=type(out).__name__, do=do)
        first = next(o for o in self.operands if o is not None)
        index = int(first.__dlpack_device__()[1])
        backend = Device(f"cuda:{index}").backend
        stream = backend.current_stream()
        buffers = [None if o is None else backend.import_tensor(o, stream) for o in self.operands]
        for position, (buffer, operand) in enumerate(zip(buffers, self.operands, strict=True)):
            if buffer is None and operand is not None:
                raise _unread(self.op, position, operand, f"not dense, or not on cuda:{index}")
        facts = [None if b is None else _facts(b, index) for b in buffers]
        executor = self._executor((self.op, number, attributes, tuple(facts)), asked, attributes, facts)
        names = ROWS[self.op].operands
        given = {n: b for n, b in zip(names, buffers, strict=True) if b is not None}
        (made,) = executor.run(given, stream=stream).values()
        return library(first)(made)

    def _executor(
        self, key: Any, asked: Any, attributes: tuple[Any, ...], facts: list[Facts | None]
    ) -> Executor:
        found = self._kept.get(key)
        if found is None:
            device = device_of(self.op, facts)
            graph = graph_of(self.op, attributes, facts, [None if f is None else lying(f) for f in facts])
            dtypes = {f.dtype for f in facts if f is not None}
            demands = held_demands(self.op, effective_demands(asked), device, dtypes)
            program, _ = program_of(graph, device, demands)
            found = Executor(program, Device(device), policy=SETTLED)
            self._kept[key] = found
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return found


def _facts(buffer: DeviceBuffer, index: int) -> Facts:
    strides = tuple(int(s) for s in buffer.spec.physical.strides)
    return Facts(buffer.shape, strides, buffer.spec.dtype, (_CUDA, index))


def _device_type(tensor: Any) -> int:
    ask = getattr(tensor, "__dlpack_device__", None)
    try:
        return 0 if ask is None else int(ask()[0])
    except (
        TypeError,
        ValueError,
        BufferError,
        RuntimeError,
    ):  # tensors without values, which are refused later
        return 0
