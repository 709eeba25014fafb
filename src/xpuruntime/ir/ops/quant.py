"""Quantization, and products of quantized values, with ONNX semantics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...storage.blocks import BLOCK_FORMATS
from ...types import DimLike, DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, Operand, op
from ._shapes import broadcast, like, same
from .conv import CONV_ATTRS, conv_shape
from .matmul import ACTIVATIONS, matmul_shape

__all__ = ["ROWS"]

_BLOCK = "axis: axis = 1, block_size: int = 0"
_SCALED = (
    "x_scale?, x_zero_point?, weight_scale?, weight_zero_point?, bias?, y_scale?, y_zero_point?;"
    f" dtype: dtype, act: {ACTIVATIONS} = none"
)


def _scale(c: OpCall, x: TensorSpec) -> None:
    """Check that the scale is a scalar, one value per index along axis, or blocked along it."""
    scale, zero = c.tensor(1), c.optional(2)
    if zero is not None and zero.shape != scale.shape:
        raise Mismatch("scale and zero point must have one shape", f"{scale} and {zero}")
    if c["block_size"] and scale.rank != x.rank:
        raise Mismatch("a blocked scale must have x's rank", f"{scale} for {x}")
    if scale.rank == 1 and scale.shape != (1,) and c["axis"] < x.rank:
        same(scale.shape[0], x.shape[c["axis"]], "the scale's dim and the axis of x")


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


def _scaled(c: OpCall, shape: tuple[DimLike, ...], columns: DimLike) -> TensorSpec:
    """Return the result of a quantized product, after checks of its scales, zero points and bias."""
    x, weight, dtype = c.tensor(0), c.tensor(1), c["dtype"]
    _integer(x, weight)
    for at, who in ((2, "x_scale"), (3, "x_zero_point"), (7, "y_scale"), (8, "y_zero_point")):
        spec = c.optional(at)
        if spec is not None and spec.shape not in ((), (1,)):
            raise Mismatch(f"{who} must be one value", str(spec))
    for at, who in ((4, "weight_scale"), (5, "weight_zero_point"), (6, "bias")):
        spec = c.optional(at)
        if spec is not None and spec.shape not in ((), (1,), (columns,)):
            raise Mismatch(f"{who} must be one value, or one per output channel", f"{spec} for {columns}")
    scaled = c.optional(2) is not None and c.optional(4) is not None
    if dtype is DType.INT32:
        if scaled or c.optional(7) is not None or c["act"] != "none":
            raise Mismatch("sums in int32 have no scales and no activation", c["act"])
    elif not scaled:
        raise Mismatch("x_scale and weight_scale are needed unless the result is int32", dtype.value)
    elif dtype is not DType.FLOAT32 and (not dtype.is_integer or c.optional(7) is None):
        raise Mismatch("the result is float32, or integers with y_scale", dtype.value)
    elif dtype is DType.FLOAT32 and c.optional(7) is not None:
        raise Mismatch("a float result has no y_scale", dtype.value)
    bias = c.optional(6)
    if bias is not None and bias.dtype not in (DType.INT32, DType.FLOAT32):
        raise Mismatch(
            "the bias must be int32 (added to the sums) or float32 (added after scaling)", str(bias)
        )
    return TensorSpec(shape, dtype)


def _quantized_matmul(c: OpCall) -> TensorSpec:
    a, b = c.tensor(0), c.tensor(1)
    if a.rank < 1 or b.rank < 2:
        raise Mismatch("x must have a dim and weight two", f"{a} and {b}")
    return _scaled(c, matmul_shape(a, b), b.shape[-1])


def _quantized_conv(c: OpCall) -> TensorSpec:
    x, weight = c.tensor(0), c.tensor(1)
    return _scaled(c, conv_shape(c, x, weight), weight.shape[0])


def _fake_quantize(c: OpCall) -> TensorSpec:
    x, scale, zero = c.tensor(0), c.tensor(1), c.tensor(2)
    broadcast(scale.shape, zero.shape)
    return like(x)


def _dequantize_blocks(c: OpCall) -> TensorSpec:
    x, form = c.tensor(0), BLOCK_FORMATS[c["blocks"]]
    if x.dtype is not DType.UINT8 or x.rank < 1:
        raise Mismatch("x must be rows of uint8", x)
    row = x.shape[-1]
    if not isinstance(row, int) or row % form.bytes:
        raise Mismatch(f"rows must have whole blocks of {form.bytes} bytes", x)
    return TensorSpec((*x.shape[:-1], row // form.bytes * form.values), DType.FLOAT32)


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
        f"dequantize_blocks(x; blocks: {'|'.join(BLOCK_FORMATS)}) -> y",
        "quantize",
        _dequantize_blocks,
        meaning="the values of rows that are stored in blocks of a GGUF format",
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
    op(
        f"quantized_matmul(x, weight, {_SCALED}) -> y",
        "matmul",
        _quantized_matmul,
        meaning="act((x - x_zero_point) @ (weight - weight_zero_point), as exact integers plus bias, times the scales), quantized"
        " again if dtype is an integer with y_scale; the sums themselves if dtype is int32",
    ),
    op(
        f"quantized_convolution(x, weight, {_SCALED}, {CONV_ATTRS}) -> y",
        "conv",
        _quantized_conv,
        meaning="quantized_matmul's arithmetic for a convolution; x is padded with its zero point",
    ),
)
