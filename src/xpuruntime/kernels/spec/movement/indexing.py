"""Gathers and scatters, as moves of boxes whose offsets are looked up in index tensors while the kernel runs.

An index outside its dim is an error of the run. The kernel reads and writes nothing outside the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....codegen.loops.boxes import Box, Move
from ....codegen.loops.combine import computed_type
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall, Operand, operand_ref
from ..writer import MovesWriter
from .elements import why_not_movable
from .indices import Plan, halves, indexed, lookup, operand, result, vector
from .scatters import index_copy, index_put, scatter, scatter_nd

__all__ = ["Indexing"]


def _gather(call: NodeCall) -> Plan:
    dtype, dim = call.outputs[0].dtype, call.attrs["dim"]
    y, x, at = (vector(b) for b in (result(call), operand(call, 0), operand(call, 1)))
    size, step = x.shape[dim], x.strides[dim]
    source = x.cut(dim, 0, 1)
    source = Box(x.arg, y.shape, tuple(0 if i == dim else s for i, s in enumerate(source.strides)), x.offset)
    at = halves(at, call.outputs[0], dtype)
    return ([Move(y, source, (lookup(call, 1, at, step, size),))],)


def _index_select(call: NodeCall) -> Plan:
    dim = call.attrs["dim"]
    y, x, at = vector(result(call)), vector(operand(call, 0)), operand(call, 1)
    if not call.tensor(0).spec.rank:
        at = vector(at)
    n, size, step = len(at.shape), x.shape[dim], x.strides[dim]
    source = (
        x.at(dim, 0) if size else Box(x.arg, (*x.shape[:dim], *x.shape[dim + 1 :]), (0,) * (len(x.shape) - 1))
    )
    for i in range(n):
        source = source.inserted(dim + i, at.shape[i], 0)
    for i, d in enumerate(source.shape):
        if not dim <= i < dim + n:
            at = at.inserted(i, d, 0)
    return ([Move(y, source, (lookup(call, 1, at, step, size, wraps=call.attrs["wrap"]),))],)


def _gather_nd(call: NodeCall) -> Plan:
    batch = call.attrs["batch_dims"]
    x, at, y = operand(call, 0), operand(call, 1), result(call)
    depth = at.shape[-1]
    lead, last = at.shape[:-1], len(at.shape) - 1
    strides = (*x.strides[:batch], *(0,) * (len(lead) - batch), *x.strides[batch + depth :])
    lookups = []
    for i in range(depth):
        box = at.at(last, i)
        box = Box(at.arg, y.shape, (*box.strides, *(0,) * (len(y.shape) - len(lead))), box.offset)
        lookups.append(lookup(call, 1, box, x.strides[batch + i], x.shape[batch + i]))
    return ([Move(y, Box(x.arg, y.shape, strides, x.offset), tuple(lookups))],)


def _index(call: NodeCall) -> Plan:
    source, lookups = indexed(call, operand(call, 0), 1, False)
    return ([Move(result(call), source, lookups)],)


@dataclass(frozen=True, slots=True)
class _IndexTemplate:
    """The moves of an op, and whether it writes into a copy of its first operand."""

    plan: Callable[[NodeCall], Plan]
    writes: bool = False


_TEMPLATES = {
    "gather": _IndexTemplate(_gather),
    "index_select": _IndexTemplate(_index_select),
    "gather_nd": _IndexTemplate(_gather_nd),
    "index": _IndexTemplate(_index),
    "scatter": _IndexTemplate(scatter, True),
    "scatter_nd": _IndexTemplate(scatter_nd, True),
    "index_put": _IndexTemplate(index_put, True),
    "index_copy": _IndexTemplate(index_copy, True),
}


class Indexing(Kernel):
    """Gathers and scatters."""

    name = "indexing/generated"
    ops = tuple(_TEMPLATES)

    def __init__(self, write_moves: MovesWriter) -> None:
        self._write_moves = write_moves

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for every dtype with whole bytes; a reduction must be exact in its own dtype."""
        refused = why_not_movable(*(t.spec for t in call.tensors))
        if refused is not None:
            return refused
        dtype = call.outputs[0].dtype
        reduce = call.attrs.get("reduce", "none")
        reduce = "add" if call.op == "index_put" and call.attrs["accumulate"] else reduce
        if reduce == "mean":
            return Support.no(Reason.NOT_IMPLEMENTED, "scatter with reduce='mean' is not implemented")
        computes = dtype.is_integer or dtype in (DType.BOOL, DType.FLOAT32, DType.FLOAT64)
        if reduce != "none" and not computes:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED,
                f"{dtype.value} would round after each addition; reduce in a wider type",
            )
        for moves in _TEMPLATES[call.op].plan(call):
            if any(x.size == 0 for m in moves if not m.empty for x in m.lookups):
                return Support.no(Reason.SHAPE_UNSUPPORTED, "the indexed dim is empty")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one launch per list of moves. A scatter first copies its operand, unless the result is in the operand's memory."""
        template, dtype = _TEMPLATES[call.op], call.outputs[0].dtype
        positions = [i for i, v in enumerate(call.inputs) if isinstance(v, Operand)]
        args = (*(operand_ref("in", i) for i in positions), "out0")
        plan = [list(moves) for moves in template.plan(call)]
        stages = []
        for i, moves in enumerate(plan):
            copies = template.writes and i == 0
            stem = "stays" if copies else call.op
            ctype = computed_type(dtype) if any(m.combine for m in plan[-1]) and i else ""
            stages.append(self._write_moves(stem, moves, args, dtype, target, copies, ctype))
        return LoweredCall(tuple(stages), in_place={0: 0} if template.writes else {})
