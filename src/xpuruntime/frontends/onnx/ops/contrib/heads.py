"""Attention of ONNX Runtime's attention ops: splitting and joining heads, masks as summands of scores, and caches of keys and values."""

from __future__ import annotations

from .....types import DimLike
from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext
from .indices import not_negative

__all__ = [
    "append_to_cache",
    "attend",
    "join_heads",
    "padding_mask",
    "split_heads",
    "sum_masks",
    "unpack_heads",
]


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


def unpack_heads(n: OnnxLoweringContext, packed: str, count: int) -> list[str]:
    """Split [batch, length, heads, count, size] into ``count`` values [batch, heads, length, size], such as keys and values."""
    pieces = n.b.call("split", packed, outputs=count, sizes=[1] * count, dim=3)
    return [str(n.b.permute(n.b.squeeze(p, dims=[3]), dims=[0, 2, 1, 3])) for p in pieces]


# ── masks: 0 for a key that a query sees, a large negative number for one that it does not; they are added to the scores ──


def padding_mask(
    n: OnnxLoweringContext, position: int, batch: DimLike, keys: DimLike, *, negative: bool = False
) -> str | None:
    """Return the mask of the operand at ``position``, [batch, 1, queries or 1, keys]; None without that operand. Raise NotLowered.

    The operand has one of four shapes:
    [batch, keys]:          a flag per key, nonzero for a key that is seen.
    [batch, queries, keys]: a flag per query and key.
    [batch]:                the end of each example's keys, that is, the number of keys from the first one.
    [2 * batch]:            the ends of all examples, then their starts.
    negative: Accept negative values of [batch], for examples that see no key. Otherwise they are an error of the run.
    """
    if n.opt(position) is None:
        return None
    spec, operand = n.spec(position), n.input(position)
    if spec.rank == 1 and spec.shape[0] == batch:
        visible = _keys_in_range(n, None, operand if negative else not_negative(n, operand, keys), keys)
    elif spec.rank == 1 and spec.shape[0] == batch * 2:
        ends, starts = n.b.call("split", operand, outputs=2, sizes=[batch, batch], dim=0)
        visible = _keys_in_range(n, str(starts), not_negative(n, str(ends), keys), keys)
    elif spec.rank in (2, 3) and spec.shape[-1] == keys:
        visible = str(n.b.ne(operand, 0))
    else:
        raise NotLowered(f"a mask {spec} is not supported")
    hidden = n.like(float(n.attr("mask_filter_value", -10000.0)))
    mask = n.b.where(visible, n.like(0.0), hidden)
    return str(n.b.unsqueeze(mask, dims=[1, 2] if spec.rank < 3 else [1]))


def _keys_in_range(n: OnnxLoweringContext, starts: str | None, ends: str, keys: DimLike) -> str:
    """Return a bool value [batch, keys]: True from each example's start (None: the first key) up to its end, exclusive."""
    positions = n.b.arange(start=0, end=keys, step=1, dtype=n.spec_of(ends).dtype)
    in_range = n.b.lt(positions, n.b.unsqueeze(ends, dims=[1]))
    if starts is not None:
        in_range = n.b.logical_and(in_range, n.b.ge(positions, n.b.unsqueeze(starts, dims=[1])))
    return str(in_range)


def sum_masks(n: OnnxLoweringContext, *masks: str | None) -> str | None:
    """Return the sum of the masks that are not None, or None if all are."""
    result: str | None = None
    for mask in filter(None, masks):
        result = mask if result is None else str(n.b.add(result, mask))
    return result


# ── scores ──


def attend(
    n: OnnxLoweringContext,
    qkv: tuple[str, str, str],
    mask: str | None,
    *,
    causal: bool = False,
    offset: DimLike = 0,
) -> str:
    """Return the attention of q, k and v (each [batch, heads, length, size]) as [batch, length, heads * size].

    The node's attributes give the scale and the soft cap. ``offset`` is the position of the first query, for causal attention.
    """
    scale = n.attr("scale") or None
    y = n.b.attention(
        *qkv,
        mask,
        causal=causal,
        causal_offset=offset,
        scale=None if scale is None else float(scale),
        softcap=float(n.attr("softcap", 0.0)),
    )
    return join_heads(n, str(y))


def append_to_cache(n: OnnxLoweringContext, past: str | None, new: str) -> str:
    """Return the keys or values of a cache, followed by new ones; the new ones alone without a cache."""
    return new if past is None else str(n.b.cat(past, new, dim=2))
