"""Window parameters of convolutions and pools: strides, dilations, and padding."""

from __future__ import annotations

from typing import Any

from ....types import DimLike
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext

__all__ = ["auto_pads", "window"]


def window(n: OnnxLoweringContext, kernel: list[int], space: tuple[DimLike, ...]) -> dict[str, Any]:
    """Return ``stride``, ``padding`` and ``dilation`` of a sliding window over ``space``."""
    rank = len(kernel)
    stride = list(n.attr("strides") or [1] * rank)
    dilation = list(n.attr("dilations") or [1] * rank)
    pads = list(n.attr("pads") or [0] * (2 * rank))
    if len(space) != rank:
        raise NotLowered(f"a window of {rank} dims does not fit an operand with {len(space)}")
    for name, values, count, least in (
        ("kernel_shape", kernel, rank, 1),
        ("strides", stride, rank, 1),
        ("dilations", dilation, rank, 1),
        ("pads", pads, 2 * rank, 0),
    ):
        if len(values) != count or min(values, default=least) < least:
            raise NotLowered(f"its {name} are {values}; {count} numbers from {least} on are needed")
    return {
        "stride": stride,
        "padding": auto_pads(n, kernel, stride, dilation, space),
        "dilation": dilation,
    }


def auto_pads(
    n: OnnxLoweringContext,
    kernel: list[int],
    stride: list[int],
    dilation: list[int],
    space: tuple[DimLike, ...],
) -> list[int]:
    """Return the padding, all begins, then all ends. SAME_* makes the output ``ceil(input / stride)`` long."""
    mode = n.attr("auto_pad", "NOTSET") or "NOTSET"
    if mode == "NOTSET":
        return list(n.attr("pads") or [0] * (2 * len(kernel)))
    if mode == "VALID":
        return [0] * (2 * len(kernel))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise NotLowered(f"auto_pad {mode!r} is not supported")
    begins, ends = [], []
    for size, k, s, d in zip(space, kernel, stride, dilation, strict=True):
        span = d * (k - 1) + 1
        if s == 1:
            total = span - 1
        elif isinstance(size, int):
            total = max((-(-size // s) - 1) * s + span - size, 0)
        else:
            raise NotLowered(f"auto_pad {mode} of a symbolic dim with stride {s} is not supported")
        half, other_half = total // 2, total - total // 2
        begins.append(half if mode == "SAME_UPPER" else other_half)
        ends.append(other_half if mode == "SAME_UPPER" else half)
    return begins + ends
