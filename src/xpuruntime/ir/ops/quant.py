"""Quantization, and products of quantized values, with ONNX semantics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...types import DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, Operand, op
from ._shapes import broadcast, like
from .conv import CONV_ATTRS, conv_shape
from .matmul import matmul_shape

__all__ = ["ROWS"]

_BLOCK = "axis: axis = 1, block_size: int = 0"


def _scale(c: OpCall, x: TensorSpec) -> None:
    """Check that the scale is a scalar, one value per index along axis, or blocked along it."""
    scale, zero = c.tensor(1), c.optional(2)
    if zero is not None and zero.shape != scale.shape:
        raise Mismatch("scale and zero point must have one shape", f"{scale} and {zero}")
    if c["block_size"] and scale.rank != x.rank:
        raise Mismatch("a blocked scale must have x's rank", f"{scale} for {x}")


def _place_axis(attrs: dict[str, Any], operands: Sequence[Operand]) -> None:
    """Set the unused axis of a scalar scale to 0 (ONNX's default may be outside the rank)."""
    scale = operands[1] if len(operands) > 1 else None
    if isinstance(scale, TensorSpec) and all(d == 1 for d in scale.shape) and not attrs["block_size"]:
        attrs["axis"] = 0


def _quantize(c: OpCall) -> TensorSpec:
    x, zero = c.tensor(0), c.optional(2)
    _scale(c, x)
    if zero is not None and zero.dtype is not c["dtype"]:
        raise Mismatch("dtype must be the zero point's", f"{c['dtype'].value} and {zero.dtype.value}")
    return TensorSpec(x.shape, c["dtype"])


def _dequantize(c: OpCall) -> TensorSpec:
    x, scale = c.tensor(0), c.tensor(1)
    _scale(c, x)
    return TensorSpec(x.shape, c["dtype"] or scale.dtype)


def _dynamic(c: OpCall) -> list[TensorSpec]:
    return [
        TensorSpec(c.tensor().shape, DType.UINT8),
        TensorSpec((), DType.FLOAT32),
        TensorSpec((), DType.UINT8),
    ]


def _integer(*specs: TensorSpec) -> None:
    for spec in specs:
        if not spec.dtype.is_integer and not spec.dtype.value.startswith("float8"):
            raise Mismatch("needs quantized operands", spec.dtype.value)


def _matmul_integer(c: OpCall) -> TensorSpec:
    a, b = c.tensor(0), c.tensor(1)
    _integer(a, b)
    return TensorSpec(matmul_shape(a, b), DType.INT32)


def _conv_integer(c: OpCall) -> TensorSpec:
    x, weight = c.tensor(0), c.tensor(1)
    _integer(x, weight)
    return TensorSpec(conv_shape(c, x, weight), DType.INT32)


def _qlinear_matmul(c: OpCall) -> TensorSpec:
    a, b, zero = c.tensor(0), c.tensor(3), c.tensor(7)
    _integer(a, b)
    return TensorSpec(matmul_shape(a, b), zero.dtype)


def _qlinear_conv(c: OpCall) -> TensorSpec:
    x, weight, zero = c.tensor(0), c.tensor(3), c.tensor(7)
    _integer(x, weight)
    return TensorSpec(conv_shape(c, x, weight), zero.dtype)


def _fake_quantize(c: OpCall) -> TensorSpec:
    x, scale, zero = c.tensor(0), c.tensor(1), c.tensor(2)
    broadcast(scale.shape, zero.shape)
    return like(x)


ROWS: tuple[OpEntry, ...] = (
    op(
        f"quantize_linear(x, scale, zero_point?; dtype: dtype, {_BLOCK}, saturate: bool = true,"
        " precision: dtype? = none) -> y",
        "quantize",
        _quantize,
        place=_place_axis,
        aten="quantize_per_tensor quantize_per_channel",
        onnx="QuantizeLinear",
        meaning="saturate(round_half_even(x / scale) + zero_point); axis applies if scale has rank 1 or is blocked",
    ),
    op(
        f"dequantize_linear(x, scale, zero_point?; dtype: dtype? = none, {_BLOCK}) -> y",
        "quantize",
        _dequantize,
        place=_place_axis,
        aten="dequantize",
        onnx="DequantizeLinear",
        meaning="(x - zero_point) * scale",
    ),
    op(
        "dynamic_quantize_linear(x) -> y, scale, zero_point",
        "quantize",
        _dynamic,
        onnx="DynamicQuantizeLinear",
    ),
    op(
        "fake_quantize(x, scale, zero_point; quant_min: int, quant_max: int, axis: axis? = none) -> y",
        "quantize",
        _fake_quantize,
        aten="fake_quantize_per_tensor_affine fake_quantize_per_channel_affine",
    ),
    op(
        "matmul_integer(x, other, x_zero_point?, other_zero_point?) -> y",
        "matmul",
        _matmul_integer,
        onnx="MatMulInteger",
    ),
    op(
        f"convolution_integer(x, weight, x_zero_point?, weight_zero_point?; {CONV_ATTRS}) -> y",
        "conv",
        _conv_integer,
        onnx="ConvInteger",
    ),
    op(
        "qlinear_matmul(x, x_scale, x_zero_point, other, other_scale, other_zero_point, y_scale, y_zero_point) -> y",
        "matmul",
        _qlinear_matmul,
        onnx="QLinearMatMul",
    ),
    op(
        "qlinear_convolution(x, x_scale, x_zero_point, weight, weight_scale, weight_zero_point, y_scale, y_zero_point,"
        f" bias?; {CONV_ATTRS}) -> y",
        "conv",
        _qlinear_conv,
        onnx="QLinearConv",
    ),
)
