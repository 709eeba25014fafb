"""Lowering of GroupQueryAttention (``com.microsoft``): grouped heads over a cache, with rotation, a window, a soft cap and sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .....types import DimLike, DType
from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext, OpLowering, Results, numbers
from .heads import attend, split_heads
from .indices import checked

__all__ = ["LOWERINGS"]


class _Cache(NamedTuple):
    """Sizes of a call and where its new keys are written.

    slots:  keys that the cache has room for after the call.
    ends:   position of the last key of each example, int32 [batch]; None if it is that of the last query in all of them.
    places: number of keys of each example that are already in the cache, int32 [batch]; None before the first call.
    """

    batch: DimLike
    length: DimLike
    slots: DimLike
    ends: str | None
    places: str | None


def _group_query(n: OnnxLoweringContext) -> Results:
    """Lower GroupQueryAttention: grouped heads over a cache, in which the examples of a batch may have different lengths.

    Before the first call (as many keys as queries) the new keys are attended alone, and queries behind the end of their example see all of its keys;
    afterwards new keys are written behind those of their example, and each query sees the keys up to its own position.
    """
    _check_group_query(n)
    heads, kv_heads = int(n.attr("num_heads")), int(n.attr("kv_num_heads"))
    q, k, v = _group_query_operands(n, heads, kv_heads)
    cache = _group_query_cache(n, n.spec_of(k).shape[2])
    _check_tables(n)
    if n.opt(14) is not None:
        eps = float(n.attr("qk_norm_epsilon", 1e-6))
        q, k = (
            str(n.b.rms_norm(x, n.input(p), normalized_shape=n.spec_of(x).shape[3:], eps=eps))
            for x, p in ((q, 14), (k, 15))
        )
    if n.attr("do_rotary", 0):
        q, k = (_rotated(n, cache, x) for x in (q, k))
    present = [_stored(n, cache, past, new) for past, new in ((3, k), (4, v))]
    keys, values = (k, v) if cache.places is None else present
    sink = n.opt(11) if n.opt(11) is not None else n.like(0.0) if n.attr("smooth_softmax", 0) else None
    plain = cache.places is None and n.attr("local_window_size", -1) < 0 and n.attr("causal", 1)
    if plain and sink is None:
        y = attend(n, (q, keys, values), _padding(n, cache), causal=True)
        return [y, *present, None]
    mask = _window_mask(n, cache, n.spec_of(keys).shape[2])
    if sink is not None:
        keys, values, mask = _with_sink(n, keys, values, mask, sink)
    return [attend(n, (q, keys, values), mask), *present, None]


_UNSUPPORTED_INPUTS = {12: "scales of quantized caches", 13: "scales of quantized caches"}


def _check_group_query(n: OnnxLoweringContext) -> None:
    """Raise NotLowered for forms that are not supported."""
    for position, what in _UNSUPPORTED_INPUTS.items():
        if n.opt(position) is not None:
            raise NotLowered(f"{what} are not supported")
    if n.attr("local_window_size", -1) >= 0 and not n.attr("causal", 1):
        raise NotLowered("a window of attention that is not causal is not supported")
    if n.has_readers(3):
        raise NotLowered("scores as outputs are not supported")


def _check_tables(n: OnnxLoweringContext) -> None:
    """Raise NotLowered if the tables of the rotation are shorter than the keys."""
    if n.attr("do_rotary", 0):
        rows, (total,) = n.spec(7).shape[0], n.dims(6, "total sequence length")
        if isinstance(rows, int) and isinstance(total, int) and rows < total:
            raise NotLowered(f"its tables have {rows} rows for {total} positions")


def _group_query_operands(n: OnnxLoweringContext, heads: int, kv_heads: int) -> tuple[str, str, str]:
    operands = [n.x, n.opt(1), n.opt(2)]
    if n.opt(1) is None:
        size = n.spec().shape[2] // (heads + 2 * kv_heads)
        sizes = [heads * size, kv_heads * size, kv_heads * size]
        operands = [str(p) for p in n.b.call("split", n.x, outputs=3, sizes=sizes, dim=2)]
    elif n.opt(2) is None:
        raise NotLowered("keys without values are not supported")
    q, k, v = (split_heads(n, str(x), h) for x, h in zip(operands, (heads, kv_heads, kv_heads), strict=True))
    return q, k, v


def _group_query_cache(n: OnnxLoweringContext, length: DimLike) -> _Cache:
    batch = n.spec().shape[0]
    past: DimLike = n.spec(3).shape[2] if n.opt(3) is not None else 0
    (total,) = n.dims(6, "total sequence length")
    if total == length and past == 0:
        return _Cache(batch, length, length, _ends(n, batch, length, length), None)
    if not (isinstance(total, int) and isinstance(length, int) and isinstance(past, int)):
        raise NotLowered("whether it continues a cache depends on symbolic dims", n.input(6))
    if total < max(length, 1) or (total != past + length and total > past):
        raise NotLowered(
            f"its total sequence length is {total} for a cache of {past} keys and {length} new ones; {past + length}, or one from {max(length, 1)} to"
            f" {past}, is possible"
        )
    slots = max(total, past)
    if total == length:
        return _Cache(batch, length, slots, _ends(n, batch, length, slots), None)
    kind = n.spec(5).dtype.numpy
    back = n.b.constant(np.asarray(1 - length, kind))
    places = checked(n, str(n.b.add(n.b.view(n.input(5), size=[batch]), back)), slots - length + 1)
    ends = n.b.add(places, n.b.constant(np.asarray(length - 1, kind)))
    return _Cache(batch, length, slots, str(ends), places)


def _ends(n: OnnxLoweringContext, batch: DimLike, length: DimLike, slots: DimLike) -> str | None:
    """Return the position of each example's last key before the first call; None if it is known to be that of the last query."""
    known = n.known(5)
    if known is not None and isinstance(length, int) and bool((known == length - 1).all()):
        return None
    return checked(n, str(n.b.view(n.input(5), size=[batch])), slots)


