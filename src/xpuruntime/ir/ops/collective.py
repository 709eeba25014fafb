"""Collectives: ops that exchange tensors between the ranks of a group. Every rank runs the same graph on its own device."""

from __future__ import annotations

from ...types import DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import like

__all__ = ["ELEMENT_TYPES", "PEER_BYTES", "ROWS"]

ELEMENT_TYPES = frozenset(
    [DType.INT32, DType.INT64, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64]
)
"""Types that a group can add."""
PEER_BYTES = 1 << 16
"""Largest operand of ``peer_all_reduce``. Larger ones gain nothing from it."""


def _exchanged(c: OpCall) -> tuple[TensorSpec, int]:
    x, ranks = c.tensor(0), c["ranks"]
    if x.dtype not in ELEMENT_TYPES:
        raise Mismatch("collectives exchange int32, int64 and floats of 16 to 64 bits", str(x))
    if ranks < 1:
        raise Mismatch("a group has at least one rank", str(ranks))
    return x, ranks


def _all_reduce(c: OpCall) -> TensorSpec:
    return like(_exchanged(c)[0])


def _all_gather(c: OpCall) -> TensorSpec:
    x, ranks = _exchanged(c)
    if not x.rank:
        raise Mismatch("x must have a dim", str(x))
    return TensorSpec((x.shape[0] * ranks, *x.shape[1:]), x.dtype)


def _reduce_scatter(c: OpCall) -> TensorSpec:
    x, ranks = _exchanged(c)
    rows = x.shape[0] if x.rank else 0
    if not isinstance(rows, int) or not rows or rows % ranks:
        raise Mismatch("the first dim of x must be a multiple of ranks", f"{x}, ranks={ranks}")
    return TensorSpec((rows // ranks, *x.shape[1:]), x.dtype)


def _peer_all_reduce(c: OpCall) -> TensorSpec:
    x, ranks = _exchanged(c)
    table, residual = c.tensor(1), c.optional(2)
    if table.dtype is not DType.INT64 or table.shape != (1 + ranks,):
        raise Mismatch(f"the table must be int64[{1 + ranks}]", str(table))
    if residual is not None and (residual.shape != x.shape or residual.dtype is not x.dtype):
        raise Mismatch("the residual must be like x", str(residual))
    return like(x)


ROWS: tuple[OpEntry, ...] = (
    op(
        "all_reduce(x; ranks: int) -> y",
        "other",
        _all_reduce,
        meaning="the sum of every rank's x, the same on all ranks; a group has `ranks` ranks",
    ),
    op(
        "peer_all_reduce(x, table, residual?; ranks: int) -> y",
        "other",
        _peer_all_reduce,
        meaning="the sum of every rank's x, plus this rank's residual, for GPUs that write to each other's memory; table: the rank, then the address"
        " of each rank's box in this process",
    ),
    op(
        "all_gather(x; ranks: int) -> y",
        "other",
        _all_gather,
        meaning="every rank's x, concatenated by rank along the first dim, the same on all ranks",
    ),
    op(
        "reduce_scatter(x; ranks: int) -> y",
        "other",
        _reduce_scatter,
        meaning="the sum of every rank's x, of which rank i gets part i of `ranks` equal parts of the first dim",
    ),
)
