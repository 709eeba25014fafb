"""Equations of ``einsum``: their axes, and the matrix product that some are."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.ops.matmul import einsum_terms
from ..kernel import NodeCall
from .product import Product, sizes

__all__ = ["equation_product"]


class _Axes:
    """An equation's axes: the size of each, and its stride in every operand and in the result (0 if absent or of extent 1)."""

    def __init__(self, call: NodeCall) -> None:
        specs = [t.spec for t in call.tensors]
        self.labels, self.result = einsum_terms(call.attrs["equation"], [s.rank for s in specs])
        self.size: dict[str, int] = {}
        for spec, axes in zip(specs, self.labels, strict=True):
            for label, extent in zip(axes, sizes(spec), strict=True):
                self.size[label] = extent if self.size.get(label, 1) == 1 else self.size[label]
        self.steps = [
            self._steps(axes, sizes(s), s.physical.strides)
            for axes, s in zip(self.labels, specs, strict=True)
        ]
        y = call.outputs[0]
        self.to = self._steps(self.result, sizes(y), y.physical.strides)
        self.summed = [a for a in self.size if a not in self.result]

    def _steps(self, axes: Sequence[str], shape: Sequence[int], strides: Sequence[int]) -> dict[str, int]:
        steps: dict[str, int] = {}
        # A repeated label takes the diagonal.
        for label, extent, stride in zip(axes, shape, strides, strict=True):
            steps[label] = steps.get(label, 0) + (stride if extent != 1 else 0)
        return steps


def equation_product(call: NodeCall) -> Product | None:
    """Return the matrix product that an equation of two operands is; None if it is not one."""
    if len(call.tensors) != 2 or not call.outputs[0].is_dense:
        return None
    axes = _Axes(call)
    a, b = axes.steps
    if len(axes.summed) != 1 or any(len(set(x)) != len(x) for x in axes.labels):
        return None
    (k,) = axes.summed
    if not (a.get(k) and b.get(k)) and axes.size[k] != 1:
        return None
    if k not in a or k not in b:
        return None
    batch = [x for x in axes.result if a.get(x) and b.get(x)]
    rows = [x for x in axes.result if x not in batch and a.get(x)]
    columns = [x for x in axes.result if x not in batch and b.get(x)]
    unit_axes = [x for x in axes.result if x not in (*batch, *rows, *columns)]  # of extent 1 everywhere
    if any(axes.size[x] != 1 for x in unit_axes) or len(rows) > 1 or len(columns) != 1:
        return None
    (n,) = columns
    if axes.to[n] != 1 or any(call.tensor(i).is_weight for i in (0, 1)):
        return None
    m = rows[0] if rows else ""
    extents = tuple(axes.size[x] for x in batch)

    def over(steps: dict[str, int], *names: str) -> tuple[int, ...]:
        return tuple(steps.get(x, 0) for x in (*batch, *names))

    return Product(
        0, 1, extents, (axes.size[m] if m else 1,), axes.size[n], axes.size[k],
        over(a, m, k), over(b, k, n), over(axes.to, m, n),
    )  # fmt: skip
