"""Lowerings of gradients, for training programs."""

from __future__ import annotations

from typing import Any

from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results
from .conv import layout
from .pool import window

__all__ = ["LOWERINGS"]


def _masked(n: AtenLoweringContext, gradients: Any) -> Results:
    """Return the gradients that ``output_mask`` selects; None for the others."""
    values = [gradients] if isinstance(gradients, str) else list(gradients)
    return [v if needed else None for v, needed in zip(values, n["output_mask"], strict=True)]


def _convolution(n: AtenLoweringContext) -> Results:
    n.ignore("bias_sizes")
    rank = n.spec(n.t("weight")).rank - 2
    gradients = n.b.convolution_backward(n.x, n.t("input"), n.t("weight"), **layout(n, rank))
    return _masked(n, gradients)


def _layer_norm(n: AtenLoweringContext) -> Results:
    operands = [n.t(k) for k in ("input", "mean", "rstd")] + [n.opt("weight"), n.opt("bias")]
    shape, count = (
        n["normalized_shape"],
        max(i for i, needed in enumerate([True, *n["output_mask"][1:]]) if needed),
    )
    results = n.b.layer_norm_backward(n.x, *operands, normalized_shape=shape, outputs=count + 1)
    values = [results] if isinstance(results, str) else list(results)
    return _masked(n, [*values, *[None] * (2 - count)])


def _group_norm(n: AtenLoweringContext) -> Results:
    n.ignore("N", "C", "HxW")
    operands = [n.t(k) for k in ("input", "mean", "rstd")] + [n.opt("weight")]
    if operands[3] is None:
        raise NotLowered("it has no weight")
    return _masked(n, n.b.group_norm_backward(n.x, *operands, groups=n["group"], outputs=3))


def _embedding(n: AtenLoweringContext) -> Results:
    attrs = {k: n[k] for k in ("num_weights", "padding_idx")}
    by_count = n["scale_grad_by_freq"]
    return str(n.b.embedding_backward(n.x, n.t("indices"), scale_by_freq=by_count, **attrs))


def _avg_pool(n: AtenLoweringContext) -> Results:
    attrs = {"count_include_pad": n["count_include_pad"], "divisor": n["divisor_override"]}
    return str(n.b.avg_pool_backward(n.x, n.t("self"), **window(n, 2), **attrs))


def _max_pool(n: AtenLoweringContext) -> Results:
    return str(n.b.max_pool_backward(n.x, n.t("self"), n.t("indices"), **window(n, 2)))


LOWERINGS: dict[str, OpLowering] = {
    "_adaptive_avg_pool2d_backward": lambda n: str(n.b.adaptive_avg_pool_backward(n.x, n.t("self"))),
    "avg_pool2d_backward": _avg_pool,
    "convolution_backward": _convolution,
    "embedding_dense_backward": _embedding,
    "max_pool2d_with_indices_backward": _max_pool,
    "native_group_norm_backward": _group_norm,
    "native_layer_norm_backward": _layer_norm,
}
