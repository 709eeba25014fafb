"""Lowerings of reductions and cumulative ops."""

from __future__ import annotations

import math

from ....types import DType
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_MAX_COMPARISONS = 1 << 28
"""Maximum elements of an intermediate value of mode."""


def _keep(n: AtenLoweringContext) -> bool:
    return bool(n["keepdim"]) if "keepdim" in n.args else False


def _over(op: str, *, typed: bool = False) -> OpLowering:
    """Return the lowering of a reduction over some dims or all. typed: the op computes in the argument ``dtype``."""

    def lower(n: AtenLoweringContext) -> Results:
        dim = n.axes() if "dim" in n.args else None
        attrs = {"dtype": n["dtype"]} if typed and n.args["dtype"] is not None else {}
        return str(n.b.call(op, n.x, dim=dim, keepdim=_keep(n), **attrs))

    return lower


def _truth(op: str) -> OpLowering:
    """Return the lowering of all or any; of uint8 the result is uint8."""

    def lower(n: AtenLoweringContext) -> Results:
        if n.args.get("dim") == [] and n.spec().rank:
            raise NotLowered("an empty list of dims is not supported")
        dim = n.axes() if "dim" in n.args else None
        return n.cast(str(n.b.call(op, n.x, dim=dim, keepdim=_keep(n))), n.out().dtype)

    return lower


def _var(n: AtenLoweringContext) -> Results:
    correction = n["correction"]
    degrees = 1.0 if correction is None else float(correction)
    return str(n.b.var(n.x, dim=n.axes(), keepdim=_keep(n), correction=degrees))


def _var_mean(n: AtenLoweringContext) -> Results:
    return [str(_var(n)), str(n.b.mean(n.x, dim=n.axes(), keepdim=_keep(n)))]


def _vector_norm(n: AtenLoweringContext) -> Results:
    x = n.x if n["dtype"] is None else n.cast(n.x, n["dtype"])
    return str(n.b.vector_norm(x, ord=float(n["ord"]), dim=n.axes(), keepdim=_keep(n)))


def _best(op: str) -> OpLowering:
    return lambda n: str(n.b.call(op, n.x, dim=n["dim"], keepdim=_keep(n)))


def _extreme(op: str, reduce_all: str) -> OpLowering:
    """Return the lowering of max or min: with a dim values and indices, without one a single value."""

    def lower(n: AtenLoweringContext) -> Results:
        if "dim" not in n.args:
            return str(n.b.call(reduce_all, n.x))
        values, indices = n.b.call(op, n.x, dim=n["dim"], keepdim=_keep(n))
        return [values, indices]

    return lower


def _running(op: str) -> OpLowering:
    return lambda n: str(n.b.call(op, n.x, dim=n["dim"], dtype=n["dtype"]))


def _fixed(n: AtenLoweringContext) -> tuple[int, int]:
    """Return the dim of a call, from the front, and its length. Raises NotLowered for a length that only a run knows."""
    spec = n.spec()
    dim = n["dim"] % spec.rank
    length = spec.shape[dim]
    if not isinstance(length, int):
        raise NotLowered(f"dim {dim} of its operand has a size that is not fixed")
    return dim, length


def _best_so_far(wins: str) -> OpLowering:
    """Return the lowering of cummax or cummin, in as many steps as the length has bits. wins: the comparison of a later element with an earlier
    one; NaN wins, and of equal elements the later.
    """

    def lower(n: AtenLoweringContext) -> Results:
        spec = n.spec()
        if not spec.rank:
            n.ignore("dim")
            return [n.x, str(n.b.full(size=[], value=0, dtype=DType.INT64))]
        dim, length = _fixed(n)
        places = n.b.arange(start=0, end=length, dtype=DType.INT64)
        beside = [1] * dim + [length] + [1] * (spec.rank - dim - 1)
        best, index = n.x, str(n.b.expand(n.b.view(places, size=beside), size=spec.shape))
        step = 1
        while step < length:
            pairs = [
                (n.b.slice(v, dim=dim, end=length - step), n.b.slice(v, dim=dim, start=step))
                for v in (best, index)
            ]
            (earlier, later), (before, after) = pairs
            chosen = n.b.call(wins, later, earlier)
            if spec.dtype.is_float:
                chosen = n.b.logical_or(chosen, n.b.isnan(later))
            best, index = (
                str(n.b.cat(n.b.slice(whole, dim=dim, end=step), n.b.where(chosen, new, old), dim=dim))
                for whole, new, old in ((best, later, earlier), (index, after, before))
            )
            step *= 2
        return [best, index]

    return lower


