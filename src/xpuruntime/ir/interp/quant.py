"""Quantization, and products of quantized values, with ONNX semantics."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from ...storage.blocks import block_values
from ...types import DType
from .activation import ACTIVATIONS
from .casting import cast
from .conv import convolve
from .numbers import Array, dtype_of, to, widen
from .rule import InterpRule, plain

__all__ = ["RULES"]


def _spread(scale: Array, x: Array, axis: int, block_size: int) -> Array:
    """Return a scale (or zero point) in a shape that broadcasts with x: one value, one per index along axis, or one per block of it."""
    if block_size:
        repeated = np.repeat(scale, block_size, axis=axis)
        return repeated[tuple(slice(0, d) for d in x.shape)]
    if scale.ndim == 1 and x.ndim and scale.size != 1:
        return scale.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return scale.reshape([1] * x.ndim) if scale.size == 1 else scale


def _limits(dtype: DType) -> tuple[int, int]:
    info = ml_dtypes.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def _clipped(x: Array, dtype: DType) -> Array:
    """Cast integer-valued float64 to an integer type, saturating."""
    low, high = _limits(dtype)
    return to(np.clip(x, low, high), dtype)


def quantize_linear(
    x: Array,
    scale: Array,
    zero_point: Array | None,
    *,
    dtype: DType,
    axis: int,
    block_size: int,
    saturate: bool,
    precision: DType | None,
) -> Array:
    """Compute saturate(round_half_even(x / scale) + zero_point); the quotient is rounded to ``precision``, else to the scale's type."""
    factor = _spread(scale, x, axis, block_size)
    zero = (
        np.zeros(())
        if zero_point is None
        else widen(_spread(zero_point, x, axis, block_size)).astype(np.float64)
    )
    quotient = to(widen(x).astype(np.float64) / widen(factor), precision or dtype_of(scale)).astype(
        np.float64
    )
    if dtype.is_float:
        return cast(np.asarray(quotient + zero), dtype=dtype, saturate=saturate, round_mode=None)
    return _clipped(np.rint(quotient) + zero, dtype)


def dequantize_linear(
    x: Array, scale: Array, zero_point: Array | None, *, axis: int, block_size: int
) -> Array:
    """Compute (x - zero_point) * scale."""
    factor = widen(_spread(scale, x, axis, block_size))
    values = widen(x).astype(np.float64)
    if zero_point is not None:
        values = values - widen(_spread(zero_point, x, axis, block_size)).astype(np.float64)
    return np.asarray(values * factor)


def dequantize_blocks(x: Array, *, blocks: str) -> Array:
    """Return the values of rows of blocks."""
    return block_values(x, blocks)


def dynamic_quantize_linear(x: Array) -> tuple[Array, Array, Array]:
    """Quantize to uint8 over the range of x extended to 0, in float32 as in the ONNX function."""
    f = np.float32
    low = np.minimum(f(0), x.min(initial=f(0)))
    high = np.maximum(f(0), x.max(initial=f(0)))
    scale = f((high - low) / f(255))
    zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8) if scale else np.uint8(0)
    y = np.clip(np.rint(x / scale if scale else x) + f(zero), 0, 255)
    return y.astype(np.uint8), np.asarray(scale), np.asarray(zero)


def fake_quantize(
    x: Array, scale: Array, zero_point: Array, *, quant_min: int, quant_max: int, axis: int | None
) -> Array:
    """Quantize and dequantize x: (clip(code) - zero_point) * scale, in float32 as PyTorch's kernel.

    The code is rint(x / scale) + zero_point for zero points that are integers, and rint(x / scale + zero_point) for floats. NaN has the code ``quant_min``, as there.
    """
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    at = 0 if axis is None else axis
    factor: Array = _spread(scale, x, at, 0).astype(np.float32)
    zero: Array = _spread(zero_point, x, at, 0).astype(np.float32)
    inverse: Array = 1 / factor
    scaled = x.astype(dtype) * inverse
    codes = np.rint(scaled) + zero if zero_point.dtype.kind in "iu" else np.rint(scaled + zero)
    codes = np.clip(codes, quant_min, quant_max)
    codes = np.where(np.isnan(codes), quant_min, codes)
    return np.asarray((codes - zero) * factor)


# ── products ──


def _shifted(x: Array, zero_point: Array | None, columns: bool) -> Array:
    """Compute x - zero_point in float64, in which sums of such products are exact. A vector of zero points applies to rows or columns."""
    values = widen(x).astype(np.float64)
    if zero_point is None:
        return values
    return values - widen(_rows(zero_point, x, columns)).astype(np.float64)


def _rows(value: Array, x: Array, columns: bool) -> Array:
    return value[:, None] if value.ndim == 1 and value.size > 1 and not columns and x.ndim > 1 else value


def matmul_integer(
    x: Array, other: Array, x_zero_point: Array | None, other_zero_point: Array | None
) -> Array:
    """Compute (x - zero) @ (other - zero) in int32, with zero points per row of x and per column of other."""
    return np.asarray(np.matmul(_shifted(x, x_zero_point, False), _shifted(other, other_zero_point, True)))


