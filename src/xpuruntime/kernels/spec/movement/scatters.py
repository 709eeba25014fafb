"""Scatters: writes at positions that index tensors name, as moves with lookups of their targets.

The first stage copies the operand (dropped if the result reuses its memory); the next ones write values. The last of several values for one
position wins, in row-major order, for any number of threads, because tasks never share a position.
"""

from __future__ import annotations

from ....codegen.loops.boxes import Move, Place, int_type
from ....types import DType
from ...kernel import NodeCall, Operand, Scalar
from .elements import bits_of
from .indices import Plan, halves, indexed, lookup, place, result, vector

__all__ = ["computed", "index_copy", "index_put", "scatter", "scatter_nd"]

_COMBINE = {
    "add": "have + give",
    "mul": "have * give",
    "amax": "have != have ? have : give != give || give > have ? give : have",
    "amin": "have != have ? have : give != give || give < have ? give : have",
}
_BOOL = {"add": "have | give", "mul": "have & give", "amax": "have | give", "amin": "have & give"}


def _combine(how: str, dtype: DType) -> str:
    return "" if how == "none" else (_BOOL if dtype is DType.BOOL else _COMBINE)[how]


def _keep_operand(call: NodeCall) -> list[Move]:
    return [Move(result(call), place(call, 0).expanded(result(call).shape), about="what stays")]


def scatter(call: NodeCall) -> Plan:
    """Return the moves of values to positions along one dim. They replace old values or are reduced with them."""
    dtype, dim, reduce = call.outputs[0].dtype, call.attrs["dim"], call.attrs["reduce"]
    y, at = vector(result(call)), vector(place(call, 1))
    if 0 in at.shape:
        return (_keep_operand(call),)
    shape = (*at.shape, 2) if dtype is DType.COMPLEX128 else at.shape
    size, step = y.shape[dim], y.strides[dim]
    target = Place(y.arg, shape, tuple(0 if i == dim else s for i, s in enumerate(y.strides)), y.offset)
    lookups = (lookup(call, 1, halves(at, call.outputs[0], dtype), step, size, True),)
    values = call.inputs[2]
    source = None
    if isinstance(values, Operand):
        source = vector(place(call, 2))
        source = Place(source.arg, shape, source.strides, source.offset)
    fill = _number(values, dtype, reduce) if isinstance(values, bool | int | float) else "0"
    plan = [_keep_operand(call)]
    if reduce != "none" and not call.attrs["include_self"]:
        plan.append(
            [Move(target, None, lookups, fill=_start(reduce, dtype), about="where values will be reduced")]
        )
    plan.append([Move(target, source, lookups, fill=fill, combine=_combine(reduce, dtype))])
    return tuple(plan)


def _number(value: Scalar, dtype: DType, how: str) -> str:
    """Return a number as C text: its bits if it only moves, its value if it is computed with."""
    if how == "none":
        return bits_of(value, dtype)
    if dtype is DType.BOOL:
        return str(int(bool(value)))
    return repr(float(value)) if dtype.is_float else repr(int(value))


def _start(how: str, dtype: DType) -> str:
    """Return the initial value of a reduction."""
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


def scatter_nd(call: NodeCall) -> Plan:
    """Return the moves of slices to positions in several dims."""
    dtype, reduce = call.outputs[0].dtype, call.attrs["reduce"]
    y, at, values = result(call), place(call, 1), place(call, 2)
    depth, last = at.shape[-1], len(at.shape) - 1
    lead = at.shape[:-1]
    tail = len(values.shape) - len(lead)
    target = Place(y.arg, values.shape, (*(0,) * len(lead), *y.strides[depth:]), y.offset)
    lookups = []
    for i in range(depth):
        box = at.at(last, i)
        box = Place(at.arg, values.shape, (*box.strides, *(0,) * tail), box.offset)
        lookups.append(lookup(call, 1, box, y.strides[i], y.shape[i], True))
    return (_keep_operand(call), [Move(target, values, tuple(lookups), combine=_combine(reduce, dtype))])


def index_put(call: NodeCall) -> Plan:
    """Return the moves of values to positions of advanced indexing."""
    target, lookups = indexed(call, result(call), 2, True)
    values = place(call, 1).expanded(target.shape)
    reduce = "add" if call.attrs["accumulate"] else "none"
    return (
        _keep_operand(call),
        [Move(target, values, lookups, combine=_combine(reduce, call.outputs[0].dtype))],
    )


def index_copy(call: NodeCall) -> Plan:
    """Return the moves of slices to positions along one dim."""
    dim = call.attrs["dim"]
    y, values, at = vector(result(call)), vector(place(call, 2)), vector(place(call, 1))
    target = Place(
        y.arg, values.shape, tuple(0 if i == dim else s for i, s in enumerate(y.strides)), y.offset
    )
    box = Place(
        at.arg,
        values.shape,
        tuple(at.strides[0] if i == dim else 0 for i in range(len(values.shape))),
        at.offset,
    )
    lookups = (lookup(call, 1, box, y.strides[dim], y.shape[dim], True),)
    return (_keep_operand(call), [Move(target, values, lookups)])


def computed(dtype: DType) -> str:
    """Return the C type for computing with values of a dtype; empty if they cannot be computed with."""
    if dtype in (DType.FLOAT32, DType.FLOAT64):
        return "float" if dtype is DType.FLOAT32 else "double"
    return int_type(dtype) if dtype.is_integer or dtype is DType.BOOL else ""
