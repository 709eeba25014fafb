"""Values of a lowering with Python's operators, for functions that are formulas of real numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ....types import DType
from .context import AtenLoweringContext, OpLowering, Results

__all__ = ["RealFunction", "RealValue", "in_wide_type"]


@dataclass(frozen=True, slots=True)
class RealValue:
    """A value of the graph with Python's operators."""

    n: AtenLoweringContext
    value: str

    def do(self, op: str, *others: Any, **attrs: Any) -> RealValue:
        """Return the result of an op of the IR."""
        operands = [o.value if isinstance(o, RealValue) else o for o in others]
        return RealValue(self.n, str(self.n.b.call(op, self.value, *operands, **attrs)))

    def __add__(self, other: Any) -> RealValue:
        return self.do("add", other)

    def __sub__(self, other: Any) -> RealValue:
        return self.do("sub", other)

    def __mul__(self, other: Any) -> RealValue:
        return self.do("mul", other)

    def __truediv__(self, other: Any) -> RealValue:
        return self.do("div", other, rounding_mode=None)

    def __neg__(self) -> RealValue:
        return self.do("neg")

    def dividing(self, number: float) -> RealValue:
        """Return ``number / self``."""
        return RealValue(self.n, str(self.n.b.div(number, self.value, rounding_mode=None)))

    def where(self, condition: RealValue, other: Any) -> RealValue:
        """Return itself where the condition is true, else the other."""
        return condition.do("where", self, other)

    def horner(self, coefficients: Sequence[float]) -> RealValue:
        """Return a polynomial; the coefficient of the highest power is first."""
        result = self * coefficients[0] + coefficients[1]
        for coefficient in coefficients[2:]:
            result = result * self + coefficient
        return result

    def chebyshev(self, low: float, high: float, series: Sequence[float]) -> RealValue:
        """Return a Chebyshev series on an interval, by Clenshaw's recurrence. Terms below the precision of the type are left out."""
        least = 1e-9 if self.n.spec(self.value).dtype is DType.FLOAT32 else 0.0
        terms = [*series]
        while abs(terms[-1]) < least * abs(series[0]):
            terms.pop()
        x = self * (2 / (high - low)) + (low + high) / (low - high)
        twice = x + x
        latest, earlier = twice * terms[-1] + terms[-2], terms[-1]
        before: RealValue | float = earlier
        for term in terms[-3:0:-1]:
            latest, before = twice * latest - before + term, latest
        return x * latest - before + terms[0]


RealFunction: TypeAlias = "Callable[[RealValue], RealValue]"


def in_wide_type(function: RealFunction) -> OpLowering:
    """Return the lowering of a function of one tensor, computed in at least float32."""

    def lower(n: AtenLoweringContext) -> Results:
        result = n.out().dtype
        wide = DType.FLOAT32 if result.bits < 32 else result
        return n.cast(function(RealValue(n, n.cast(n.x, wide))).value, result)

    return lower
