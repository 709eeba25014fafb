"""Lowerings of convolutions and Col2Im."""

from __future__ import annotations

from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results, numbers
from .window import window

__all__ = ["LOWERINGS"]


def _kernel(n: OnnxLoweringContext, weight: int = 1) -> list[int]:
    """Return the size of the kernel, that of the filter. Raise NotLowered if ``kernel_shape`` is another."""
    given, shape = n.attr("kernel_shape"), n.spec(weight).shape[2:]
    if given and any(isinstance(d, int) for d in shape) and list(shape) != list(given):
        raise NotLowered(f"its kernel_shape is {list(given)}, and its filter has {list(shape)}")
    return list(given or numbers(shape, "the kernel's size"))


def _conv(op: str, weight: int = 1) -> OpLowering:
    """Return the lowering of a convolution with the IR's operand order; ``weight`` is the position of the filter."""

    def lower(n: OnnxLoweringContext) -> Results:
        where = window(n, _kernel(n, weight), n.spec().shape[2:])
        return str(n.b.call(op, *n.inputs, **where, groups=n.attr("group", 1)))

    return lower


def _transposed(n: OnnxLoweringContext) -> Results:
    kernel = _kernel(n)
    rank = len(kernel)
    stride, dilation = list(n.attr("strides") or [1] * rank), list(n.attr("dilations") or [1] * rank)
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
        pads = [0] * (2 * rank) if mode == "VALID" else list(n.attr("pads") or [0] * (2 * rank))
    return str(
        n.b.convolution(
            *n.inputs, stride=stride, padding=pads, dilation=dilation, groups=n.attr("group", 1),
            transposed=True, output_padding=extra,
        )
    )  # fmt: skip


def _deform(n: OnnxLoweringContext) -> Results:
    where = window(n, _kernel(n), n.spec().shape[2:])
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
