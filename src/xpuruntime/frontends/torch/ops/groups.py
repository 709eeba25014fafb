"""Lowerings of histograms, searches among boundaries, and grouped products (routing in mixtures of experts)."""

from __future__ import annotations

import math

from ....types import DType
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_MAX_INTERMEDIATE = 1 << 28
"""Maximum elements of an intermediate value."""

_COUNTED_BOUNDARIES = 64
"""Maximum boundaries that a value is compared with one by one."""


def _bounded(shape: tuple[object, ...], op_name: str) -> None:
    """Raise NotLowered for an intermediate value that is too large. Symbolic sizes are not counted."""
    count = math.prod(d for d in shape if isinstance(d, int))
    if count > _MAX_INTERMEDIATE:
        raise NotLowered(
            f"{op_name} needs an intermediate value of {count:,} elements; at most {_MAX_INTERMEDIATE:,} are supported"
        )


def _histc(n: AtenLoweringContext) -> Results:
    """Lower histc with PyTorch's arithmetic in the input's type: trunc((x - min) * bins / (max - min)); the last bin includes max.

    Equal bounds request the range of the content. If it is not finite, which PyTorch refuses, counts are NaN.
    """
    spec, bins, low, high = n.spec(), n["bins"], n["min"], n["max"]
    if not spec.dtype.is_float:
        raise NotLowered("integer inputs are not supported")
    if low > high:
        raise NotLowered("min is larger than max")
    b = n.b
    x = str(b.view(n.x, size=[math.prod(spec.shape)]))
    width, finite = n.like(high - low, spec.dtype), None
    if low == high:
        if 0 in spec.shape:
            return str(b.full(size=[bins], value=0.0, dtype=spec.dtype))
        low, high = b.amin(x), b.amax(x)
        finite = b.logical_and(b.eq(b.sub(low, low), 0.0), b.eq(b.sub(high, high), 0.0))
        single = b.eq(low, high)
        low, high = b.where(single, b.sub(low, 1), low), b.where(single, b.add(high, 1), high)
        width = b.sub(high, low)
    inside = b.logical_and(b.ge(x, low), b.le(x, high))
    bin_index = b.div(b.mul(b.sub(b.where(inside, x, low), low), bins), width)
    bin_index = b.clamp(b.cast(bin_index, dtype=DType.INT64), None, bins - 1)
    bin_index = b.where(inside, bin_index, bins)
    size = n.spec(x).shape
    ones = b.full(size=size, value=1.0, dtype=spec.dtype)
    counts = b.full(size=[bins + 1], value=0.0, dtype=spec.dtype)
    counts = b.scatter(counts, bin_index, ones, dim=0, reduce="add", include_self=True)
    counts = b.slice(counts, dim=0, start=0, end=bins, step=1)
    return str(counts if finite is None else b.where(finite, counts, math.nan))


def _bisected(n: AtenLoweringContext, bounds: str, x: str, count: int, right: bool) -> Results:
    """Return the place of each value among ``count`` boundaries by PyTorch's own bisection, so that places among NaN or unsorted ones are the same, too."""
    b, rank, dtype = n.b, n.spec(bounds).rank, DType.INT64
    start = b.full(size=n.spec(x).shape, value=0, dtype=dtype)
    end = b.full(size=n.spec(x).shape, value=count, dtype=dtype)
    for _ in range(count.bit_length()):
        middle = b.bitwise_right_shift(b.add(start, end), 1)
        at = b.clamp(middle, None, count - 1)
        bound = b.index_select(bounds, at, dim=0) if rank == 1 else b.gather(bounds, at, dim=rank - 1)
        after = b.gt(bound, x) if right else b.ge(bound, x)
        unfinished = b.lt(start, end)
        start, end = (
            b.where(b.logical_and(unfinished, b.logical_not(after)), b.add(middle, 1), start),
            b.where(b.logical_and(unfinished, after), middle, end),
        )
    return n.cast(str(start), n.out().dtype)


def _bucket_index(sequence: str, values: str, *, scalar: bool = False) -> OpLowering:
    """Return the lowering of a search among boundaries: few ones are counted, many are bisected. NaN comes after all of them, as in PyTorch.

    scalar: the value is a number.
    """

    def lower(n: AtenLoweringContext) -> Results:
        right = n["right"]
        if "side" in n.args:
            right = right or n["side"] == "right"
        n.ignore("out_int32")
        bounds = n.t(sequence)
        if n.args.get("sorter") is not None:
            bounds = str(n.b.gather(bounds, n.t("sorter"), dim=n.spec(bounds).rank - 1))
        n.ignore("sorter")
        count = n.spec(bounds).shape[-1]
        if not scalar and isinstance(count, int) and count > _COUNTED_BOUNDARIES:
            return _bisected(n, bounds, n.t(values), count, right)
        if n.spec(bounds).rank > 1:
            bounds = str(n.b.unsqueeze(bounds, dims=[n.spec(bounds).rank - 1]))
        if scalar:
            x: float | str = n[values]
        else:
            x = str(n.b.unsqueeze(n.t(values), dims=[n.spec(n.t(values)).rank]))
            _bounded((*n.spec(x).shape, n.spec(bounds).shape[-1]), "a search among boundaries")
        is_after = n.b.gt(bounds, x) if right else n.b.ge(bounds, x)
        return n.cast(str(n.b.sum(n.b.logical_not(is_after), dim=[-1], dtype=DType.INT64)), n.out().dtype)

    return lower


def _grouped_product(rows: str, matrices: str, ends: str) -> OpLowering:
    """Return the lowering of a grouped product: rows up to ``ends[0]`` times the first matrix, up to ``ends[1]`` times the second, and so on.

    Groups are experts, of which each row chooses one. Rows after the last group give 0.
    """

    def lower(n: AtenLoweringContext) -> Results:
        a, w, offs = n.t(rows), n.t(matrices), n.opt(ends)
        if offs is None or (n.spec(a).rank, n.spec(w).rank) != (2, 3):
            raise NotLowered("only groups of rows of a matrix are supported")
        if "bias" in n.args and n["bias"] is not None:
            raise NotLowered("a bias is not supported")
        count, (groups, _, columns) = n.spec(a).shape[0], n.spec(w).shape
        b = n.b
        row = b.arange(start=0, end=count, step=1, dtype=DType.INT64)
        ends_before = b.le(b.cast(offs, dtype=DType.INT64), b.unsqueeze(row, dims=[1]))
        group = b.sum(ends_before, dim=[1], dtype=DType.INT64)
        expert = b.unsqueeze(b.clamp(group, None, groups - 1), dims=[1])
        product = b.expert_linear(a, b.permute(w, dims=[0, 2, 1]), expert)
        product = b.view(product, size=[count, columns])
        inside = b.unsqueeze(b.lt(group, groups), dims=[1])
        return n.cast(str(b.where(inside, product, 0.0)), n.out().dtype)

    return lower


LOWERINGS: dict[str, OpLowering] = {
    "_grouped_mm": _grouped_product("self", "mat2", "offs"),
    "bucketize.Scalar": _bucket_index("boundaries", "self", scalar=True),
    "bucketize.Tensor": _bucket_index("boundaries", "self"),
    "histc": _histc,
    "searchsorted.Scalar": _bucket_index("sorted_sequence", "self", scalar=True),
    "searchsorted.Tensor": _bucket_index("sorted_sequence", "self"),
    "transformers::grouped_mm_fallback": _grouped_product("input", "weight", "offs"),
}
