"""Expansions of the gradients of convolutions and pools, which are products and sums over sliding windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...ir.ops._shapes import pads
from ...types import DType
from .expansion import Expansion

__all__ = ["expand_avg_pool_backward", "expand_convolution_backward", "expand_max_pool_backward"]


def expand_convolution_backward(emit: Expansion) -> None:
    """Expand the op if its sizes are static.

    The gradient of x is a convolution of the other kind. That of the weight is one product of the gradient with the windows of x (``im2col``).
    """
    grad, x, weight = (emit.input(i) for i in range(3))
    if not all(_static(emit, v) for v in (grad, x, weight)):
        return
    grad_x, grad_weight, grad_bias = emit.node.outputs
    if any(0 in emit.spec(v).shape for v in (grad, x, weight)):
        for value in emit.node.outputs:
            _forward(emit, value.name, _zeros(emit, value.name))
        return
    _forward(emit, grad_x.name, _data_gradient(emit, grad, x, weight))
    transposed = emit.node.attrs["transposed"]
    strided, windowed = (x, grad) if transposed else (grad, x)
    _forward(emit, grad_weight.name, _weight_gradient(emit, strided, windowed, weight))
    channels = [0, *range(2, emit.spec(grad).rank)]
    _forward(emit, grad_bias.name, emit("sum", emit.wide(0), dim=channels))


def _data_gradient(emit: Expansion, grad: str, x: str, weight: str) -> str:
    attrs = emit.node.attrs
    window = {k: attrs[k] for k in ("stride", "padding", "dilation", "groups")}
    size, kernel = _space(emit, x), _space(emit, weight)
    if attrs["transposed"]:
        result = emit("convolution", grad, weight, **window)
        for dim, (have, want) in enumerate(zip(_space(emit, result), size, strict=True), 2):
            if have != want:  # output_padding may exceed the stride where the window is dilated
                result = emit("slice", result, dim=dim, start=0, end=want)
        return result
    begins, ends = pads(attrs["padding"], len(size))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, attrs["dilation"], strict=True)]
    # Elements that the stride skips at the end have no gradient.
    skipped = [
        (d + b + e - span) % s
        for d, b, e, span, s in zip(size, begins, ends, spans, attrs["stride"], strict=True)
    ]
    return emit("convolution", grad, weight, transposed=True, output_padding=skipped, **window)


def _weight_gradient(emit: Expansion, strided: str, windowed: str, weight: str) -> str:
    """Return the sum over samples and windows of the strided operand times the windows of the other one."""
    attrs = emit.node.attrs
    groups, shape = attrs["groups"], _sizes(emit, weight)
    size, kernel = _space(emit, strided), shape[2:]
    batch, rows = _sizes(emit, strided)[0], shape[0] // groups
    count, depth = math.prod(size), math.prod(shape[1:])
    columns = windowed
    stride, dilation = attrs["stride"], attrs["dilation"]
    begins, ends = pads(attrs["padding"], len(size))
    if not _is_whole(kernel, stride, begins, ends):
        # The windows at the end that the strided operand does not have are cropped.
        ends = tuple(
            (n - 1) * s + (k - 1) * d + 1 - b - w
            for n, s, k, d, b, w in zip(size, stride, kernel, dilation, begins, _space(emit, windowed), strict=True)
        )  # fmt: skip
        columns = emit(
            "im2col", windowed, kernel_size=kernel, stride=stride, padding=(*begins, *ends), dilation=dilation
        )
    left = emit("view", strided, size=(batch, groups, rows, count))
    left = emit("view", emit("permute", left, dims=(1, 2, 0, 3)), size=(groups, rows, batch * count))
    right = emit("view", columns, size=(batch, groups, depth, count))
    right = emit("view", emit("permute", right, dims=(1, 0, 3, 2)), size=(groups, batch * count, depth))
    if groups == 1:
        left, right = (emit("view", v, size=_sizes(emit, v)[1:]) for v in (left, right))
    return emit("view", emit("matmul", left, right), size=shape)


def _is_whole(
    kernel: Sequence[int], stride: Sequence[int], begins: Sequence[int], ends: Sequence[int]
) -> bool:
    """Return True if every window is one element, and every element is a window."""
    return {*kernel, *stride} == {1} and {*begins, *ends} == {0}


def expand_max_pool_backward(emit: Expansion) -> None:
    """Expand the op if its sizes are static: each window's gradient is added to the element of its maximum."""
    grad, x, indices = (emit.input(i) for i in range(3))
    if not all(_static(emit, v) for v in (grad, x)):
        return
    (result,) = emit.node.outputs
    dims = len(emit.node.attrs["kernel_size"])
    shape = _sizes(emit, x)
    size, windows = math.prod(shape[-dims:]), math.prod(_sizes(emit, grad)[-dims:])
    planes = math.prod(shape[:-dims])
    if not (size and windows and planes):
        _forward(emit, result.name, _zeros(emit, result.name))
        return
    wide = emit.wide(0)
    positions = emit("view", indices, size=(planes, windows))
    zeros = emit("full", size=(planes, size), value=0.0, dtype=emit.spec(wide).dtype)
    values = emit("view", wide, size=(planes, windows))
    total = emit("scatter", zeros, positions, values, dim=1, reduce="add")
    _forward(emit, result.name, emit("view", total, size=shape))


