"""Lowerings of attention and rotary embedding as single ops; other forms are inlined from ONNX's definition."""

from __future__ import annotations

from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]


def _heads(n: OnnxLoweringContext, position: int, attr: str) -> str:
    """Return [batch, length, heads * size] as [batch, heads, length, size]; rank 4 stays."""
    value, spec = n.input(position), n.spec(position)
    if spec.rank == 4:
        return value
    count = n.attr(attr)
    if spec.rank != 3 or not count:
        raise NotLowered(f"its input {position} does not say its number of heads")
    batch, length, hidden = spec.shape
    split = n.b.view(value, size=[batch, length, count, hidden // count])
    return str(n.b.permute(split, dims=[0, 2, 1, 3]))


def _attention(n: OnnxLoweringContext) -> Results:
    plain = (
        not n.has_readers(3)
        and n.opt(6) is None
        and n.attr("left_window_size", -1) < 0
        and n.attr("right_window_size", -1) < 0
        and "softmax_precision" not in n.attrs
    )
    if not plain:
        raise NotLowered("windows, padded caches and inner results as outputs are not supported")
    q, k, v = _heads(n, 0, "q_num_heads"), _heads(n, 1, "kv_num_heads"), _heads(n, 2, "kv_num_heads")
    offset = n.spec(4).shape[2] if n.opt(4) else 0
    if n.opt(4):
        k = str(n.b.cat(n.input(4), k, dim=2))
        v = str(n.b.cat(n.input(5), v, dim=2))
    scale = n.attr("scale")
    y = str(
        n.b.attention(
            q,
            k,
            v,
            n.opt(3),
            causal=bool(n.attr("is_causal", 0)),
            causal_offset=offset,
            scale=None if scale is None else float(scale),
            softcap=float(n.attr("softcap", 0.0)),
        )
    )
    if n.spec().rank == 3:
        batch, heads, length, size = n.spec_of(y).shape
        y = str(n.b.view(n.b.permute(y, dims=[0, 2, 1, 3]), size=[batch, length, heads * size]))
    return [y, k if n.has_readers(1) else None, v if n.has_readers(2) else None]


def _rotary(n: OnnxLoweringContext) -> Results:
    spec = n.spec()
    x = _heads(n, 0, "num_heads")
    y = str(
        n.b.rope(
            x,
            n.input(1),
            n.input(2),
            n.opt(3),
            interleaved=bool(n.attr("interleaved", 0)),
            size=n.attr("rotary_embedding_dim", 0),
        )
    )
    return y if spec.rank == 4 else str(n.b.view(n.b.permute(y, dims=[0, 2, 1, 3]), size=spec.shape))


LOWERINGS: dict[str, OpLowering] = {"Attention": _attention, "RotaryEmbedding": _rotary}