def qlinear_matmul(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    other: Array,
    other_scale: Array,
    other_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """Multiply dequantized values, and quantize the product."""
    product = matmul_integer(x, other, x_zero_point, other_zero_point)
    factor = widen(_rows(x_scale, x, False)) * widen(other_scale) / widen(_rows(y_scale, x, False))
    return _requantized(product * factor, _rows(y_zero_point, x, False))


def _requantized(y: Array, zero_point: Array) -> Array:
    return _clipped(np.rint(y) + zero_point.astype(np.float64), dtype_of(zero_point))


def convolution_integer(
    x: Array,
    weight: Array,
    x_zero_point: Array | None,
    weight_zero_point: Array | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Convolve (x - zero) with (weight - zero) in int32; the padding is x's zero point."""
    a = _shifted(x, None if x_zero_point is None else x_zero_point.reshape(()), True)
    b = _shifted(weight, None if weight_zero_point is None else _per_output(weight_zero_point, weight), True)
    return convolve(a, b, stride=stride, padding=padding, dilation=dilation, groups=groups)


def _per_output(value: Array, weight: Array) -> Array:
    """Return one value, or one per output channel, that broadcasts with the weight."""
    return value.reshape(-1, *[1] * (weight.ndim - 1))


def qlinear_convolution(
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    weight: Array,
    weight_scale: Array,
    weight_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    bias: Array | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Convolve dequantized values, add the bias (int32, in units of x_scale * weight_scale), and quantize."""
    y = convolution_integer(
        x,
        weight,
        x_zero_point,
        weight_zero_point,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    channels = [1, -1, *[1] * (x.ndim - 2)]
    if bias is not None:
        y = y + bias.reshape(channels)
    factor = widen(x_scale.reshape(())) * widen(weight_scale.reshape(channels)) / widen(y_scale.reshape(()))
    return _requantized(y * factor, y_zero_point.reshape(()))


def _finished(
    sums: Array,
    channels: Sequence[int],
    x_scale: Array | None,
    weight_scale: Array | None,
    bias: Array | None,
    y_scale: Array | None,
    y_zero_point: Array | None,
    dtype: DType,
    act: str,
) -> Array:
    """Return a quantized product's result from its exact sums. ``channels``: the shape of values per output channel.

    Everything after the sums is float32, each operation rounded once, in the order that ONNX Runtime's integer kernels have: without a
    float bias and with an activation that commutes with the scale, sums are multiplied by one factor x_scale * weight_scale / y_scale.
    """
    f = np.float32

    def spread(value: Array) -> Array:
        return value.reshape(channels if value.size > 1 else [1] * len(channels))

    if bias is not None and not np.issubdtype(bias.dtype, np.floating):
        sums = sums + spread(bias)
    if dtype is DType.INT32:
        return to(sums, dtype)
    assert x_scale is not None
    assert weight_scale is not None
    # Kernels sum in int32, which wraps like this.
    y: Array = to(sums, DType.INT32).astype(f)
    factor = x_scale.reshape(()).astype(f) * spread(weight_scale).astype(f)
    floating = bias is not None and np.issubdtype(bias.dtype, np.floating)
    with np.errstate(all="ignore"):
        if y_scale is not None and act in ("none", "relu", "relu6") and not floating:
            step = y_scale.reshape(()).astype(f)
            y = y * (factor / step)
            y = y if act == "none" else np.maximum(y, f(0))
            y = np.minimum(y, f(6) / step) if act == "relu6" else y
        else:
            y = y * factor
            if bias is not None and floating:
                y = y + spread(bias).astype(f)
            y = np.asarray(ACTIVATIONS[act](y.astype(np.float64))).astype(f)
            if y_scale is not None:
                y = y / y_scale.reshape(()).astype(f)
    if y_scale is None:
        return np.asarray(y)
    zero = 0.0 if y_zero_point is None else float(y_zero_point.reshape(()))
    return _clipped(np.rint(y).astype(np.float64) + zero, dtype)


def quantized_matmul(
    x: Array,
    weight: Array,
    x_scale: Array | None,
    x_zero_point: Array | None,
    weight_scale: Array | None,
    weight_zero_point: Array | None,
    bias: Array | None,
    y_scale: Array | None,
    y_zero_point: Array | None,
    *,
    dtype: DType,
    act: str,
) -> Array:
    """Multiply exact integers, then scale, activate and quantize in float32."""
    zero = None if x_zero_point is None else x_zero_point.reshape(())
    sums = np.asarray(np.matmul(_shifted(x, zero, True), _shifted(weight, weight_zero_point, True)))
    channels = [1] * (sums.ndim - 1) + [-1]
    return _finished(sums, channels, x_scale, weight_scale, bias, y_scale, y_zero_point, dtype, act)


def quantized_convolution(
    x: Array,
    weight: Array,
    x_scale: Array | None,
    x_zero_point: Array | None,
    weight_scale: Array | None,
    weight_zero_point: Array | None,
    bias: Array | None,
    y_scale: Array | None,
    y_zero_point: Array | None,
    *,
    dtype: DType,
    act: str,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Convolve exact integers, then scale, activate and quantize in float32."""
    sums = convolution_integer(
        x,
        weight,
        x_zero_point,
        weight_zero_point,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
    channels = [1, -1, *[1] * (x.ndim - 2)]
    return _finished(sums, channels, x_scale, weight_scale, bias, y_scale, y_zero_point, dtype, act)


RULES: dict[str, InterpRule] = {
    "quantize_linear": plain(quantize_linear),
    "dequantize_linear": plain(dequantize_linear),
    "dynamic_quantize_linear": plain(dynamic_quantize_linear),
    "dequantize_blocks": plain(dequantize_blocks),
    "fake_quantize": plain(fake_quantize),
    "matmul_integer": plain(matmul_integer),
    "qlinear_matmul": plain(qlinear_matmul),
    "convolution_integer": plain(convolution_integer),
    "qlinear_convolution": plain(qlinear_convolution),
    "quantized_matmul": plain(quantized_matmul),
    "quantized_convolution": plain(quantized_convolution),
}
