"""Online softmax: the maximum of a row and the sum of its exponentials in one pass (Milakov and Gimelshein, 2018).

A thread keeps its maximum and its sum so far, and rescales the sum when the maximum grows. A softmax of long rows, such as the cross entropy of a
vocabulary, is bound by arithmetic as much as by memory. With one pass fewer, the exponentials overlap the loads of the row. They take one special
function unit (SFU) instruction. Their absolute error is then that of float32, which the rounding of 16-bit operands and results hides.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....codegen.loops.plans import Operation
from ....types import HALF_FLOATS, DType
from ...spec.row_plan import RowNeeds

__all__ = ["OnlineSoftmax", "online_softmax"]


@dataclass(frozen=True, slots=True)
class OnlineSoftmax:
    """The operations of ``sum(exp(value - maximum(value)))``, of which pass ``at`` finds the maximum: NaN, if a value is."""

    at: int
    value: str
    maximum: Operation
    power: Operation
    total: Operation


def online_softmax(needs: RowNeeds) -> OnlineSoftmax | None:
    """Return the softmax of a plan whose elements, read and written, have 16 bits; None if it has no such softmax."""
    for at in range(len(needs.values_by_pass) - 2):
        first, second = needs.reductions(at), needs.reductions(at + 1)
        if [o.op for o in first] not in (["amax"], ["top"]) or [o.op for o in second] != ["sum"]:
            continue
        maximum, total, value = first[0], second[0], str(first[0].operands[0])
        power = needs.operations.get(str(total.operands[0]))
        difference = needs.operations.get(str(power.operands[0])) if power and power.op == "exp" else None
        if (
            power is None
            or difference is None
            or difference.op != "sub"
            or difference.operands != (value, maximum.name)
        ):
            continue
        read = [needs.inputs[n] for n in needs.closure([value], set()) if n in needs.inputs]
        stored = [needs.results[y].spec.dtype for y in needs.element_results]
        if all(o.dtype is DType.FLOAT32 for o in (maximum, difference, power, total)) and all(
            dtype in HALF_FLOATS for dtype in (*(i.dtype for i in read), *stored)
        ):
            return OnlineSoftmax(at, value, maximum, power, total)
    return None