def _running_log_sum(n: AtenLoweringContext) -> Results:
    """Lower logcumsumexp, in as many steps as the length has bits; each adds two logarithms without overflow."""
    spec, result = n.spec(), n.out().dtype
    if not spec.rank:
        n.ignore("dim")
        return n.x
    dim, length = _fixed(n)
    total, step = n.cast(n.x, DType.FLOAT32 if result.bits < 32 else result), 1
    while step < length:
        before, after = n.b.slice(total, dim=dim, end=length - step), n.b.slice(total, dim=dim, start=step)
        larger = n.b.maximum(before, after)
        gap = n.b.abs(n.b.sub(before, after))
        both = n.b.add(larger, n.b.log1p(n.b.exp(n.b.neg(gap))))
        both = n.b.where(n.b.isinf(larger), larger, both)
        total = str(n.b.cat(n.b.slice(total, dim=dim, end=step), both, dim=dim))
        step *= 2
    return n.cast(total, result)


def _mode(n: AtenLoweringContext) -> Results:
    """Lower mode: the first of the longest runs of equal sorted elements, and the last position of that value. A NaN equals nothing."""
    spec, keep = n.spec(), _keep(n)
    if not spec.rank:
        n.ignore("dim")
        return [n.x, str(n.b.full(size=[], value=0, dtype=DType.INT64))]
    dim, length = _fixed(n)
    size = math.prod(d for d in spec.shape if isinstance(d, int)) * length
    if size > _MAX_COMPARISONS:
        raise NotLowered(f"it needs {size:,} comparisons; at most {_MAX_COMPARISONS:,} are supported")
    ordered, index = n.b.sort(n.x, dim=dim, descending=False, stable=True)
    beside, below = n.b.unsqueeze(ordered, dims=[dim + 1]), n.b.unsqueeze(ordered, dims=[dim])
    counts = n.b.sum(n.b.eq(beside, below), dim=[dim + 1], keepdim=False, dtype=DType.INT64)
    first = n.b.argmax(counts, dim=dim, keepdim=True)
    longest = n.b.amax(counts, dim=[dim], keepdim=True)
    last = n.b.sub(n.b.add(first, n.b.maximum(longest, 1)), 1)
    results = [n.b.gather(ordered, first, dim=dim), n.b.gather(index, last, dim=dim)]
    return [str(r) if keep else str(n.b.squeeze(r, dims=[dim])) for r in results]


def _dist(n: AtenLoweringContext) -> Results:
    return str(n.b.vector_norm(n.b.sub(n.x, n.t("other")), ord=float(n["p"]), dim=None, keepdim=False))


def _cdist(n: AtenLoweringContext) -> Results:
    n.ignore("compute_mode")
    return str(n.b.cdist(n.x, n.t("x2"), p=float(n["p"])))


LOWERINGS: dict[str, OpLowering] = {
    "_cdist_forward": _cdist,
    "_pdist_forward": lambda n: str(n.b.pdist(n.x, p=float(n["p"]))),
    "all": _truth("all"),
    "all.dim": _truth("all"),
    "all.dims": _truth("all"),
    "amax": _over("amax"),
    "amin": _over("amin"),
    "any": _truth("any"),
    "any.dim": _truth("any"),
    "any.dims": _truth("any"),
    "argmax": _best("argmax"),
    "argmin": _best("argmin"),
    "cummax": _best_so_far("ge"),
    "cummin": _best_so_far("le"),
    "cumprod": _running("cumprod"),
    "cumsum": _running("cumsum"),
    "dist": _dist,
    "linalg_vector_norm": _vector_norm,
    "logcumsumexp": _running_log_sum,
    "logsumexp": _over("logsumexp"),
    "max": _extreme("max", "amax"),
    "max.dim": _extreme("max", "amax"),
    "mean": _over("mean", typed=True),
    "mean.dim": _over("mean", typed=True),
    "min": _extreme("min", "amin"),
    "min.dim": _extreme("min", "amin"),
    "mode": _mode,
    "prod": _over("prod", typed=True),
    "prod.dim_int": _over("prod", typed=True),
    "sum": _over("sum", typed=True),
    "sum.dim_IntList": _over("sum", typed=True),
    "var.correction": _var,
    "var_mean.correction": _var_mean,
}
