"""Attention and rotary embeddings as single ops, for frontends and for passes that recognize them."""

from __future__ import annotations

from ...types import DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import broadcast, like, same, text
from .matmul import one_dtype

__all__ = ["ROWS", "attention_spec"]


def attention_spec(q: TensorSpec, k: TensorSpec, v: TensorSpec, mask: TensorSpec | None) -> TensorSpec:
    """Return the spec of attention over these operands. Raises Mismatch if they do not match."""
    if not q.rank == k.rank == v.rank == 4:
        raise Mismatch("q, k and v must be [batch, heads, length, size]", f"{q}, {k}, {v}")
    same(k.shape[0], q.shape[0], "the batch of q and k")
    same(v.shape[0], q.shape[0], "the batch of q and v")
    heads, kv_heads = q.shape[1], same(k.shape[1], v.shape[1], "the heads of k and v")
    if isinstance(heads, int) and isinstance(kv_heads, int) and (not kv_heads or heads % kv_heads):
        raise Mismatch("the heads of k and v must divide those of q", f"{kv_heads} and {heads}")
    same(q.shape[3], k.shape[3], "the size of q and k")
    same(k.shape[2], v.shape[2], "the length of k and v")
    if mask is not None:
        want = (q.shape[0], heads, q.shape[2], k.shape[2])
        if mask.rank > 4 or broadcast(mask.shape, want) != want:
            raise Mismatch(
                "the mask must broadcast to [batch, heads, queries, keys]", f"{mask} to {text(want)}"
            )
    return TensorSpec((q.shape[0], heads, q.shape[2], v.shape[3]), one_dtype(q, k, v))


def _attention(c: OpCall) -> TensorSpec:
    return attention_spec(c.tensor(0), c.tensor(1), c.tensor(2), c.optional(3))


def _attention_train(c: OpCall) -> list[TensorSpec]:
    q = c.tensor(0)
    y = attention_spec(q, c.tensor(1), c.tensor(2), c.optional(3))
    return [y, TensorSpec(y.shape[:3], _sums(q))]


def _attention_backward(c: OpCall) -> list[TensorSpec]:
    grad, q, k, v, result, lse = (c.tensor(i) for i in range(6))
    y = attention_spec(q, k, v, c.optional(6))
    one_dtype(q, grad, result)
    if not text(grad.shape) == text(result.shape) == text(y.shape) or text(lse.shape) != text(y.shape[:3]):
        raise Mismatch(
            "grad and y must have the shape of attention, lse its rows", f"{grad}, {result}, {lse}"
        )
    if lse.dtype is not _sums(q):
        raise Mismatch(f"lse must be {_sums(q).value}", f"{lse}")
    return [like(q), like(k), like(v)]


def _paged_attention(c: OpCall) -> TensorSpec:
    q, keys, values, tables, positions = (c.tensor(i) for i in range(5))
    if q.rank != 4 or keys.rank != 3 or values.rank != 3:
        raise Mismatch(
            "q must be [batch, heads, length, size], both caches [rows, heads, size]",
            f"{q}, {keys}, {values}",
        )
    same(keys.shape[0], values.shape[0], "the rows of both caches")
    heads, kv_heads = q.shape[1], same(keys.shape[1], values.shape[1], "the heads of both caches")
    if isinstance(heads, int) and isinstance(kv_heads, int) and (not kv_heads or heads % kv_heads):
        raise Mismatch("the heads of the caches must divide those of q", f"{kv_heads} and {heads}")
    same(q.shape[3], keys.shape[2], "the size of q and of the keys")
    for spec in (tables, positions):
        if spec.dtype not in (DType.INT32, DType.INT64) or spec.rank != 2:
            raise Mismatch(
                "tables are integers, [batch, blocks], and positions [batch, length]",
                f"{tables}, {positions}",
            )
    same(tables.shape[0], q.shape[0], "the batch of tables and q")
    same(positions.shape[0], q.shape[0], "the batch of positions and q")
    same(positions.shape[1], q.shape[2], "the length of positions and q")
    size, rows = c["block_size"], keys.shape[0]
    if size < 1 or (isinstance(rows, int) and rows % size):
        raise Mismatch("the block size must divide the rows of a cache", f"{size} for {rows} rows")
    if c["window"] < 0:
        raise Mismatch("the window must be 0 (none) or more", str(c["window"]))
    if (biases := c.optional(5)) is not None:
        if biases.dtype is not DType.FLOAT32 or biases.rank != 2 or biases.shape[1] == 0:
            raise Mismatch("biases must be float32 [heads, places], with a place or more", f"{biases}")
        same(biases.shape[0], heads, "the heads of biases and q")
    return TensorSpec((*q.shape[:3], values.shape[2]), one_dtype(q, keys, values))