def expand_avg_pool_backward(emit: Expansion) -> None:
    """Expand the op if its sizes are static: each element sums the shares of its windows."""
    grad, x = emit.input(0), emit.input(1)
    if not all(_static(emit, v) for v in (grad, x)):
        return
    (result,) = emit.node.outputs
    attrs = emit.node.attrs
    kernel, stride, dilation = attrs["kernel_size"], attrs["stride"], attrs["dilation"]
    dims, shape = len(kernel), _sizes(emit, x)
    size, counts = shape[-dims:], _sizes(emit, grad)[-dims:]
    planes, taps, windows = math.prod(shape[:-dims]), math.prod(kernel), math.prod(counts)
    if not (math.prod(shape) and windows):
        _forward(emit, result.name, _zeros(emit, result.name))
        return
    begins, ends = pads(attrs["padding"], dims)
    share = emit("view", emit.wide(0), size=(planes, *counts))
    if attrs["divisor"] is not None:
        share = emit("div", share, float(attrs["divisor"]))
    else:
        for d in range(dims):
            share = _shared(emit, share, d, kernel[d], (size[d], counts[d], stride[d], dilation[d], begins[d], ends[d]))  # fmt: skip
    share = emit("expand", emit("view", share, size=(planes, 1, windows)), size=(planes, taps, windows))
    covered = [
        (n - 1) * s + (k - 1) * d + 1 - b - w
        for n, s, k, d, b, w in zip(counts, stride, kernel, dilation, begins, size, strict=True)
    ]
    total = emit(
        "col2im",
        share,
        output_size=size,
        kernel_size=kernel,
        stride=stride,
        padding=(*begins, *covered),
        dilation=dilation,
    )
    _forward(emit, result.name, emit("view", total, size=shape))


def _shared(emit: Expansion, share: str, dim: int, kernel: int, line: tuple[int, ...]) -> str:
    """Return gradients divided by the number of elements that windows have along one dim."""
    size, count, stride, dilation, begin, end = line
    first = [i * stride - begin for i in range(count)]
    low, high = (-begin, size + end) if emit.node.attrs["count_include_pad"] else (0, size)
    numbers = [sum(low <= f + t * dilation < high for t in range(kernel)) for f in first]
    if len(set(numbers)) == 1:
        return emit("div", share, float(numbers[0]))
    shape = [1] * emit.spec(share).rank
    shape[1 + dim] = count
    steps = emit("arange", start=0, end=count, dtype=DType.INT64)
    table = emit("full", size=(count,), value=float(numbers[0]), dtype=emit.spec(share).dtype)
    for i in range(1, count):
        if numbers[i] != numbers[i - 1]:
            table = emit("where", emit("ge", steps, i), float(numbers[i]), table)
    return emit("div", share, emit("view", table, size=shape))


def _sizes(emit: Expansion, value: str) -> tuple[int, ...]:
    return tuple(d for d in emit.spec(value).shape if isinstance(d, int))


def _space(emit: Expansion, value: str) -> tuple[int, ...]:
    return _sizes(emit, value)[2:]


def _static(emit: Expansion, value: str) -> bool:
    return all(isinstance(d, int) for d in emit.spec(value).shape)


def _zeros(emit: Expansion, value: str) -> str:
    spec = emit.spec(value)
    return emit("full", size=spec.shape, value=0.0, dtype=spec.dtype)


def _forward(emit: Expansion, old: str, new: Any) -> None:
    dtype = emit.spec(old).dtype
    emit.editor.forward(old, new if emit.spec(new).dtype is dtype else emit("cast", new, dtype=dtype))
