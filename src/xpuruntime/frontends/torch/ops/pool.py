"""Lowerings of pooling."""

from __future__ import annotations

from typing import Any

from .context import AtenLoweringContext, OpLowering, Results, per_dim

__all__ = ["LOWERINGS", "window"]


def window(n: AtenLoweringContext, rank: int) -> dict[str, Any]:
    """Return the attributes of a pooling window; the default stride is the kernel size."""
    kernel = per_dim(n["kernel_size"], rank)
    dilation = n["dilation"] if "dilation" in n.args else 1
    return {
        "kernel_size": kernel,
        "stride": per_dim(n["stride"], rank) or kernel,
        "padding": per_dim(n["padding"], rank),
        "dilation": per_dim(dilation, rank),
        "ceil_mode": n["ceil_mode"],
    }


def _avg(rank: int) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        divisor = n["divisor_override"] if "divisor_override" in n.args else None
        inside = n["count_include_pad"]
        return str(n.b.avg_pool(n.x, count_include_pad=inside, divisor=divisor, **window(n, rank)))

    return lower


def _max(rank: int, *, indices: bool = False) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        outputs = n.b.max_pool(n.x, outputs=n.needed(2) if indices else 1, **window(n, rank))
        return outputs if isinstance(outputs, str) else list(outputs)

    return lower


def _adaptive(op: str, rank: int, *, indices: bool = False) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        size = per_dim(n["output_size"], rank)
        count = n.needed(2) if indices else 1
        outputs = n.b.call(op, n.x, output_size=size, outputs=count)
        return outputs if isinstance(outputs, str) else list(outputs)

    return lower


def _unpool(rank: int) -> OpLowering:
    def lower(n: AtenLoweringContext) -> Results:
        n.ignore("stride", "padding")  # output_size determines the result
        size = per_dim(n["output_size"], rank)
        return str(n.b.max_unpool(n.x, n.t("indices"), output_size=size))

    return lower


LOWERINGS: dict[str, OpLowering] = {
    "_adaptive_avg_pool2d": _adaptive("adaptive_avg_pool", 2),
    "_adaptive_avg_pool3d": _adaptive("adaptive_avg_pool", 3),
    "adaptive_avg_pool1d": _adaptive("adaptive_avg_pool", 1),
    "adaptive_avg_pool2d": _adaptive("adaptive_avg_pool", 2),
    "adaptive_avg_pool3d": _adaptive("adaptive_avg_pool", 3),
    "adaptive_max_pool2d": _adaptive("adaptive_max_pool", 2, indices=True),
    "adaptive_max_pool3d": _adaptive("adaptive_max_pool", 3, indices=True),
    "avg_pool1d": _avg(1),
    "avg_pool2d": _avg(2),
    "avg_pool3d": _avg(3),
    "max_pool1d": _max(1),
    "max_pool2d": _max(2),
    "max_pool2d_with_indices": _max(2, indices=True),
    "max_pool3d": _max(3),
    "max_pool3d_with_indices": _max(3, indices=True),
    "max_unpool2d": _unpool(2),
    "max_unpool3d": _unpool(3),
}