def _sums(q: TensorSpec) -> DType:
    """Return the dtype of log-sum-exp."""
    return DType.FLOAT64 if q.dtype is DType.FLOAT64 else DType.FLOAT32


def _rope(c: OpCall) -> TensorSpec:
    x, cos, sin = c.tensor(0), c.tensor(1), c.tensor(2)
    if x.rank < 3 or cos.shape != sin.shape:
        raise Mismatch("x must be [..., heads, length, size], cos and sin alike", f"{x}, {cos}, {sin}")
    one_dtype(x, cos, sin)
    return like(x)


ROWS: tuple[OpEntry, ...] = (
    op(
        "attention(q, k, v, mask?; causal: bool = false, causal_offset: dim = 0, scale: float? = none,"
        " softcap: float = 0.0) -> y",
        "attention",
        _attention,
        aten="scaled_dot_product_attention",
        onnx="Attention",
        meaning="softmax(q @ k.T * scale + mask) @ v per head; query head i reads key head i // (heads / kv heads); scale none:"
        " 1/sqrt(size); a bool mask keeps where true, a float one is added; causal: query i sees keys up to i + causal_offset",
    ),
    op(
        "attention_train(q, k, v, mask?; causal: bool = false, causal_offset: dim = 0, scale: float? = none) -> y, lse",
        "attention",
        _attention_train,
        meaning="attention, and lse [batch, heads, queries]: log(sum(exp(scores))) of each query in float32 (float64 for float64),"
        " -inf where it sees no key",
    ),
    op(
        "attention_backward(grad, q, k, v, y, lse, mask?; causal: bool = false, causal_offset: dim = 0, scale: float? = none)"
        " -> grad_q, grad_k, grad_v",
        "attention",
        _attention_backward,
        meaning="gradients of attention_train's y; y and lse are its results. The mask has no gradient",
    ),
    op(
        "paged_attention(q, keys, values, tables, positions, biases?; block_size: int, window: int = 0, scale: float? = none, softcap: float = 0.0,"
        " by_key: bool = false) -> y",
        "attention",
        _paged_attention,
        meaning="attention of texts whose keys and values are in blocks of one cache, [rows, kv heads, size]: position p of text b is row"
        " tables[b, p // block_size] * block_size + p % block_size. The query at positions[b, t] sees the positions up to its own, at most the"
        " last window of them unless that is 0; a query at a negative position sees none and gives 0. Blocks that no query sees may have any entry."
        " biases[h, i] is added to the score of head h for the key at distance i before the query, or with by_key at position i; beyond the last, the last one",
    ),
    op(
        "rope(x, cos, sin, positions?; interleaved: bool = false, size: int = 0) -> y",
        "rope",
        _rope,
        onnx="RotaryEmbedding",
        meaning="x is [batch, heads, length, d]; cos, sin are [length, size/2] or [batch, length, size/2], or with positions"
        " [batch, length] a table [max, size/2]; the first size of d are rotated (0: all), in halves or interleaved pairs",
    ),
)
