"""Lowerings of ONNX Runtime's quantized ops (``com.microsoft``): dequantize, compute, quantize, which native kernels fuse to integer arithmetic."""

from __future__ import annotations

import numpy as np

from .....types import DType
from ....not_lowered import NotLowered
from .. import quant
from ..context import OnnxLoweringContext, OpLowering, Results
from ..pool import pool_window
from ..rnn import LOWERINGS as RECURRENT
from .fused import embed_norm
from .layout import channels_first, channels_last

__all__ = ["LOWERINGS", "dequantized"]


def _one(n: OnnxLoweringContext, value: str | None) -> str | None:
    """Return a scale or zero point of one element as a scalar; one per channel stays as it is."""
    if value is None or n.spec_of(value).shape != (1,):
        if value is not None and n.spec_of(value).rank > 1:
            raise NotLowered(f"a scale or zero point {n.spec_of(value)} is not supported")
        return value
    return str(n.b.view(value, size=[]))


def _floats(n: OnnxLoweringContext, x: int, scale: int, zero: int, *, axis: int = 0) -> str:
    """Return the operand at ``x`` dequantized by the operands at ``scale`` and ``zero``."""
    return dequantized(n, n.input(x), n.input(scale), n.opt(zero), axis=axis)


def dequantized(n: OnnxLoweringContext, x: str, scale: str, zero: str | None, *, axis: int = 0) -> str:
    """Return integers as floats; a scale or zero point of one element holds for all of them."""
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


def _average_pool(n: OnnxLoweringContext) -> Results:
    if n.attr("ceil_mode", 0) and n.attr("count_include_pad", 0):
        raise NotLowered(
            "ceil_mode with count_include_pad is not supported: ONNX Runtime counts beyond the padding"
        )
    x = _floats(n, 0, 1, 2)
    last = bool(n.attr("channels_last", 0))
    x = channels_first(n, x) if last else x
    window = pool_window(n, n.spec_of(x).shape[2:])
    y = n.b.avg_pool(x, **window, count_include_pad=bool(n.attr("count_include_pad", 0)))
    return _codes(n, channels_last(n, str(y)) if last else str(y), 3, 4)


def _global_average_pool(n: OnnxLoweringContext) -> Results:
    x = _floats(n, 0, 1, 2)
    last = bool(n.attr("channels_last", 0))
    x = channels_first(n, x) if last else x
    y = n.b.mean(x, dim=list(range(2, n.spec().rank)), keepdim=True)
    return _codes(n, channels_last(n, str(y)) if last else str(y), 3, 4)


def _concat(n: OnnxLoweringContext) -> Results:
    count = len(n.inputs) // 3  # two of the result, three of each operand; the last zero point may be absent
    parts = [_floats(n, 2 + 3 * i, 3 + 3 * i, 4 + 3 * i) for i in range(count)]
    return _codes(n, str(n.b.call("cat", *parts, dim=n.axis(1, n.spec(2).rank))), 0, 1, like=2)


def _where(n: OnnxLoweringContext) -> Results:
    y = n.b.where(n.x, _floats(n, 1, 2, 3), _floats(n, 4, 5, 6))
    return _codes(n, str(y), 7, 8, like=1)


def _gemm(n: OnnxLoweringContext) -> Results:
    """Lower QGemm. Its int32 bias has the scale of the product, alpha included; without a zero point of the result, that is a float."""
    if n.opt(7) is not None and n.opt(8) is None:
        raise NotLowered("a scale of the result without its zero point is not supported")
    alpha, transposed = float(n.attr("alpha", 1.0)), bool(n.attr("transB", 0))
    a = _floats(n, 0, 1, 2)
    b = _floats(n, 3, 4, 5, axis=0 if transposed else 1)
    x = str(n.b.permute(a, dims=[1, 0])) if n.attr("transA", 0) else a
    matrix = b if transposed else str(n.b.permute(b, dims=[1, 0]))
    bias = _bias_of_product(n, 6, 1, 4)
    y = str(n.b.linear(x, matrix, bias))
    if alpha != 1.0:
        y = str(n.b.mul(y, alpha))
    return y if n.opt(8) is None else _codes(n, y, 7, 8)


