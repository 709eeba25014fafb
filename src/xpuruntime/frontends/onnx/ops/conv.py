"""Lowerings of convolutions and Col2Im."""

from __future__ import annotations

from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results, may_equal, numbers
from .window import window

__all__ = ["LOWERINGS"]


def _with_kernel(n: OnnxLoweringContext, weight: int = 1) -> tuple[OnnxLoweringContext, list[int]]:
    """Return the node with a filter of known size, and that size. Raise NotLowered if ``kernel_shape`` is another."""
    shape = n.spec(weight).shape
    kernel = list(n.attr("kernel_shape") or numbers(shape[2:], "the kernel's size"))
    if not may_equal(shape[2:], kernel):
        raise NotLowered(f"its kernel_shape is {kernel}, and its filter has {list(shape[2:])}")
    return n.with_operand(weight, n.sized(n.input(weight), (*shape[:2], *kernel))), kernel


def _conv(op: str, weight: int = 1) -> OpLowering:
    """Return the lowering of a convolution with the IR's operand order; ``weight`` is the position of the filter."""

    def lower(n: OnnxLoweringContext) -> Results:
        n, kernel = _with_kernel(n, weight)
        where = window(n, kernel, n.spec().shape[2:])
        return str(n.b.call(op, *n.inputs, **where, groups=n.attr("group", 1)))

    return lower


def _transposed(n: OnnxLoweringContext) -> Results:
    n, kernel = _with_kernel(n)
    rank = len(kernel)
    where = window(n, kernel, n.spec().shape[2:])
    stride, dilation = where["stride"], where["dilation"]
    extra = list(n.attr("output_padding") or [0] * rank)
    mode = n.attr("auto_pad", "NOTSET") or "NOTSET"
    output_shape = n.attr("output_shape")
    if mode in ("SAME_UPPER", "SAME_LOWER") and not output_shape:
        output_shape = [d * s for d, s in zip(numbers(n.spec().shape[2:], "its input"), stride, strict=True)]
    if output_shape:
        space = numbers(n.spec().shape[2:], "its input")
        begins, ends = [], []
        for i, want in enumerate(output_shape[-rank:]):
            total = stride[i] * (space[i] - 1) + extra[i] + (kernel[i] - 1) * dilation[i] + 1 - want
            if total < 0:  # output_shape is larger than the window reaches: extend the end
                extra[i], total = extra[i] - total, 0
            half, other_half = total // 2, total - total // 2
            begins.append(half if mode == "SAME_UPPER" else other_half)
            ends.append(other_half if mode == "SAME_UPPER" else half)
        pads = begins + ends
    else:
        pads = where["padding"]
    return str(
        n.b.convolution(
            *n.inputs, stride=stride, padding=pads, dilation=dilation, groups=n.attr("group", 1),
            transposed=True, output_padding=extra,
        )
    )  # fmt: skip


def _deform(n: OnnxLoweringContext) -> Results:
    n, kernel = _with_kernel(n)
    where = window(n, kernel, n.spec().shape[2:])
    bias, mask = n.opt(3), n.opt(4)
    groups = {"groups": n.attr("group", 1), "offset_groups": n.attr("offset_group", 1)}
    return str(n.b.deform_convolution(n.x, n.input(1), n.input(2), bias, mask, **where, **groups))


def _col2im(n: OnnxLoweringContext) -> Results:
    size, kernel = n.dims(1, "image shape"), n.ints(2, "block shape")
    if n.attr("auto_pad"):
        raise NotLowered("auto_pad is not supported for Col2Im")
    return str(n.b.col2im(n.x, output_size=size, kernel_size=kernel, **window(n, kernel, tuple(size))))


LOWERINGS: dict[str, OpLowering] = {
    "Col2Im": _col2im,
    "Conv": _conv("convolution"),
    "ConvInteger": _conv("convolution_integer"),
    "ConvTranspose": _transposed,
    "DeformConv": _deform,
    "QLinearConv": _conv("qlinear_convolution", weight=3),
}
