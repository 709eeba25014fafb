"""Convolutions, and the inverse of im2col."""

from __future__ import annotations

from .context import NotLowered, Results, Row, Site, numbers
from .window import window

__all__ = ["ROWS"]


def _kernel(n: Site, weight: int = 1) -> list[int]:
    return list(n.attr("kernel_shape") or numbers(n.spec(weight).shape[2:], "the kernel's size"))


def _conv(op: str, weight: int = 1) -> Row:
    """Operands are in the IR's order; ``weight`` says which one it is."""

    def row(n: Site) -> Results:
        where = window(n, _kernel(n, weight), n.spec().shape[2:])
        return str(n.b.call(op, *n.inputs, **where, groups=n.attr("group", 1)))

    return row


def _transposed(n: Site) -> Results:
    kernel = _kernel(n)
    rank = len(kernel)
    stride, dilation = list(n.attr("strides") or [1] * rank), list(n.attr("dilations") or [1] * rank)
    extra = list(n.attr("output_padding") or [0] * rank)
    mode = n.attr("auto_pad", "NOTSET") or "NOTSET"
    wanted = n.attr("output_shape")
    if mode in ("SAME_UPPER", "SAME_LOWER") and not wanted:
        wanted = [d * s for d, s in zip(numbers(n.spec().shape[2:], "its input"), stride, strict=True)]
    if wanted:
        space = numbers(n.spec().shape[2:], "its input")
        begins, ends = [], []
        for i, want in enumerate(wanted[-rank:]):
            total = stride[i] * (space[i] - 1) + extra[i] + (kernel[i] - 1) * dilation[i] + 1 - want
            if total < 0:  # more is wanted than the taps reach: the end is extended
                extra[i], total = extra[i] - total, 0
            half, rest = total // 2, total - total // 2
            begins.append(half if mode == "SAME_UPPER" else rest)
            ends.append(rest if mode == "SAME_UPPER" else half)
        pads = begins + ends
    else:
        pads = [0] * (2 * rank) if mode == "VALID" else list(n.attr("pads") or [0] * (2 * rank))
    return str(
        n.b.convolution(
            *n.inputs, stride=stride, padding=pads, dilation=dilation, groups=n.attr("group", 1),
            transposed=True, output_padding=extra,
        )
    )  # fmt: skip


def _deform(n: Site) -> Results:
    where = window(n, _kernel(n), n.spec().shape[2:])
    bias, mask = n.opt(3), n.opt(4)
    groups = {"groups": n.attr("group", 1), "offset_groups": n.attr("offset_group", 1)}
    return str(n.b.deform_convolution(n.x, n.input(1), n.input(2), bias, mask, **where, **groups))


def _col2im(n: Site) -> Results:
    size, kernel = n.dims(1, "image shape"), n.ints(2, "block shape")
    if n.attr("auto_pad"):
        raise NotLowered("Col2Im has no auto_pad")
    return str(n.b.col2im(n.x, output_size=size, kernel_size=kernel, **window(n, kernel, tuple(size))))


ROWS: dict[str, Row] = {
    "Col2Im": _col2im,
    "Conv": _conv("convolution"),
    "ConvInteger": _conv("convolution_integer"),
    "ConvTranspose": _transposed,
    "DeformConv": _deform,
    "QLinearConv": _conv("qlinear_convolution", weight=3),
}