def _bias_of_product(n: OnnxLoweringContext, bias: int, first: int, second: int) -> str | None:
    """Return an int32 bias in floats, by the product of two scales."""
    if n.opt(bias) is None:
        return None
    scales = n.known(first), n.known(second)
    if scales[0] is not None and scales[1] is not None:
        product = np.float32(scales[0].reshape(-1)[0]) * scales[1].astype(np.float32).reshape(-1)
        step = n.b.constant(product if product.size != 1 else product.reshape(()))
    else:
        step = str(n.b.mul(_one(n, n.input(first)), _one(n, n.input(second))))
    return str(n.b.dequantize_linear(n.input(bias), step, dtype=None, axis=0, block_size=0))


def _integer_to_float(n: OnnxLoweringContext) -> Results:
    """Lower MatMulIntegerToFloat."""
    last = max(n.spec(1).rank - 1, 0)
    y = n.b.matmul(_floats(n, 0, 2, 4), _floats(n, 1, 3, 5, axis=last))
    return str(y) if n.opt(6) is None else str(n.b.add(y, n.vector(6, n.spec_of(str(y)).shape[-1], "bias")))


def _dynamic(n: OnnxLoweringContext) -> Results:
    """Lower DynamicQuantizeMatMul."""
    codes, scale, zero = n.b.dynamic_quantize_linear(n.x)
    a = dequantized(n, str(codes), str(scale), str(zero))
    y = n.b.matmul(a, _floats(n, 1, 2, 3, axis=max(n.spec(1).rank - 1, 0)))
    return str(y) if n.opt(4) is None else str(n.b.add(y, n.vector(4, n.spec_of(str(y)).shape[-1], "bias")))


def _reduce_mean(n: OnnxLoweringContext) -> Results:
    axes = [int(a) % n.spec().rank for a in n.attr("axes") or range(n.spec().rank)]
    y = n.b.mean(_floats(n, 0, 1, 2), dim=axes, keepdim=bool(n.attr("keepdims", 1)))
    return _codes(n, str(y), 3, 4)


def _embed_norm(n: OnnxLoweringContext) -> Results:
    """Lower QEmbedLayerNormalization: the tables have a scale and a zero point each."""
    tables: list[str | None] = [
        None if n.opt(i) is None else _floats(n, i, i + 6, i + 11) for i in range(2, 7)
    ]
    return embed_norm(n, tables, mask=7, positions=None)


def _lstm(n: OnnxLoweringContext) -> Results:
    """Lower DynamicQuantizeLSTM: weights are transposed codes with a scale per direction, or per gate output too."""

    def weight(at: int, scale: int) -> str:
        codes = n.cast(n.input(at), DType.FLOAT32)
        sides = []
        for position in (scale, scale + 1):
            shape = n.spec(position).shape
            value = n.cast(n.input(position), DType.FLOAT32)
            sides.append(n.b.view(value, size=[shape[0], 1, 1 if len(shape) < 2 else shape[1]]))
        floats = n.b.mul(n.b.sub(codes, sides[1]), sides[0])
        return str(n.b.permute(floats, dims=[0, 2, 1]))

    operands = [n.x, weight(1, 8), weight(2, 10), *n.inputs[3:8]]
    return RECURRENT["LSTM"](n.with_inputs(*operands, op="LSTM"))


def _wide_product(n: OnnxLoweringContext) -> Results:
    """Lower MatMulInteger16: sums in int32."""
    return str(n.b.matmul(n.cast(n.x, DType.INT32), n.cast(n.input(1), DType.INT32)))


def _sum_integers(n: OnnxLoweringContext) -> Results:
    """Lower ReduceSumInteger: sums of bytes in int32."""
    axes = [int(a) % n.spec().rank for a in n.attr("axes") or range(n.spec().rank)]
    return str(n.b.sum(n.cast(n.x, DType.INT32), dim=axes, keepdim=bool(n.attr("keepdims", 1))))


LOWERINGS: dict[str, OpLowering] = {
    "DequantizeLinear": quant.LOWERINGS["DequantizeLinear"],
    "DynamicQuantizeMatMul": _dynamic,
    "DynamicQuantizeLSTM": _lstm,
    "MatMulInteger16": _wide_product,
    "MatMulIntegerToFloat": _integer_to_float,
    "QEmbedLayerNormalization": _embed_norm,
    "QGemm": _gemm,
    "QLinearAdd": _binary("add"),
    "QLinearAveragePool": _average_pool,
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _global_average_pool,
    "QLinearLeakyRelu": _leaky_relu,
    "QLinearReduceMean": _reduce_mean,
    "QLinearMul": _binary("mul"),
    "QLinearSigmoid": _sigmoid,
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _where,
    "QuantizeLinear": quant.LOWERINGS["QuantizeLinear"],
    "ReduceSumInteger": _sum_integers,
}
