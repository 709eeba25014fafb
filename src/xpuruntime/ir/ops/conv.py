"""Convolutions of any rank, transposed, deformable, fused; im2col and col2im.

``padding`` is n numbers (both sides alike) or 2n: all begins, then all ends. Layout is N, C, spatial; weights are
[out, in/groups, kernel], for transposed ones [in, out/groups, kernel].
"""

from __future__ import annotations

from ...types import DimLike, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import broadcast, like, pads, product, same, spatial, text, window
from .matmul import ACTIVATIONS, one_dtype

__all__ = ["CONV_ATTRS", "ROWS", "conv_shape"]

CONV_ATTRS = "stride: ints, padding: ints, dilation: ints, groups: int = 1"
_TRANSPOSED = "transposed: bool = false, output_padding: ints = []"


def conv_shape(c: OpCall, x: TensorSpec, weight: TensorSpec, transposed: bool = False) -> tuple[DimLike, ...]:
    """Return the output shape; checks every size against every other."""
    n = x.rank - 2
    if n < 1 or weight.rank != x.rank:
        raise Mismatch("x must be [N, C, spatial...] and the weight of the same rank", f"{x} and {weight}")
    groups = c["groups"]
    spatial(c, ("stride", "dilation"), n)
    begins, ends = pads(c["padding"], n)
    kernel = weight.shape[2:]
    if groups < 1 or any(isinstance(d, int) and d % groups for d in (x.shape[1], weight.shape[0])):
        raise Mismatch("groups must divide the channels", f"{groups} for {x} and {weight}")
    if transposed:
        same(x.shape[1], weight.shape[0], "x's channels and the weight's")
        extra = c["output_padding"] or (0,) * n
        if len(extra) != n or min(extra) < 0:
            raise Mismatch(f"output_padding takes {n} numbers", list(extra))
        space = tuple(
            (d - 1) * s + (k - 1) * w + (1 - b - e + o)
            for d, k, s, w, b, e, o in zip(
                x.shape[2:], kernel, c["stride"], c["dilation"], begins, ends, extra, strict=True
            )
        )
        return (x.shape[0], weight.shape[1] * groups, *space)
    same(x.shape[1], weight.shape[1] * groups, "x's channels and the weight's times groups")
    space = tuple(
        window(d, _static(k), s, b, e, w)
        for d, k, s, w, b, e in zip(
            x.shape[2:], kernel, c["stride"], c["dilation"], begins, ends, strict=True
        )
    )
    return (x.shape[0], weight.shape[0], *space)


def _static(d: DimLike) -> int:
    if isinstance(d, int):
        return d
    raise Mismatch("the kernel's size must be known", str(d))


def _bias(bias: TensorSpec | None, channels: DimLike) -> None:
    if bias is not None:
        if bias.rank != 1:
            raise Mismatch("the bias must have rank 1", str(bias))
        same(bias.shape[0], channels, "the bias's dim and the output channels")


def _convolution(c: OpCall) -> TensorSpec:
    x, weight, bias = c.tensor(0), c.tensor(1), c.optional(2)
    shape = conv_shape(c, x, weight, c["transposed"])
    _bias(bias, shape[1])
    return TensorSpec(shape, one_dtype(x, weight, bias))


def _fused(c: OpCall) -> TensorSpec:
    y, residual = _convolution(c), c.optional(3)
    if residual is not None and broadcast(residual.shape, y.shape) != y.shape:
        raise Mismatch("the residual must broadcast to the result", f"{residual} to {text(y.shape)}")
    return y


def _deform(c: OpCall) -> TensorSpec:
    x, weight, offset, bias, mask = c.tensor(0), c.tensor(1), c.tensor(2), c.optional(3), c.optional(4)
    shape = conv_shape(c, x, weight)
    taps = product(weight.shape[2:]) * c["offset_groups"]
    for spec, factor, who in ((offset, len(weight.shape) - 2, "offset"), (mask, 1, "mask")):
        if spec is not None:
            if spec.rank != x.rank:
                raise Mismatch(f"the {who} must have x's rank", str(spec))
            same(spec.shape[1], taps * factor, f"the {who}'s channels")
    _bias(bias, shape[1])
    return TensorSpec(shape, one_dtype(x, weight, offset, bias, mask))


def _im2col(c: OpCall) -> TensorSpec:
    x = c.tensor()
    n = len(c["kernel_size"])
    spatial(c, ("kernel_size", "stride", "dilation"), n)
    if x.rank != n + 2:
        raise Mismatch(f"x must have rank {n + 2}", str(x))
    begins, ends = pads(c["padding"], n)
    sizes = zip(x.shape[2:], c["kernel_size"], c["stride"], begins, ends, c["dilation"], strict=True)
    count = product(window(*size) for size in sizes)
    return like(x, (x.shape[0], x.shape[1] * product(c["kernel_size"]), count))


def _col2im(c: OpCall) -> TensorSpec:
    x = c.tensor()
    n = len(c["kernel_size"])
    spatial(c, ("kernel_size", "stride", "dilation"), n)
    if x.rank not in (2, 3) or len(c["output_size"]) != n:
        raise Mismatch(
            f"x must be [N, C*kernel, L] and output_size {n} numbers", f"{x}, {list(c['output_size'])}"
        )
    begins, ends = pads(c["padding"], n)
    sizes = zip(c["output_size"], c["kernel_size"], c["stride"], begins, ends, c["dilation"], strict=True)
    same(x.shape[-1], product(window(*size) for size in sizes), "the number of windows and x's last dim")
    taps = product(c["kernel_size"])
    if isinstance(x.shape[-2], int) and isinstance(taps, int) and x.shape[-2] % taps:
        raise Mismatch("the kernel's size must divide x's channels", f"{taps} and {x}")
    return like(x, (*x.shape[:-2], x.shape[-2] // taps, *c["output_size"]))


ROWS: tuple[OpEntry, ...] = (
    op(
        f"convolution(x, weight, bias?; {CONV_ATTRS}, {_TRANSPOSED}) -> y",
        "conv",
        _convolution,
        aten="convolution",
        onnx="Conv ConvTranspose",
    ),
    op(
        f"fused_convolution(x, weight, bias?, residual?; {CONV_ATTRS}, {_TRANSPOSED}, act: {ACTIVATIONS} = none) -> y",
        "conv",
        _fused,
        meaning="act(convolution + bias + residual)",
    ),
    op(
        f"deform_convolution(x, weight, offset, bias?, mask?; {CONV_ATTRS}, offset_groups: int = 1) -> y",
        "conv",
        _deform,
        onnx="DeformConv",
    ),
    op(
        "im2col(x; kernel_size: ints, stride: ints, padding: ints, dilation: ints) -> y",
        "data_movement",
        _im2col,
        aten="im2col",
    ),
    op(
        "col2im(x; output_size: dims, kernel_size: ints, stride: ints, padding: ints, dilation: ints) -> y",
        "data_movement",
        _col2im,
        aten="col2im",
        onnx="Col2Im",
    ),
)
