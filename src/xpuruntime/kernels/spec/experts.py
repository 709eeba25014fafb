"""Products with the matrices of chosen experts, as mixtures of experts need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ...decisions import Reason, Support
from ...storage.blocks import GroupForm
from ...types import DType
from ..kernel import NodeCall
from .linear import not_in_blocks
from .product import sizes
from .support import FLOATS

__all__ = ["ExpertProduct", "supports_groups", "why_not_experts"]

_STREAMED_ROWS, _STREAMED_PAIRS = 4, 16
"""Maximum rows, or pairs, whose matrices are streamed from memory one by one; above this, rows are grouped by expert."""


@dataclass(frozen=True, slots=True)
class ExpertProduct:
    """An ``expert_linear`` node: n outputs of k inputs for each of ``slots`` experts of ``rows`` rows.

    halves:   2 if the layer is gated, whose matrices have twice as many rows; else 1.
    shared_x: all slots of a row have the same input.
    """

    rows: int
    slots: int
    experts: int
    n: int
    k: int
    halves: int
    act: str
    shared_x: bool
    dtype: DType

    @classmethod
    def of(cls, call: NodeCall) -> Self:
        """Return the product of a node."""
        x, (experts, n, k), (rows, slots) = (sizes(call.tensor(i).spec) for i in range(3))
        halves = 2 if call.attrs["gated"] else 1
        act, dtype = str(call.attrs["act"]), call.outputs[0].dtype
        return cls(rows, slots, experts, n // halves, k, halves, act, len(x) == 2, dtype)

    @property
    def pairs(self) -> int:
        """Return the number of (row, slot) pairs, each of which is one product."""
        return self.rows * self.slots

    @property
    def few(self) -> bool:
        """Return True if grouping rows by expert saves little, because most pairs have an expert of their own."""
        return self.rows <= _STREAMED_ROWS or self.pairs <= _STREAMED_PAIRS

    @property
    def flops(self) -> int:
        """Return the number of operations."""
        return 2 * self.pairs * self.halves * self.n * self.k

    @property
    def read_bytes(self) -> int:
        """Return the least traffic: each chosen matrix once, if every pair has another expert, and the rows."""
        item = self.dtype.bits // 8
        matrices = min(self.pairs, self.experts) * self.halves * self.n * self.k
        return item * (matrices + self.pairs * (self.n + self.k))


def why_not_experts(call: NodeCall) -> Support | None:
    """Return why no kernel supports the node: its dtype, or operands that are not dense."""
    dtype = call.outputs[0].dtype
    if dtype not in FLOATS:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"expert_linear in {dtype.value} is not supported")
    if not all(s.is_dense for s in (call.outputs[0], *(o.spec for o in call.tensors))):
        return Support.no(Reason.SHAPE_UNSUPPORTED, "operands and result must be dense")
    return None


def supports_groups(call: NodeCall, form: GroupForm | None) -> Support:
    """Return yes for dense floats of at most 32 bits, and constant matrices that are quantized to a form, or (None) stored in blocks."""
    refused = why_not_experts(call)
    if refused is not None:
        return refused
    if call.outputs[0].dtype is DType.FLOAT64:
        return Support.no(Reason.DTYPE_UNSUPPORTED, "quantized weights are not supported for float64")
    if not call.tensor(1).is_weight:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "the matrices must be weights, which are packed at load")
    if form is None and call.tensor(1).groups is None:
        return not_in_blocks(call)
    return Support.yes()
