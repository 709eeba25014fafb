"""Lowerings of ONNX Runtime's quantized ops (``com.microsoft``): dequantize, compute, quantize, which native kernels fuse to integer arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....types import DType
from ...not_lowered import NotLowered
from . import quant
from .context import OnnxLoweringContext, OpLowering, Results
from .pool import pool_window

__all__ = ["LOWERINGS"]


def _one(n: OnnxLoweringContext, value: str | None) -> str | None:
    """Return a scale or zero point of one element as a scalar; one per channel stays as it is."""
    if value is None or n.spec_of(value).shape != (1,):
        return value
    return str(n.b.view(value, size=[]))


def _floats(n: OnnxLoweringContext, x: int, scale: int, zero: int, *, axis: int = 0) -> str:
    """Return the operand at ``x`` dequantized by the operands at ``scale`` and ``zero``."""
    return _dequantized(n, n.input(x), n.input(scale), n.opt(zero), axis=axis)


def _dequantized(n: OnnxLoweringContext, x: str, scale: str, zero: str | None, *, axis: int = 0) -> str:
    step, point = _one(n, scale), _one(n, zero)
    operands = [x, step] if point is None else [x, step, point]
    return str(n.b.dequantize_linear(*operands, dtype=None, axis=axis, block_size=0))


def _codes(n: OnnxLoweringContext, y: str, scale: int, zero: int, like: int = 0) -> str:
    """Return the value quantized by the operands at ``scale`` and ``zero``; without a zero point with the dtype of the operand ``like``."""
    step, point = _one(n, n.input(scale)), _one(n, n.opt(zero))
    operands = [y, step] if point is None else [y, step, point]
    dtype = n.spec_of(point).dtype if point is not None else n.spec(like).dtype
    return str(
        n.b.quantize_linear(*operands, dtype=dtype, axis=0, block_size=0, saturate=True, precision=None)
    )


def _binary(op: str) -> OpLowering:
    def lower(n: OnnxLoweringContext) -> Results:
        return _codes(n, str(n.b.call(op, _floats(n, 0, 1, 2), _floats(n, 3, 4, 5))), 6, 7)

    return lower


def _sigmoid(n: OnnxLoweringContext) -> Results:
    return _codes(n, str(n.b.sigmoid(_floats(n, 0, 1, 2))), 3, 4)


def _leaky_relu(n: OnnxLoweringContext) -> Results:
    y = n.b.leaky_relu(_floats(n, 0, 1, 2), negative_slope=n.attr("alpha", 0.01))
    return _codes(n, str(y), 3, 4)


def _softmax(n: OnnxLoweringContext) -> Results:
    axis = n.axis(-1)
    if n.attr("opset", 13) < 13 and axis != n.spec().rank - 1:
        raise NotLowered(
            "Softmax of an opset below 13 normalizes over several axes, which is not supported here"
        )
    return _codes(n, str(n.b.softmax(_floats(n, 0, 1, 2), dim=axis)), 3, 4)


def _to_channels_first(n: OnnxLoweringContext, x: str) -> str:
    rank = n.spec().rank
    return str(n.b.permute(x, dims=[0, rank - 1, *range(1, rank - 1)])) if n.attr("channels_last", 0) else x


def _to_channels_last(n: OnnxLoweringContext, y: str) -> str:
    rank = n.spec().rank
    return str(n.b.permute(y, dims=[0, *range(2, rank), 1])) if n.attr("channels_last", 0) else y


def _average_pool(n: OnnxLoweringContext) -> Results:
    x = _to_channels_first(n, _floats(n, 0, 1, 2))
    window = pool_window(n, n.spec_of(x).shape[2:])
    y = n.b.avg_pool(x, **window, count_include_pad=bool(n.attr("count_include_pad", 0)))
    return _codes(n, _to_channels_last(n, str(y)), 3, 4)


def _global_average_pool(n: OnnxLoweringContext) -> Results:
    x = _to_channels_first(n, _floats(n, 0, 1, 2))
    y = n.b.mean(x, dim=list(range(2, n.spec().rank)), keepdim=True)
    return _codes(n, _to_channels_last(n, str(y)), 3, 4)


def _concat(n: OnnxLoweringContext) -> Results:
    count = (len(n.inputs) - 2 + 2) // 3  # the last zero point may be absent
    parts = [_floats(n, 2 + 3 * i, 3 + 3 * i, 4 + 3 * i) for i in range(count)]
    return _codes(n, str(n.b.call("cat", *parts, dim=n.axis(1, n.spec(2).rank))), 0, 1, like=2)


def _where(n: OnnxLoweringContext) -> Results:
    y = n.b.where(n.x, _floats(n, 1, 2, 3), _floats(n, 4, 5, 6))
    return _codes(n, str(y), 7, 8, like=1)


def _gemm(n: OnnxLoweringContext) -> Results:
    """Lower QGemm. Its int32 bias has the scale of the product, alpha included."""
    alpha, transposed = float(n.attr("alpha", 1.0)), bool(n.attr("transB", 0))
    a = _floats(n, 0, 1, 2)
    b = _floats(n, 3, 4, 5, axis=0 if transposed else 1)
    x = str(n.b.permute(a, dims=[1, 0])) if n.attr("transA", 0) else a
    matrix = b if transposed else str(n.b.permute(b, dims=[1, 0]))
    bias = _bias_of_product(n, 6, 1, 4)
    y = str(n.b.linear(x, matrix, bias))
    if alpha != 1.0:
        y = str(n.b.mul(y, alpha))
    return y if n.opt(7) is None else _codes(n, y, 7, 8)


def _bias_of_product(n: OnnxLoweringContext, bias: int, first: int, second: int) -> str | None:
    """Return an int32 bias in floats, by the product of two scales."""
    if n.opt(bias) is None:
        return None
    scales = n.known(first), n.known(second)
    if scales[0] is not None and scales[1] is not None:
        product = np.float32(scales[0].reshape(-1)[0]) * scales[1].astype(np.float32).reshape(-1)
        step = n.b.constant(product if product.size > 1 else product.reshape(()))
    else:
        step = str(n.b.mul(_one(n, n.input(first)), _one(n, n.input(second))))
    return str(n.b.dequantize_linear(n.input(bias), step, dtype=None, axis=0, block_size=0))


def _integer_to_float(n: OnnxLoweringContext) -> Results:
    """Lower MatMulIntegerToFloat."""
    last = max(n.spec(1).rank - 1, 0)
    y = n.b.matmul(_floats(n, 0, 2, 4), _floats(n, 1, 3, 5, axis=last))
    return str(y) if n.opt(6) is None else str(n.b.add(y, n.input(6)))


def _dynamic(n: OnnxLoweringContext) -> Results:
    """Lower DynamicQuantizeMatMul."""
    codes, scale, zero = n.b.dynamic_quantize_linear(n.x)
    a = _dequantized(n, str(codes), str(scale), str(zero))
    y = n.b.matmul(a, _floats(n, 1, 2, 3, axis=max(n.spec(1).rank - 1, 0)))
    return str(y) if n.opt(4) is None else str(n.b.add(y, n.input(4)))


def _four_bits(n: OnnxLoweringContext) -> Results:
    """Lower MatMulNBits of 4-bit codes: two per byte, the lower half first, with a scale per block of a row."""
    if n.attr("bits", 4) != 4 or n.opt(4) is not None:
        raise NotLowered("MatMulNBits is supported with 4 bits and without g_idx")
    rows, size, block = (int(n.attr(a)) for a in ("N", "K", "block_size"))
    blocks = -(-size // block)
    packed = n.b.view(n.input(1), size=[rows, blocks, block // 2])
    codes = _halves(n, str(packed), [rows, blocks, block])
    zeros: Any = 8.0
    if n.opt(3) is not None:
        if n.spec(3).dtype is DType.UINT8:
            width = (blocks + 1) // 2
            points = _halves(n, str(n.b.view(n.input(3), size=[rows, width])), [rows, 2 * width])
            points = str(n.b.call("slice", points, dim=1, start=0, end=blocks, step=1))
        else:
            points = str(n.b.view(n.cast(n.input(3), n.spec().dtype), size=[rows, blocks]))
        zeros = str(n.b.view(points, size=[rows, blocks, 1]))
    scales = n.b.view(n.cast(n.input(2), n.spec().dtype), size=[rows, blocks, 1])
    weight = n.b.view(n.b.mul(n.b.sub(codes, zeros), scales), size=[rows, blocks * block])
    if blocks * block != size:
        weight = n.b.call("slice", weight, dim=1, start=0, end=size, step=1)
    return str(n.b.linear(n.x, weight, n.opt(5)))


def _halves(n: OnnxLoweringContext, packed: str, shape: list[int]) -> str:
    """Return both halves of bytes, the lower first, as floats of the first operand's dtype."""
    whole = n.b.cast(packed, dtype=DType.FLOAT32)
    high = n.b.floor(n.b.mul(whole, 1 / 16))
    low = n.b.sub(whole, n.b.mul(high, 16.0))
    last = len(n.spec_of(packed).shape)
    pairs = n.b.call("cat", *(n.b.unsqueeze(v, dims=[last]) for v in (low, high)), dim=last)
    return n.cast(str(n.b.view(pairs, size=shape)), n.spec().dtype)


LOWERINGS: dict[str, OpLowering] = {
    "DequantizeLinear": quant.LOWERINGS["DequantizeLinear"],
    "DynamicQuantizeMatMul": _dynamic,
    "MatMulIntegerToFloat": _integer_to_float,
    "MatMulNBits": _four_bits,
    "QGemm": _gemm,
    "QLinearAdd": _binary("add"),
    "QLinearAveragePool": _average_pool,
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _global_average_pool,
    "QLinearLeakyRelu": _leaky_relu,
    "QLinearMul": _binary("mul"),
    "QLinearSigmoid": _sigmoid,
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": quant.LOWERINGS["QuantizeLinear"],
}