def _query_places(n: OnnxLoweringContext, cache: _Cache, dtype: DType) -> str:
    """Return the position of each query, [batch or 1, length]."""
    steps = str(n.b.unsqueeze(n.b.arange(start=0, end=cache.length, step=1, dtype=dtype), dims=[0]))
    if cache.places is None:
        return steps
    return str(n.b.add(steps, n.b.unsqueeze(n.cast(cache.places, dtype), dims=[1])))


def _rotated(n: OnnxLoweringContext, cache: _Cache, x: str) -> str:
    """Return queries or keys rotated by their positions. Before the first call, the first position given is that of the first key in every example."""
    size = 2 * numbers(n.spec(7).shape[1:], "its rotated size")[0]
    tables = [n.input(7), n.input(8)]
    positions = n.opt(9)
    if positions is None and cache.places is None:
        tables = [str(n.b.call("slice", t, dim=0, start=0, end=cache.length, step=1)) for t in tables]
    elif positions is None:
        positions = _query_places(n, cache, DType.INT64)
    elif cache.places is None:
        first = n.b.call(
            "slice", n.b.view(positions, size=[cache.batch * cache.length]), dim=0, start=0, end=1, step=1
        )
        rows = n.b.add(_query_places(n, cache, n.spec(9).dtype), n.b.unsqueeze(first, dims=[1]))
        positions = str(n.b.expand(rows, size=[cache.batch, cache.length]))
    if positions is not None:
        positions = checked(n, positions, n.spec(7).shape[0])
    return str(n.b.rope(x, *tables, positions, interleaved=bool(n.attr("rotary_interleaved", 0)), size=size))


def _stored(n: OnnxLoweringContext, cache: _Cache, past: int, new: str) -> str:
    """Return the cache after the call; slots behind an example's last key are 0."""
    if cache.places is None:
        return _grown(n, new, cache.length, cache.slots)
    old = _grown(n, n.input(past), n.spec(past).shape[2], cache.slots)
    written = n.b.tensor_scatter(old, new, cache.places, dim=2, mode="linear")
    used = n.b.unsqueeze(_up_to_end(n, cache, cache.slots), dims=[1, 3])
    return str(n.b.where(used, written, n.like(0.0)))


