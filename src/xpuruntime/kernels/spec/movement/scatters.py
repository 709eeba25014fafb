"""Scatters: writes at positions that index tensors name, as moves with lookups of their targets.

The first stage copies the operand (dropped if the result reuses its memory); the next ones write values. The last of several values for one
position wins, in row-major order, for any number of threads, because tasks never share a position.
"""

from __future__ import annotations

from ....codegen.loops.boxes import Box, Move
from ....codegen.loops.combine import combine_text, number_text, start_text
from ....types import DType
from ...kernel import NodeCall, Operand
from .indices import Plan, halves, indexed, lookup, operand, result, vector

__all__ = ["index_copy", "index_put", "scatter", "scatter_nd"]


def _keep_operand(call: NodeCall) -> list[Move]:
    return [Move(result(call), operand(call, 0).expanded(result(call).shape), about="copy of the operand")]


def scatter(call: NodeCall) -> Plan:
    """Return the moves of values to positions along one dim. They replace old values or are reduced with them."""
    dtype, dim, reduce = call.outputs[0].dtype, call.attrs["dim"], call.attrs["reduce"]
    y, at = vector(result(call)), vector(operand(call, 1))
    if 0 in at.shape:
        return (_keep_operand(call),)
    shape = (*at.shape, 2) if dtype is DType.COMPLEX128 else at.shape
    size, step = y.shape[dim], y.strides[dim]
    target = Box(y.arg, shape, tuple(0 if i == dim else s for i, s in enumerate(y.strides)), y.offset)
    lookups = (lookup(call, 1, halves(at, call.outputs[0], dtype), step, size, True),)
    values = call.inputs[2]
    source = None
    if isinstance(values, Operand):
        source = vector(operand(call, 2))
        source = Box(source.arg, shape, source.strides, source.offset)
    fill = number_text(values, dtype, reduce) if isinstance(values, bool | int | float) else "0"
    plan = [_keep_operand(call)]
    if reduce != "none" and not call.attrs["include_self"]:
        plan.append(
            [
                Move(
                    target,
                    None,
                    lookups,
                    fill=start_text(reduce, dtype),
                    about="where values will be reduced",
                )
            ]
        )
    plan.append([Move(target, source, lookups, fill=fill, combine=combine_text(reduce, dtype))])
    return tuple(plan)


def scatter_nd(call: NodeCall) -> Plan:
    """Return the moves of slices to positions in several dims."""
    dtype, reduce = call.outputs[0].dtype, call.attrs["reduce"]
    y, at, values = result(call), operand(call, 1), operand(call, 2)
    depth, last = at.shape[-1], len(at.shape) - 1
    lead = at.shape[:-1]
    tail = len(values.shape) - len(lead)
    target = Box(y.arg, values.shape, (*(0,) * len(lead), *y.strides[depth:]), y.offset)
    lookups = []
    for i in range(depth):
        box = at.at(last, i)
        box = Box(at.arg, values.shape, (*box.strides, *(0,) * tail), box.offset)
        lookups.append(lookup(call, 1, box, y.strides[i], y.shape[i], True))
    return (_keep_operand(call), [Move(target, values, tuple(lookups), combine=combine_text(reduce, dtype))])


def index_put(call: NodeCall) -> Plan:
    """Return the moves of values to positions of advanced indexing."""
    target, lookups = indexed(call, result(call), 2, True)
    values = operand(call, 1).expanded(target.shape)
    reduce = "add" if call.attrs["accumulate"] else "none"
    return (
        _keep_operand(call),
        [Move(target, values, lookups, combine=combine_text(reduce, call.outputs[0].dtype))],
    )


def index_copy(call: NodeCall) -> Plan:
    """Return the moves of slices to positions along one dim."""
    dim = call.attrs["dim"]
    y, values, at = vector(result(call)), vector(operand(call, 2)), vector(operand(call, 1))
    target = Box(y.arg, values.shape, tuple(0 if i == dim else s for i, s in enumerate(y.strides)), y.offset)
    box = Box(
        at.arg,
        values.shape,
        tuple(at.strides[0] if i == dim else 0 for i in range(len(values.shape))),
        at.offset,
    )
    lookups = (lookup(call, 1, box, y.strides[dim], y.shape[dim], True),)
    return (_keep_operand(call), [Move(target, values, lookups)])
