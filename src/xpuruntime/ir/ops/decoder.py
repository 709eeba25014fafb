"""Fused ops of the decode phase, where few rows make launches and memory traffic dominate."""

from __future__ import annotations

from ...types import DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import like, same
from .attention import attention_spec
from .matmul import ACTIVATIONS, one_dtype

__all__ = ["ROWS"]


def _norm_linear(c: OpCall) -> TensorSpec:
    x, weight, bias, residual, scale = c.tensor(0), c.tensor(1), c.optional(2), c.optional(3), c.optional(4)
    if not x.rank or weight.rank != 2:
        raise Mismatch("x must have a dim, and the weight two", f"{x}, {weight}")
    same(x.shape[-1], weight.shape[1], "x's last dim and the weight's")
    rows = weight.shape[0]
    if bias is not None and bias.shape != (rows,):
        raise Mismatch("the bias must have one element per row of the weight", str(bias))
    if scale is not None and scale.shape != x.shape[-1:]:
        raise Mismatch("the norm's scale must have x's last dim", str(scale))
    if c["gated"]:
        if not isinstance(rows, int) or rows % 2 or residual is not None:
            raise Mismatch("gated needs a weight of two halves, without bias and residual", str(weight))
        rows //= 2
    shape = (*x.shape[:-1], rows)
    if residual is not None and residual.shape != shape:
        raise Mismatch("the residual must have the result's shape", str(residual))
    return TensorSpec(shape, one_dtype(x, weight, bias, residual, scale))


def _rope_append(c: OpCall) -> tuple[TensorSpec, ...]:
    q, k, v, cos, sin, keys, values = (c.tensor(i) for i in range(7))
    places, positions = c.tensor(7), c.optional(8)
    for spec in (q, k, v, keys, values):
        if spec.rank != 4:
            raise Mismatch("q, k, v and both caches must be [batch, heads, length, size]", str(spec))
    for new, cache, who in ((k, keys, "k"), (v, values, "v")):
        for d in (0, 1, 3):
            same(new.shape[d], cache.shape[d], f"dim {d} of {who} and its cache")
    for d in (0, 2):
        same(q.shape[d], k.shape[d], f"dim {d} of q and k")
        same(v.shape[d], k.shape[d], f"dim {d} of v and k")
    same(q.shape[3], k.shape[3], "the size of q and k")
    if cos.shape != sin.shape or cos.rank not in (2, 3):
        raise Mismatch("cos and sin must be alike, [.., length, size/2]", f"{cos}, {sin}")
    for at in (places, positions):
        if at is not None and (at.dtype not in (DType.INT32, DType.INT64) or at.rank not in (1, 2)):
            raise Mismatch("places and positions are integers, [length] or [batch, length]", str(at))
    same(places.shape[-1], k.shape[2], "the length of places and k")
    one_dtype(q, k, v, cos, sin, keys, values)
    return like(q), like(keys), like(values)


def _rope_attention(c: OpCall) -> tuple[TensorSpec, ...]:
    q, keys, values = _rope_append(c)
    return attention_spec(q, keys, values, c.optional(9)), keys, values


def _sample_token(c: OpCall) -> tuple[TensorSpec, ...]:
    logits, counts, settings, numbers = (c.tensor(i) for i in range(4))
    if logits.rank != 2 or not logits.dtype.is_float:
        raise Mismatch("logits must be floats, [batch, vocab]", str(logits))
    same(counts.shape[0], logits.shape[0], "the batch of counts and logits")
    same(counts.shape[1], logits.shape[1], "the vocabulary of counts and logits")
    for spec, columns, dtype in ((settings, 6, DType.FLOAT32), (numbers, 5, DType.INT64)):
        if spec.dtype is not dtype or spec.shape != (logits.shape[0], columns):
            raise Mismatch(f"an operand must be {dtype.value}[batch, {columns}]", str(spec))
    if counts.dtype is not DType.INT32:
        raise Mismatch("counts must be int32", str(counts))
    return TensorSpec((logits.shape[0],), DType.INT64), like(counts)


ROWS: tuple[OpEntry, ...] = (
    op(
        f"norm_linear(x, weight, bias?, residual?, scale?; act: {ACTIVATIONS} = none, eps: float = 0.0, gated: bool = false) -> y",
        "matmul",
        _norm_linear,
        meaning="act(n @ weight.T + bias + residual), n = rms_norm(x) * scale, or x without a scale; gated: the first half of the weight's"
        " rows computes gate, the second half up, and the result is act(gate) * up",
    ),
    op(
        "rope_append(q, k, v, cos, sin, keys, values, places, positions?; size: int = 0) -> y, next_keys, next_values",
        "rope",
        _rope_append,
        meaning="rope of q and k; then k's rows are written to keys and v's to values at places, [length] or [batch, length]",
    ),
    op(
        "rope_attention(q, k, v, cos, sin, keys, values, places, positions?, mask?; size: int = 0, causal: bool = false, causal_offset: dim = 0,"
        " scale: float? = none, softcap: float = 0.0) -> y, next_keys, next_values",
        "attention",
        _rope_attention,
        meaning="rope_append, then attention of the rotated queries over both caches",
    ),
    op(
        "sample_token(logits, counts, settings, numbers) -> token, next_counts",
        "search",
        _sample_token,
        meaning="one token per row. settings: temperature (0: the most likely token), top_p, cutoff (-log of min_p), repetition, presence and frequency penalty;"
        " numbers: seed, step, sample, top_k, whether counts are read and updated; counts: twice the times that a token was generated, plus one"
        " if it is in the prompt, or -2**31: never",
    ),
)
