"""Convolutions for tests of kernels: one node against the interpreter, and a call as kernels see it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from support.one_kernel import Weight, channels_last, check_kernel

from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.cpu.conv.generated import GeneratedConv
from xpuruntime.kernels.kernel import NodeCall, Operand
from xpuruntime.types import DType, TensorSpec

__all__ = ["LEVELS", "conv", "conv_call", "draw"]

LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:x86-64-v4+bf16")


def draw(seed, *shape, dtype=np.float32):
    return (np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def conv(
    n=1, c=3, o=5, size=(7, 6), kernel=(3, 3), stride=None, padding=None, dilation=None, groups=1, *,
    bias=True, residual=False, act=None, transposed=False, output_padding=(), known=True, dtype=np.float32,
    last=True, kernel_row=None, pad_to=1, x=None, known_bias=False, **options,
):  # fmt: skip
    """Check one convolution; ``last``: channels-last operands and result. known, known_bias: whether filters and bias are constant."""
    d = len(size)
    stride, dilation = list(stride or [1] * d), list(dilation or [1] * d)
    padding = list(padding if padding is not None else [0] * d)
    x = draw(1, n, c, *size, dtype=dtype) if x is None else x
    shape = (c, o // groups, *kernel) if transposed else (o, c // groups, *kernel)
    w = draw(2, *shape, dtype=dtype)
    b = draw(3, o, dtype=dtype) if bias else None
    operands = [x, Weight(w) if known else w, Weight(b) if bias and known_bias else b]
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    attrs |= {"transposed": transposed, "output_padding": list(output_padding)}
    op = "convolution"
    begins, ends = (padding * 2)[:d], (padding * 2)[d : 2 * d] if len(padding) == d else padding[d:]
    if transposed:
        extra = output_padding or [0] * d
        out = [
            (i - 1) * s + (k - 1) * w + 1 - b - e + p
            for i, s, k, w, b, e, p in zip(size, stride, kernel, dilation, begins, ends, extra, strict=True)
        ]
    else:
        out = [
            (i + b + e - w * (k - 1) - 1) // s + 1
            for i, k, s, w, b, e in zip(size, kernel, stride, dilation, begins, ends, strict=True)
        ]
    layouts = {0: channels_last(x.shape, pad_to)} if last else {}
    if residual or act:
        op = "fused_convolution"
        r = (
            draw(4, *(residual if isinstance(residual, tuple) else (n, o, *out)), dtype=dtype)
            if residual
            else None
        )
        operands.append(r)
        attrs["act"] = act or "none"
        if last and r is not None and r.shape == (n, o, *out):
            layouts[3] = channels_last(r.shape, pad_to)
    outs = {0: channels_last((n, o, *out), pad_to)} if last else {}
    return check_kernel(
        kernel_row or GeneratedConv(), op, operands, layouts=layouts, out_layouts=outs, **attrs, **options
    )


def conv_call(n, c, o, size, kernel=(3, 3), *, stride=(1, 1), padding=(1, 1), transposed=False, groups=1):
    """A convolution as kernels see it, channels last."""
    b = GraphBuilder("one")
    shape = (c, o // groups, *kernel) if transposed else (o, c // groups, *kernel)
    x, w = (
        b.input("x", TensorSpec((n, c, *size), DType.FLOAT32)),
        b.weight("w", TensorSpec(shape, DType.FLOAT32)),
    )
    b.call(
        "convolution", x, w, None, stride=list(stride), padding=list(padding), dilation=[1, 1], transposed=transposed, groups=groups,
    )  # fmt: skip
    specs = {x: b.spec(x), w: b.spec(w), "y": b.spec(b.nodes[0].outputs[0].name)}
    for value in (x, "y"):
        specs[value] = replace(specs[value], layout=channels_last(specs[value].shape))
    operands = tuple(Operand(v, specs[v], v == "w") for v in (x, w))
    return NodeCall(b.nodes[0], (*operands, None), (specs["y"],))
