"""Linear layers of decoders: few rows, with a norm before the product and a gate after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ...decisions import Reason, Support
from ...program.program import RecipeStep
from ...types import DType
from ..kernel import NodeCall, Operand
from .product import sizes

__all__ = ["LinearLayer", "not_in_blocks", "why_not"]


_FLOATS = frozenset({DType.FLOAT64, DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16})


@dataclass(frozen=True, slots=True)
class LinearLayer:
    """A node as a product of m rows: n outputs of k inputs.

    halves: 2 in a gated layer, whose weight has twice as many columns; else 1.
    scale:  the weight of the RMS norm, if there is one.
    """

    m: int
    n: int
    k: int
    halves: int
    act: str
    eps: float
    dtype: DType
    bias: Operand | None
    residual: Operand | None
    scale: Operand | None

    @classmethod
    def of(cls, call: NodeCall) -> Self:
        """Return the layer of a ``linear``, ``fused_linear`` or ``norm_linear`` node."""
        x, weight = call.tensor(0).spec, call.tensor(1).spec
        (rows, k), halves = sizes(weight), 2 if call.attrs.get("gated") else 1
        act, eps = str(call.attrs.get("act", "none")), float(call.attrs.get("eps", 0.0))
        rest = (call.optional(i) for i in (2, 3, 4))
        return cls(
            math.prod(sizes(x)[:-1]), rows // halves, k, halves, act, eps, call.outputs[0].dtype, *rest
        )

    @property
    def operands(self) -> list[tuple[str, int]]:
        """Name and position of the operands that are present, other than x and the weight."""
        optional = (("bias", 2, self.bias), ("residual", 3, self.residual), ("norm", 4, self.scale))
        return [(name, at) for name, at, operand in optional if operand is not None]

    def panels(self, columns: int) -> int:
        """Return the number of panels of B per half."""
        return math.ceil(self.n / columns)

    def even(self, columns: int) -> tuple[tuple[RecipeStep, ...], int]:
        """Return steps that pad each half of the outputs to whole panels, and the number of outputs after that."""
        padded = self.panels(columns) * columns
        if self.halves == 1 or padded == self.n:
            return (), self.n * self.halves
        return (
            RecipeStep("reshape", ("%in",), {"shape": [2, self.n, self.k]}),
            RecipeStep("pad", ("%0",), {"begin": [0, 0, 0], "end": [0, padded - self.n, 0]}),
            RecipeStep("reshape", ("%1",), {"shape": [2 * padded, self.k]}),
        ), 2 * padded

    def padded(self, columns: int, tail: Sequence[int]) -> list[RecipeStep]:
        """Return steps that pad each half of the outputs to whole panels with zeros, of an array [outputs, *tail]."""
        missing, zeros = self.panels(columns) * columns - self.n, [0] * len(tail)
        if not missing:
            return []
        if self.halves == 1:
            return [RecipeStep("pad", ("%in",), {"begin": [0, *zeros], "end": [missing, *zeros]})]
        return [
            RecipeStep("reshape", ("%in",), {"shape": [2, self.n, *tail]}),
            RecipeStep("pad", ("%0",), {"begin": [0, 0, *zeros], "end": [0, missing, *zeros]}),
            RecipeStep("reshape", ("%1",), {"shape": [2 * (self.n + missing), *tail]}),
        ]


def not_in_blocks(call: NodeCall) -> Support:
    """Return the refusal of a weight that is stored as floats, or of blocks whose rows are not whole."""
    dtype = call.tensor(1).spec.dtype.value
    return Support.no(
        Reason.NOT_APPLICABLE, f"the weight is stored as {dtype}, or not in whole rows of blocks"
    )


def why_not(call: NodeCall) -> Support | None:
    """Return why no kernel supports the layer: its dtype, a weight that is not constant, or rows that are not contiguous."""
    dtype, weight = call.outputs[0].dtype, call.tensor(1)
    if dtype not in _FLOATS:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"{call.op} in {dtype.value} is not supported")
    if not weight.is_weight or not weight.spec.is_dense:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED, "the right-hand side must be a weight, which is packed at load"
        )
    specs = [call.outputs[0], *(o.spec for o in call.tensors)]
    if not all(s.is_dense for s in specs):
        return Support.no(Reason.SHAPE_UNSUPPORTED, "operands and result must be dense")
    residual = call.optional(3)
    if residual is not None and residual.spec.shape != call.outputs[0].shape:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "the residual must have the result's shape")
    return None
