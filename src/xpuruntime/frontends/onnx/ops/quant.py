"""Lowerings of quantization. QDQ pairs stay as they are in the model."""

from __future__ import annotations

from ....types import DType
from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]


def _axis(n: OnnxLoweringContext) -> int:
    """Return the axis if the scale has dims, else 0: ONNX's default may be outside the rank."""
    return n.axis(1) if n.spec(1).rank else 0


def _operands(n: OnnxLoweringContext) -> list[str | None]:
    """Return the operands with a zero point of the scale's shape; with one value each they may differ in rank."""
    operands = list(n.inputs)
    if n.opt(2) and n.spec(1).shape != n.spec(2).shape:
        operands[2] = str(n.b.view(n.input(2), size=n.spec(1).shape))
    return operands


def _quantize(n: OnnxLoweringContext) -> Results:
    output_dtype, precision = n.attr("output_dtype", 0), n.attr("precision", 0)
    dtype = n.spec(2).dtype if n.opt(2) else n.dtype(output_dtype) if output_dtype else DType.UINT8
    return str(
        n.b.quantize_linear(
            *_operands(n),
            dtype=dtype,
            axis=_axis(n),
            block_size=n.attr("block_size", 0),
            saturate=bool(n.attr("saturate", 1)),
            precision=n.dtype(precision) if precision else None,
        )
    )


def _dequantize(n: OnnxLoweringContext) -> Results:
    output_dtype = n.attr("output_dtype", 0)
    return str(
        n.b.dequantize_linear(
            *_operands(n),
            dtype=n.dtype(output_dtype) if output_dtype else None,
            axis=_axis(n),
            block_size=n.attr("block_size", 0),
        )
    )


LOWERINGS: dict[str, OpLowering] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": lambda n: tuple(n.b.dynamic_quantize_linear(n.x)),
    "QuantizeLinear": _quantize,
}
