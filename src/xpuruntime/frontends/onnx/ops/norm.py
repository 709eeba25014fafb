"""Lowerings of normalizations."""

from __future__ import annotations

from ....types import DType
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_EPS = 1e-5


def _batch(n: OnnxLoweringContext) -> Results:
    if not n.attr("training_mode", 0):
        if n.opset < 9 and not n.attr("spatial", 1):
            raise NotLowered("statistics per position (spatial=0) are not supported")
        return str(n.b.batch_norm(*n.inputs, eps=n.attr("epsilon", _EPS)))
    return _batch_train(n)


def _batch_train(n: OnnxLoweringContext) -> Results:
    """Lower training mode: ONNX keeps ``momentum`` of the old running statistics, and takes the variance over the count (not count - 1)."""
    x, scale, bias, old_mean, old_var = (n.input(i) for i in range(5))
    axes = [i for i in range(n.spec().rank) if i != 1]
    mean, var = n.b.mean(x, dim=axes), n.b.var(x, dim=axes, correction=0.0)
    kind = n.spec(3).dtype
    statistics = [n.cast(v, kind) for v in (mean, var)]
    keep = n.attr("momentum", 0.9)
    y = n.b.batch_norm(
        x, scale, bias, *(n.cast(v, n.spec().dtype) for v in (mean, var)), eps=n.attr("epsilon", _EPS)
    )
    new = [
        str(n.b.add(n.b.mul(old, keep), n.b.mul(now, 1.0 - keep)))
        for old, now in zip((old_mean, old_var), statistics, strict=True)
    ]
    return [str(y), *new]


def _instance(n: OnnxLoweringContext) -> Results:
    return str(n.b.instance_norm(*n.inputs, eps=n.attr("epsilon", _EPS)))


def _stash(n: OnnxLoweringContext, values: tuple[str, ...]) -> Results:
    """Return the values with statistics cast to stash_type (by default float32)."""
    kind = n.dtype(n.attr("stash_type", 1))
    return [values[0], *(n.cast(v, kind) for v in values[1:])]


def _layer(n: OnnxLoweringContext) -> Results:
    axis = n.axis(-1)
    arguments = {"normalized_shape": n.spec().shape[axis:], "eps": n.attr("epsilon", _EPS)}
    if n.has_readers(1) or n.has_readers(2):
        return _stash(n, n.b.call("layer_norm", *n.inputs, outputs=3, **arguments))
    return str(n.b.layer_norm(*n.inputs, **arguments))


def _rms(n: OnnxLoweringContext) -> Results:
    scale = n.cast(n.input(1), n.spec().dtype)
    y = n.b.rms_norm(n.x, scale, normalized_shape=n.spec().shape[n.axis(-1) :], eps=n.attr("epsilon", _EPS))
    return n.cast(y, n.spec(1).dtype)


def _group(n: OnnxLoweringContext) -> Results:
    """Lower GroupNormalization; scale and bias are per group in opset 18, per channel from 21 on."""
    groups, channels = n.attr("num_groups"), n.spec().shape[1]
    affine = [n.input(1), n.input(2)]
    if n.opset < 21:
        group_size = channels // groups
        affine = [
            n.b.view(n.b.expand(n.b.unsqueeze(v, dims=[1]), size=[groups, group_size]), size=[channels])
            for v in affine
        ]
    return str(n.b.group_norm(n.x, *affine, groups=groups, eps=n.attr("epsilon", _EPS)))


def _lrn(n: OnnxLoweringContext) -> Results:
    numbers = {
        k: n.attr(a, d) for k, a, d in (("alpha", "alpha", 1e-4), ("beta", "beta", 0.75), ("k", "bias", 1.0))
    }
    return str(n.b.local_response_norm(n.x, size=n.attr("size"), **numbers))


def _lp(n: OnnxLoweringContext) -> Results:
    """Lower LpNormalization; a vector of zeros stays zeros."""
    length = n.b.vector_norm(n.x, ord=float(n.attr("p", 2)), dim=[n.axis(-1)], keepdim=True)
    if n.spec().dtype is DType.FLOAT16:
        length = n.cast(length, DType.FLOAT16)
    return str(n.b.div(n.x, n.b.where(n.b.eq(length, n.like(0)), n.like(1), length)))


def _mean_variance(n: OnnxLoweringContext) -> Results:
    """Lower MeanVarianceNormalization. ONNX's function subtracts the squared mean, which leaves rounding errors, or NaN, of a small variance."""
    dtype = n.spec().dtype
    x = n.cast(n.x, DType.FLOAT32) if dtype.bits < 32 else n.x
    over = {"dim": n.attr("axes", [0, 2, 3]), "keepdim": True}
    deviation = n.b.sub(x, n.b.mean(x, **over))
    std = n.b.sqrt(n.b.var(x, **over, correction=0.0))
    return n.cast(n.b.div(deviation, n.b.add(std, 1e-9)), dtype)


LOWERINGS: dict[str, OpLowering] = {
    "BatchNormalization": _batch,
    "GroupNormalization": _group,
    "InstanceNormalization": _instance,
    "LRN": _lrn,
    "LayerNormalization": _layer,
    "LpNormalization": _lp,
    "MeanVarianceNormalization": _mean_variance,
    "RMSNormalization": _rms,
}
