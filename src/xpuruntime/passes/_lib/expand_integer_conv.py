"""Expansions of ONNX's integer convolutions whose filters are known only at run time: in float64, in which sums of codes are exact."""

from __future__ import annotations

from typing import Any

from ...ir.interp.quant import _limits
from ...types import DType
from .expansion import Expansion

__all__ = ["expand_convolution_integer", "expand_qlinear_convolution"]

_WINDOW = ("stride", "padding", "dilation", "groups")


def expand_convolution_integer(emit: Expansion) -> None:
    """Expand (x - zero) * (weight - zero), with the sums modulo 2^32."""
    x, weight, x_zero, weight_zero = (emit.input(i) for i in range(4))
    emit.last("cast", _sums(emit, x, weight, x_zero, weight_zero), dtype=DType.INT32)


def expand_qlinear_convolution(emit: Expansion) -> None:
    """Expand the product of dequantized values, with the bias in units of both scales, quantized to the type of y's zero point."""
    x, x_scale, x_zero, weight, weight_scale, weight_zero, y_scale, y_zero, bias = (
        emit.input(i) for i in range(9)
    )
    rank = emit.node.spec.rank
    y = _sums(emit, x, weight, x_zero, weight_zero)
    if bias is not None:
        y = emit("add", y, _per_channel(emit, bias, rank, 1))
    scales = [_per_channel(emit, s, rank, 1) for s in (x_scale, weight_scale, y_scale)]
    y = emit("mul", y, emit("div", emit("mul", *scales[:2]), scales[2]))
    y = emit("add", emit("round", y), _per_channel(emit, y_zero, rank, 1))
    low, high = _limits(emit.node.spec.dtype)
    emit.last("cast", emit("clamp", y, float(low), float(high)), dtype=emit.node.spec.dtype)


def _sums(emit: Expansion, x: Any, weight: Any, x_zero: Any, weight_zero: Any) -> str:
    """Return the exact sums in float64. The padding is x's zero point: zeros after it is subtracted."""
    rank = emit.node.spec.rank
    operands = []
    for value, zero, axis in ((x, x_zero, 1), (weight, weight_zero, 0)):
        wide = emit("cast", value, dtype=DType.FLOAT64)
        operands.append(wide if zero is None else emit("sub", wide, _per_channel(emit, zero, rank, axis)))
    return emit("convolution", *operands, **{name: emit.node.attrs[name] for name in _WINDOW})


def _per_channel(emit: Expansion, value: Any, rank: int, axis: int) -> str:
    """Return one value, or one per channel, in float64 and in a shape that broadcasts."""
    wide = emit("cast", value, dtype=DType.FLOAT64)
    (count,) = {d for d in emit.spec(wide).shape if d != 1} or {1}
    return emit("view", wide, size=[count if d == axis else 1 for d in range(rank)])
