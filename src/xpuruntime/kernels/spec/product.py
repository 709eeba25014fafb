"""Matrix products as data: ``Product`` describes every op that is one, with dtypes, strides and epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...types import TensorSpec
from ..kernel import Operand
from .channel_codes import ChannelCodes

__all__ = ["Product", "Term", "even_stride", "sizes", "strides_in"]


def sizes(spec: TensorSpec) -> tuple[int, ...]:
    """Return a static shape as integers."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def strides_in(spec: TensorSpec, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a value that broadcasts to ``shape``: 0 along missing dims and dims of extent 1."""
    extents, steps = sizes(spec), spec.physical.strides
    missing = len(shape) - len(extents)
    return (0,) * missing + tuple(0 if d == 1 else s for d, s in zip(extents, steps, strict=True))


@dataclass(frozen=True, slots=True)
class Term:
    """``factor`` times an operand, added to the product. Strides are over the product's batch, row and column dims."""

    position: int
    operand: Operand
    strides: tuple[int, ...]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Product:
    """y[batch, rows, n] = act(alpha * sum over k of a[.., k] * b[k, ..] + terms).

    batch:     dims over which both sides may change.
    rows:      dims of the left side's rows; several where batch dims became rows.
    a_strides: over (*batch, *rows, k).
    b_strides: over (*batch, k, n).
    y_strides: over (*batch, *rows, n).
    codes:     the codes that B is stored in, if not in y's dtype. Its columns then have scales, an argument after the terms.
    """

    a: int
    b: int
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    n: int
    k: int
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]
    y_strides: tuple[int, ...]
    terms: tuple[Term, ...] = ()
    alpha: float = 1.0
    act: str = "none"
    codes: ChannelCodes | None = None

    @property
    def m(self) -> int:
        """Rows of the left side."""
        return math.prod(self.rows)

    @property
    def batches(self) -> int:
        """The number of products."""
        return math.prod(self.batch)

    def flat(self) -> Product:
        """Return the same product with batch dims as rows, if B is the same matrix for all of them and A's rows have one stride."""
        lead = len(self.batch)
        if not lead or any(self.b_strides[:lead]) or len(self.rows) != 1:
            return self
        rows = (*self.batch, *self.rows)
        if even_stride(rows, self.a_strides[:-1]) is None:
            return self
        return Product(
            self.a, self.b, (), rows, self.n, self.k,
            self.a_strides, self.b_strides[lead:], self.y_strides, self.terms, self.alpha, self.act, self.codes,
        )  # fmt: skip

    def exchanged(self) -> Product | None:
        """Return the product of the transposed sides in exchanged order, whose columns are the rows; None if these have no single stride."""
        lead = len(self.batch)

        def transposed(strides: tuple[int, ...]) -> tuple[int, ...] | None:
            step = even_stride(self.rows, strides[lead:-1])
            return None if step is None else (*strides[:lead], strides[-1], step)

        a, y, terms = transposed(self.a_strides), transposed(self.y_strides), []
        for term in self.terms:
            strides = transposed(term.strides)
            if strides is None:
                return None
            terms.append(replace(term, strides=strides))
        if a is None or y is None:
            return None
        return replace(
            self, a=self.b, b=self.a, rows=(self.n,), n=self.m, terms=tuple(terms),
            a_strides=(*self.b_strides[:lead], self.b_strides[-1], self.b_strides[-2]), b_strides=a,
            y_strides=(*y[:-1], y[-1] or 1),
        )  # fmt: skip


def even_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return the single stride of all these dims merged; None if they cannot be merged."""
    step, extent = 0, 1
    for d, s in zip(reversed(shape), reversed(strides), strict=True):
        if d == 1:
            continue
        if extent == 1:
            step = s
        elif s != step * extent:
            return None
        extent *= d
    return step
