"""Between floating point and integers with a scale. QDQ pairs stay as they are in the model."""

from __future__ import annotations

from ....types import DType
from .context import Results, Row, Site

__all__ = ["ROWS"]


def _axis(n: Site) -> int:
    """The axis counts only where the scale has one; elsewhere ONNX's default may be outside the rank."""
    return n.axis(1) if n.spec(1).rank else 0


def _operands(n: Site) -> list[str | None]:
    """Scale and zero point of one value each may differ in rank; the IR wants one shape."""
    operands = list(n.inputs)
    if n.opt(2) and n.spec(1).shape != n.spec(2).shape:
        operands[2] = str(n.b.view(n.input(2), size=n.spec(1).shape))
    return operands


def _quantize(n: Site) -> Results:
    wanted, precision = n.attr("output_dtype", 0), n.attr("precision", 0)
    dtype = n.spec(2).dtype if n.opt(2) else n.dtype(wanted) if wanted else DType.UINT8
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


def _dequantize(n: Site) -> Results:
    wanted = n.attr("output_dtype", 0)
    return str(
        n.b.dequantize_linear(
            *_operands(n),
            dtype=n.dtype(wanted) if wanted else None,
            axis=_axis(n),
            block_size=n.attr("block_size", 0),
        )
    )


ROWS: dict[str, Row] = {
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": lambda n: tuple(n.b.dynamic_quantize_linear(n.x)),
    "QuantizeLinear": _quantize,
}
