"""Heads, masks and caches of ONNX Runtime's attention ops."""

from __future__ import annotations

from .....types import DimLike
from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext
from .indices import not_negative

__all__ = ["added", "attend", "between", "cached", "join_heads", "padding_mask", "split_heads", "unpacked"]


# ── heads ──


def split_heads(n: OnnxLoweringContext, x: str, heads: int) -> str:
    """Return [batch, length, heads * size] as [batch, heads, length, size]."""
    batch, length, hidden = n.spec_of(x).shape
    split = n.b.view(x, size=[batch, length, heads, hidden // heads])
    return str(n.b.permute(split, dims=[0, 2, 1, 3]))


def join_heads(n: OnnxLoweringContext, y: str) -> str:
    """Return [batch, heads, length, size] as [batch, length, heads * size]."""
    batch, heads, length, size = n.spec_of(y).shape
    return str(n.b.view(n.b.permute(y, dims=[0, 2, 1, 3]), size=[batch, length, heads * size]))


def unpacked(n: OnnxLoweringContext, packed: str, parts: int) -> list[str]:
    """Return the parts of [batch, length, heads, parts, size], each as [batch, heads, length, size]."""
    pieces = n.b.call("split", packed, outputs=parts, sizes=[1] * parts, dim=3)
    return [str(n.b.permute(n.b.squeeze(p, dims=[3]), dims=[0, 2, 1, 3])) for p in pieces]


# ── masks: numbers that are added to scores ──


def padding_mask(
    n: OnnxLoweringContext, position: int, batch: DimLike, keys: DimLike, *, negative: bool = False
) -> str | None:
    """Return a padding mask, [batch, 1, queries or 1, keys].

    Its forms: one flag per key and example; flags per query too; the end of the keys of each example; the ends, then the starts.
    negative: whether an end may be negative, as one before all keys. Otherwise the run reports it.
    """
    if n.opt(position) is None:
        return None
    spec, mask = n.spec(position), n.input(position)
    if spec.rank == 1 and spec.shape[0] == batch:
        seen = between(n, None, mask if negative else not_negative(n, mask, keys), keys)
    elif spec.rank == 1 and spec.shape[0] == batch * 2:
        ends, starts = n.b.call("split", mask, outputs=2, sizes=[batch, batch], dim=0)
        seen = between(n, str(starts), not_negative(n, str(ends), keys), keys)
    elif spec.rank in (2, 3) and spec.shape[-1] == keys:
        seen = str(n.b.ne(mask, 0))
    else:
        raise NotLowered(f"a mask {spec} is not supported")
    low = n.like(float(n.attr("mask_filter_value", -10000.0)))
    added = n.b.where(seen, n.like(0.0), low)
    return str(n.b.unsqueeze(added, dims=[1, 2] if spec.rank < 3 else [1]))


def between(n: OnnxLoweringContext, starts: str | None, ends: str, keys: DimLike) -> str:
    """Return which keys are in the range of their example, [batch, keys]."""
    places = n.b.arange(start=0, end=keys, step=1, dtype=n.spec_of(ends).dtype)
    seen = n.b.lt(places, n.b.unsqueeze(ends, dims=[1]))
    if starts is not None:
        seen = n.b.logical_and(seen, n.b.ge(places, n.b.unsqueeze(starts, dims=[1])))
    return str(seen)


def added(n: OnnxLoweringContext, *terms: str | None) -> str | None:
    """Return the sum of the masks that are present."""
    total: str | None = None
    for term in filter(None, terms):
        total = term if total is None else str(n.b.add(total, term))
    return total


# ── scores ──


def attend(
    n: OnnxLoweringContext,
    heads: tuple[str, str, str],
    mask: str | None,
    *,
    causal: bool = False,
    offset: DimLike = 0,
) -> str:
    """Return attention of q, k and v, joined."""
    scale = n.attr("scale") or None
    y = n.b.attention(
        *heads,
        mask,
        causal=causal,
        causal_offset=offset,
        scale=None if scale is None else float(scale),
        softcap=float(n.attr("softcap", 0.0)),
    )
    return join_heads(n, str(y))


def cached(n: OnnxLoweringContext, past: str | None, new: str) -> str:
    """Return keys or values behind those of a cache."""
    return new if past is None else str(n.b.cat(past, new, dim=2))
