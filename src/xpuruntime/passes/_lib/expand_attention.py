"""Expansion of attention in training into products and a softmax, forward and backward. The scores are stored."""

from __future__ import annotations

import math

from ...types import DType
from .expansion import Expansion

__all__ = ["expand_attention_backward", "expand_attention_train"]


def expand_attention_train(emit: Expansion) -> None:
    """Expand the op if its sizes are static: y = softmax(scores) v, and lse = log(sum(exp(scores)))."""
    heads = _Heads.of(emit, 0, 3)
    if heads is None:
        return
    y, lse = emit.node.outputs
    if not heads.keys:
        zeros = emit("full", size=heads.result, value=0.0, dtype=_dtype(emit, y.name))
        nothing = emit("full", size=heads.result[:3], value=-math.inf, dtype=_dtype(emit, lse.name))
        emit.editor.forward(y.name, zeros)
        emit.editor.forward(lse.name, nothing)
        return
    scores = heads.scores()
    top = emit("amax", scores, dim=(3,), keepdim=True)
    shift = emit("where", emit("eq", top, -math.inf), 0.0, top)
    power = emit("exp", emit("sub", scores, shift))
    total = emit("sum", power, dim=(3,), keepdim=True)
    product = heads.split(emit("matmul", heads.merged(power), heads.v))
    value = emit("div", product, emit("where", emit("eq", total, 0.0), 1.0, total))
    sums = emit("add", emit("log", total), shift)
    emit.editor.forward(y.name, _cast(emit, value, _dtype(emit, y.name)))
    emit.editor.forward(lse.name, emit("view", sums, size=heads.result[:3]))


def expand_attention_backward(emit: Expansion) -> None:
    """Expand the op if its sizes are static. Query heads that share a key head are rows of one product, which sums their gradients."""
    heads = _Heads.of(emit, 1, 6)
    if heads is None:
        return
    if not heads.keys:
        for value in emit.node.outputs:
            shape = emit.spec(value.name).shape
            zeros = emit("full", size=shape, value=0.0, dtype=_dtype(emit, value.name))
            emit.editor.forward(value.name, zeros)
        return
    grad = heads.merged(emit.wide(0))
    lse = emit("view", emit.input(5), size=(*heads.result[:3], 1))
    lse = emit("where", emit("eq", lse, -math.inf), math.inf, lse)  # a query without keys has weights 0
    weights = heads.merged(emit("exp", emit("sub", heads.scores(), lse)))
    slopes = emit("matmul", grad, _turned(emit, heads.v))
    # Equal to the sum of grad * y. The sum of stored weights cancels exactly where a query sees one key.
    delta = emit("sum", emit("mul", weights, slopes), dim=(3,), keepdim=True)
    slopes = emit("mul", emit("mul", weights, emit("sub", slopes, delta)), heads.scale)
    results = (
        heads.split(emit("matmul", slopes, heads.k)),
        emit("matmul", _turned(emit, slopes), heads.q),
        emit("matmul", _turned(emit, weights), grad),
    )
    for old, new in zip(emit.node.outputs, results, strict=True):
        emit.editor.forward(old.name, _cast(emit, new, _dtype(emit, old.name)))


class _Heads:
    """Operands in the dtype of sums, with query heads that share a key head as rows of one matrix."""

    def __init__(self, emit: Expansion, first: int, mask: int, sizes: tuple[int, ...]) -> None:
        self.emit, self._mask = emit, mask
        batch, heads, queries, self.groups, self.keys, size, values = sizes
        self.result = (batch, heads, queries, values)
        scale = emit.node.attrs["scale"]
        self.scale = 1 / math.sqrt(max(size, 1)) if scale is None else float(scale)
        self.q = self.merged(emit.wide(first))
        self.k, self.v = emit.wide(first + 1), emit.wide(first + 2)

    @classmethod
    def of(cls, emit: Expansion, first: int, mask: int) -> _Heads | None:
        """Return the operands from position ``first`` on; None if a size is dynamic."""
        (batch, heads, queries, size), (_, groups, keys, values) = (
            emit.spec(emit.input(i)).shape for i in (first, first + 2)
        )
        sizes = (batch, heads, queries, groups, keys, size, values)
        if not all(isinstance(s, int) for s in (*sizes, emit.node.attrs["causal_offset"])):
            return None
        return cls(emit, first, mask, sizes)  # type: ignore[arg-type]

    def merged(self, value: str) -> str:
        """Return [batch, key heads, query heads of a key head * queries, ...] from [batch, query heads, queries, ...]."""
        batch, heads, queries, last = self.emit.spec(value).shape
        if heads == self.groups:
            return value
        rows = heads // max(self.groups, 1) * queries
        return self.emit("view", value, size=(batch, self.groups, rows, last))

    def split(self, value: str) -> str:
        """Undo ``merged``."""
        shape = (*self.result[:3], self.emit.spec(value).shape[3])
        return value if self.emit.spec(value).shape == shape else self.emit("view", value, size=shape)

    def scores(self) -> str:
        """Return the scores [batch, query heads, queries, keys], -inf where a mask hides the key."""
        emit = self.emit
        scores = emit("mul", emit("matmul", self.q, _turned(emit, self.k)), self.scale)
        scores = self.split(scores)
        mask = emit.input(self._mask)
        if mask is not None:
            hides = emit.spec(mask).dtype is DType.BOOL
            wide = emit.wide(self._mask)
            scores = emit("where", mask, scores, -math.inf) if hides else emit("add", scores, wide)
        if emit.node.attrs["causal"]:
            queries = self.result[2]
            last = emit("arange", start=0, end=queries, dtype=DType.INT64)
            last = emit("add", emit("view", last, size=(queries, 1)), int(emit.node.attrs["causal_offset"]))
            seen = emit("le", emit("arange", start=0, end=self.keys, dtype=DType.INT64), last)
            scores = emit("where", seen, scores, -math.inf)
        return scores


def _turned(emit: Expansion, value: str) -> str:
    return emit("permute", value, dims=(0, 1, 3, 2))


def _dtype(emit: Expansion, value: str) -> DType:
    return emit.spec(value).dtype


def _cast(emit: Expansion, value: str, dtype: DType) -> str:
    return value if emit.spec(value).dtype is dtype else emit("cast", value, dtype=dtype)