def _grown(n: OnnxLoweringContext, x: str, have: DimLike, want: DimLike) -> str:
    """Return [batch, heads, length, size] with zeros behind its last key."""
    return x if have == want else str(n.b.pad(x, pads=[0, 0, 0, 0, 0, 0, want - have, 0]))


def _up_to_end(n: OnnxLoweringContext, cache: _Cache, keys: DimLike) -> str:
    """Return which keys are not behind the last one of their example, [batch, keys]."""
    kind = n.spec(5).dtype
    ends = cache.ends or n.b.full(size=[1], value=cache.length - 1, dtype=kind)
    places = n.b.arange(start=0, end=keys, step=1, dtype=kind)
    return str(n.b.le(places, n.b.unsqueeze(ends, dims=[1])))


def _padding(n: OnnxLoweringContext, cache: _Cache) -> str | None:
    """Return the model's bias, with the keys behind the end of each example masked, for causal attention of new keys alone."""
    bias = n.opt(10)
    added = None if bias is None else _widened(n, bias, cache.length)
    if cache.ends is None:
        return added
    seen = n.b.unsqueeze(_up_to_end(n, cache, cache.length), dims=[1, 2])
    added = n.like(0.0) if added is None else added
    return str(n.b.where(seen, added, n.like(-np.inf)))


def _window_mask(n: OnnxLoweringContext, cache: _Cache, keys: DimLike) -> str:
    """Return the keys that each query sees as added numbers, [batch or 1, 1 or heads, length, keys], with the model's own bias."""
    window, kind = int(n.attr("local_window_size", -1)), n.spec(5).dtype
    at = n.b.unsqueeze(_query_places(n, cache, kind), dims=[2])
    places = n.b.arange(start=0, end=keys, step=1, dtype=kind)
    if n.attr("causal", 1):
        seen = n.b.le(places, at)
        if window >= 0:
            first = n.b.sub(at, n.b.constant(np.asarray(window, kind.numpy)))
            seen = n.b.logical_and(seen, n.b.gt(places, first))
        seen = n.b.unsqueeze(seen, dims=[1])
        if cache.places is None and cache.ends is not None:
            seen = n.b.logical_and(seen, n.b.unsqueeze(_up_to_end(n, cache, keys), dims=[1, 2]))
    else:
        seen = n.b.unsqueeze(_up_to_end(n, cache, keys), dims=[1, 2])
    bias = n.opt(10)
    if bias is None:
        added = n.like(0.0)
    else:
        added = _widened(n, bias, keys)
    return str(n.b.where(seen, added, n.like(-np.inf)))


def _widened(n: OnnxLoweringContext, bias: str, keys: DimLike) -> str:
    """Return a bias with as many columns as there are keys; those behind the last key are masked anyway."""
    have = n.spec_of(bias).shape[3]
    if have == keys:
        return bias
    if isinstance(have, int) and isinstance(keys, int) and have > keys:
        return str(n.b.call("slice", bias, dim=3, start=0, end=keys, step=1))
    return str(n.b.pad(bias, pads=[0, 0, 0, 0, 0, 0, 0, keys - have]))


def _with_sink(n: OnnxLoweringContext, keys: str, values: str, mask: str, sink: str) -> tuple[str, str, str]:
    """Return keys, values and mask with one key more: its score is the sink, and its value is 0."""
    batch, heads, _, size = n.spec_of(keys).shape
    zeros = n.b.expand(n.like(0.0), size=[batch, heads, 1, size])
    shape = n.spec_of(mask).shape
    columns = n.spec_of(sink).shape or (1,)
    column = n.b.view(n.cast(sink, n.spec().dtype), size=[1, columns[0], 1, 1])
    rows: Sequence[DimLike] = (shape[0], columns[0] if shape[1] == 1 else shape[1], shape[2])
    wide = n.b.expand(mask, size=[*rows, shape[3]])
    return (
        str(n.b.cat(keys, zeros, dim=2)),
        str(n.b.cat(values, zeros, dim=2)),
        str(n.b.cat(wide, n.b.expand(column, size=[*rows, 1]), dim=3)),
    )


LOWERINGS: dict[str, OpLowering] = {"GroupQueryAttention": _group_query}
