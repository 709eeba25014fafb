"""Reading and writing at places that other tensors name: moves with lookups (codegen/moves). An index outside its dim is reported
by the run, and nothing outside is read or written.

What writes first brings the operand over (nothing to do where the result lies in its memory), then writes; of several values for
one place the last in row-major order wins, whatever the threads, since tasks never share a place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ..codegen.boxes import Lookup, Move, Place, int_type
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..types import DType, TensorSpec
from .kernel import Lowered, NodeCall, Operand, Scalar, operand_ref
from .moves_stage import bits_of, moves_stage, too_small

__all__ = ["KERNELS", "Indexing"]

Plan: TypeAlias = "tuple[list[Move], ...]"
"""Moves by stage; a stage may depend on those before it."""


def _place(call: NodeCall, position: int) -> Place:
    return Place.of(operand_ref("in", position), call.tensor(position).spec)


def _result(call: NodeCall) -> Place:
    return Place.of("out0", call.outputs[0])


def _lookup(
    call: NodeCall, position: int, box: Place, dim_step: int, size: int, writes: bool = False
) -> Lookup:
    """An index operand whose box (a place in it, expanded to the move's dims) names places of a dim."""
    return Lookup(
        operand_ref("in", position),
        call.tensor(position).spec.dtype,
        box.strides,
        box.offset,
        dim_step,
        size,
        writes,
    )


def _halves(box: Place, spec: TensorSpec, dtype: DType) -> Place:
    """An index's box beside values of complex128, whose halves are one more dim."""
    return box.inserted(len(box.shape), 2, 0) if dtype is DType.COMPLEX128 else box


def _vector(box: Place) -> Place:
    """A scalar as a vector of one; PyTorch lets it stand for one."""
    return box if box.shape else box.inserted(0)


def _gather(call: NodeCall) -> Plan:
    dtype, dim = call.outputs[0].dtype, call.attrs["dim"]
    y, x, at = (_vector(b) for b in (_result(call), _place(call, 0), _place(call, 1)))
    size, step = x.shape[dim], x.strides[dim]
    source = x.cut(dim, 0, 1)
    source = Place(
        x.arg, y.shape, tuple(0 if i == dim else s for i, s in enumerate(source.strides)), x.offset
    )
    at = _halves(at, call.outputs[0], dtype)
    return ([Move(y, source, (_lookup(call, 1, at, step, size),))],)


def _index_select(call: NodeCall) -> Plan:
    dim = call.attrs["dim"]
    y, x, at = _vector(_result(call)), _vector(_place(call, 0)), _place(call, 1)
    if not call.tensor(0).spec.rank:
        at = _vector(at)
    n, size, step = len(at.shape), x.shape[dim], x.strides[dim]
    source = (
        x.at(dim, 0)
        if size
        else Place(x.arg, (*x.shape[:dim], *x.shape[dim + 1 :]), (0,) * (len(x.shape) - 1))
    )
    for i in range(n):
        source = source.inserted(dim + i, at.shape[i], 0)
    for i, d in enumerate(source.shape):
        if not dim <= i < dim + n:
            at = at.inserted(i, d, 0)
    return ([Move(y, source, (_lookup(call, 1, at, step, size),))],)


def _gather_nd(call: NodeCall) -> Plan:
    batch = call.attrs["batch_dims"]
    x, at, y = _place(call, 0), _place(call, 1), _result(call)
    depth = at.shape[-1]
    lead, last = at.shape[:-1], len(at.shape) - 1
    strides = (*x.strides[:batch], *(0,) * (len(lead) - batch), *x.strides[batch + depth :])
    lookups = []
    for i in range(depth):
        box = at.at(last, i)
        box = Place(at.arg, y.shape, (*box.strides, *(0,) * (len(y.shape) - len(lead))), box.offset)
        lookups.append(_lookup(call, 1, box, x.strides[batch + i], x.shape[batch + i]))
    return ([Move(y, Place(x.arg, y.shape, strides, x.offset), tuple(lookups))],)


# ── writing ──

_COMBINE = {
    "add": "have + give",
    "mul": "have * give",
    "amax": "have != have ? have : give != give || give > have ? give : have",
    "amin": "have != have ? have : give != give || give < have ? give : have",
}
_BOOL = {"add": "have | give", "mul": "have & give", "amax": "have | give", "amin": "have & give"}


def _combine(how: str, dtype: DType) -> str:
    return "" if how == "none" else (_BOOL if dtype is DType.BOOL else _COMBINE)[how]


def _stay(call: NodeCall) -> list[Move]:
    return [Move(_result(call), _place(call, 0).expanded(_result(call).shape), about="what stays")]


def _scatter(call: NodeCall) -> Plan:
    dtype, dim, how = call.outputs[0].dtype, call.attrs["dim"], call.attrs["reduce"]
    y, at = _vector(_result(call)), _vector(_place(call, 1))
    if 0 in at.shape:
        return (_stay(call),)
    shape = (*at.shape, 2) if dtype is DType.COMPLEX128 else at.shape
    size, step = y.shape[dim], y.strides[dim]
    target = Place(y.arg, shape, tuple(0 if i == dim else s for i, s in enumerate(y.strides)), y.offset)
    lookups = (_lookup(call, 1, _halves(at, call.outputs[0], dtype), step, size, True),)
    give = call.inputs[2]
    source = None
    if isinstance(give, Operand):
        source = _vector(_place(call, 2))
        source = Place(source.arg, shape, source.strides, source.offset)
    fill = _number(give, dtype, how) if isinstance(give, bool | int | float) else "0"
    plan = [_stay(call)]
    if how != "none" and not call.attrs["include_self"]:
        plan.append(
            [Move(target, None, lookups, fill=_start(how, dtype), about="where values will be reduced")]
        )
    plan.append([Move(target, source, lookups, fill=fill, combine=_combine(how, dtype))])
    return tuple(plan)


def _number(value: Scalar, dtype: DType, how: str) -> str:
    """A number as what is written: bits where it only moves, a value where it is computed with."""
    if how == "none":
        return bits_of(value, dtype)
    if dtype is DType.BOOL:
        return str(int(bool(value)))
    return repr(float(value)) if dtype.is_float else repr(int(value))


def _start(how: str, dtype: DType) -> str:
    """What reducing begins with."""
    if how in ("add", "mul"):
        return "0" if how == "add" else "1"
    if dtype.is_float:
        return "-__builtin_inf()" if how == "amax" else "__builtin_inf()"
    low, high = _range(dtype)
    return f"({int_type(dtype)}){low if how == 'amax' else high}ull"


def _range(dtype: DType) -> tuple[int, int]:
    if dtype is DType.BOOL:
        return 0, 1
    low = 1 << (dtype.bits - 1) if dtype.is_signed else 0
    return low, (1 << (dtype.bits - int(dtype.is_signed))) - 1


def _scatter_nd(call: NodeCall) -> Plan:
    dtype, how = call.outputs[0].dtype, call.attrs["reduce"]
    y, at, give = _result(call), _place(call, 1), _place(call, 2)
    depth, last = at.shape[-1], len(at.shape) - 1
    lead = at.shape[:-1]
    tail = len(give.shape) - len(lead)
    target = Place(y.arg, give.shape, (*(0,) * len(lead), *y.strides[depth:]), y.offset)
    lookups = []
    for i in range(depth):
        box = at.at(last, i)
        box = Place(at.arg, give.shape, (*box.strides, *(0,) * tail), box.offset)
        lookups.append(_lookup(call, 1, box, y.strides[i], y.shape[i], True))
    return (_stay(call), [Move(target, give, tuple(lookups), combine=_combine(how, dtype))])


def _indexed(call: NodeCall, x: Place, first: int, writes: bool) -> tuple[Place, tuple[Lookup, ...]]:
    """Advanced indexing of x by the operands from ``first`` on: the box, and the lookups that name its places."""
    dtype = call.outputs[0].dtype
    rank = len(x.shape) - int(dtype is DType.COMPLEX128)
    given = {i - first: _place(call, i) for i in range(first, len(call.inputs)) if call.inputs[i] is not None}
    places = sorted(given)
    if not places:
        return x, ()
    block = _broadcast([b.shape for b in given.values()])
    kept = [d for d in range(rank) if d not in given]
    front = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    rest = list(range(rank, len(x.shape)))
    before, after = kept[:front], [*kept[front:], *rest]
    shape = (*(x.shape[d] for d in before), *block, *(x.shape[d] for d in after))
    strides = (*(x.strides[d] for d in before), *(0,) * len(block), *(x.strides[d] for d in after))
    lookups = []
    for dim, box in given.items():
        box = box.expanded(block)
        own = (*(0,) * len(before), *box.strides, *(0,) * len(after))
        lookups.append(
            _lookup(
                call,
                first + dim,
                Place(box.arg, shape, own, box.offset),
                x.strides[dim],
                x.shape[dim],
                writes,
            )
        )
    return Place(x.arg, shape, strides, x.offset), tuple(lookups)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    n = max(len(s) for s in shapes)
    columns = zip(*((*(1,) * (n - len(s)), *s) for s in shapes), strict=True)
    return tuple(next((d for d in column if d != 1), 1) for column in columns)


def _index(call: NodeCall) -> Plan:
    source, lookups = _indexed(call, _place(call, 0), 1, False)
    return ([Move(_result(call), source, lookups)],)


def _index_put(call: NodeCall) -> Plan:
    target, lookups = _indexed(call, _result(call), 2, True)
    give = _place(call, 1).expanded(target.shape)
    how = "add" if call.attrs["accumulate"] else "none"
    return (_stay(call), [Move(target, give, lookups, combine=_combine(how, call.outputs[0].dtype))])


def _index_copy(call: NodeCall) -> Plan:
    dim = call.attrs["dim"]
    y, give, at = _vector(_result(call)), _vector(_place(call, 2)), _vector(_place(call, 1))
    target = Place(y.arg, give.shape, tuple(0 if i == dim else s for i, s in enumerate(y.strides)), y.offset)
    box = Place(
        at.arg, give.shape, tuple(at.strides[0] if i == dim else 0 for i in range(len(give.shape))), at.offset
    )
    lookup = _lookup(call, 1, box, y.strides[dim], y.shape[dim], True)
    return (_stay(call), [Move(target, give, (lookup,))])


@dataclass(frozen=True, slots=True)
class _Row:
    plan: Callable[[NodeCall], Plan]
    writes: bool = False


_ROWS = {
    "gather": _Row(_gather),
    "index_select": _Row(_index_select),
    "gather_nd": _Row(_gather_nd),
    "index": _Row(_index),
    "scatter": _Row(_scatter, True),
    "scatter_nd": _Row(_scatter_nd, True),
    "index_put": _Row(_index_put, True),
    "index_copy": _Row(_index_copy, True),
}


class Indexing:
    """Gathers and scatters."""

    name = "indexing/generated"
    ops = tuple(_ROWS)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Every type that has bytes of its own; what is reduced must be computed in its own type."""
        refused = too_small(*(t.spec for t in call.tensors))
        if refused is not None:
            return refused
        dtype = call.outputs[0].dtype
        how = call.attrs.get("reduce", "none")
        how = "add" if call.op == "index_put" and call.attrs["accumulate"] else how
        if how == "mean":
            return Support.no(Reason.NOT_IMPLEMENTED, "a scatter that takes means")
        computes = dtype.is_integer or dtype in (DType.BOOL, DType.FLOAT32, DType.FLOAT64)
        if how != "none" and not computes:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"{dtype.value} rounds after each addition; sums need a wider type"
            )
        for moves in _ROWS[call.op].plan(call):
            if any(x.size == 0 for m in moves if not m.empty for x in m.lookups):
                return Support.no(Reason.SHAPE_UNSUPPORTED, "places named in a dim that has none")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """A stage per part of the plan; results of writing may lie in the operand's memory."""
        row, dtype = _ROWS[call.op], call.outputs[0].dtype
        positions = [i for i, v in enumerate(call.inputs) if isinstance(v, Operand)]
        args = (*(operand_ref("in", i) for i in positions), "out0")
        plan = [list(moves) for moves in row.plan(call)]
        stages = []
        for i, moves in enumerate(plan):
            copies = row.writes and i == 0
            stem = "stays" if copies else call.op
            kind = _computed(dtype) if any(m.combine for m in plan[-1]) and i else ""
            stages.append(moves_stage(stem, moves, args, dtype, target, copies, kind))
        return Lowered(tuple(stages), in_place={0: 0} if row.writes else {})


def _computed(dtype: DType) -> str:
    """The C type of values that are computed with; the bits where they cannot be."""
    if dtype in (DType.FLOAT32, DType.FLOAT64):
        return "float" if dtype is DType.FLOAT32 else "double"
    return int_type(dtype) if dtype.is_integer or dtype is DType.BOOL else ""


KERNELS = (Indexing(),)
