"""Writing at positions that other tensors name: plans of moves whose targets are looked up.

The first part copies the operand (nothing to do if the result reuses its memory), then the values are written. The last of several values for
one position in row-major order wins, for any number of threads, since tasks never share a position.
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


def _stay(call: NodeCall) -> list[Move]:
    return [Move(result(call), place(call, 0).expanded(result(call).shape), about="what stays")]


def scatter(call: NodeCall) -> Plan:
    """Return values at positions along one dim; they replace the old values or are reduced with them."""
    dtype, dim, how = call.outputs[0].dtype, call.attrs["dim"], call.attrs["reduce"]
    y, at = vector(result(call)), vector(place(call, 1))
    if 0 in at.shape:
        return (_stay(call),)
    shape = (*at.shape, 2) if dtype is DType.COMPLEX128 else at.shape
    size, step = y.shape[dim], y.strides[dim]
    target = Place(y.arg, shape, tuple(0 if i == dim else s for i, s in enumerate(y.strides)), y.offset)
    lookups = (lookup(call, 1, halves(at, call.outputs[0], dtype), step, size, True),)
    give = call.inputs[2]
    source = None
    if isinstance(give, Operand):
        source = vector(place(call, 2))
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
    """Return a number as what is written: bits where it only moves, a value where it is computed with."""
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
    """Return slices at places of several dims."""
    dtype, how = call.outputs[0].dtype, call.attrs["reduce"]
    y, at, give = result(call), place(call, 1), place(call, 2)
    depth, last = at.shape[-1], len(at.shape) - 1
    lead = at.shape[:-1]
    tail = len(give.shape) - len(lead)
    target = Place(y.arg, give.shape, (*(0,) * len(lead), *y.strides[depth:]), y.offset)
    lookups = []
    for i in range(depth):
        box = at.at(last, i)
        box = Place(at.arg, give.shape, (*box.strides, *(0,) * tail), box.offset)
        lookups.append(lookup(call, 1, box, y.strides[i], y.shape[i], True))
    return (_stay(call), [Move(target, give, tuple(lookups), combine=_combine(how, dtype))])


def index_put(call: NodeCall) -> Plan:
    """Return values at places of advanced indexing."""
    target, lookups = indexed(call, result(call), 2, True)
    give = place(call, 1).expanded(target.shape)
    how = "add" if call.attrs["accumulate"] else "none"
    return (_stay(call), [Move(target, give, lookups, combine=_combine(how, call.outputs[0].dtype))])


def index_copy(call: NodeCall) -> Plan:
    """Return slices at places along one dim."""
    dim = call.attrs["dim"]
    y, give, at = vector(result(call)), vector(place(call, 2)), vector(place(call, 1))
    target = Place(y.arg, give.shape, tuple(0 if i == dim else s for i, s in enumerate(y.strides)), y.offset)
    box = Place(
        at.arg, give.shape, tuple(at.strides[0] if i == dim else 0 for i in range(len(give.shape))), at.offset
    )
    lookups = (lookup(call, 1, box, y.strides[dim], y.shape[dim], True),)
    return (_stay(call), [Move(target, give, lookups)])


def computed(dtype: DType) -> str:
    """Return the C type of values that are computed with; the bits where they cannot be."""
    if dtype in (DType.FLOAT32, DType.FLOAT64):
        return "float" if dtype is DType.FLOAT32 else "double"
    return int_type(dtype) if dtype.is_integer or dtype is DType.BOOL else ""
