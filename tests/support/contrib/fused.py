"""Cases of ONNX Runtime's fused and quantized ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import RANDOM, S8, U8, Case, codes, floats, int32, scale, seeded

__all__ = ["CASES"]


def pair(dtype: Any = np.uint8, zero: Any = U8) -> tuple[Any, ...]:
    return codes(2, 3, 4, 5, dtype=dtype), scale(0.02), zero


seeded(2)
CASES = [
    Case("QLinearAdd", (*pair(), codes(5), scale(0.03), U8, scale(0.05), U8), {}, (0, 3)),
    Case("QLinearAdd", (*pair(np.int8, S8), codes(4, 1, dtype=np.int8), scale(0.03), S8, scale(0.05), S8), {}, (0, 3)),
    Case("QLinearMul", (*pair(), codes(3, 1, 1), scale(0.03), U8, scale(0.05), U8), {}, (0, 3)),
    Case("QLinearSigmoid", (*pair(), scale(1 / 256), np.asarray(0, np.uint8))),
    Case("QLinearLeakyRelu", (*pair(np.int8, S8), scale(0.02), S8), {"alpha": 0.2}),
    Case("QLinearSoftmax", (*pair(), scale(1 / 256), np.asarray(0, np.uint8)), {"axis": -1, "opset": 13}),
    Case("QLinearAveragePool", (*pair(), scale(0.02), U8), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1]}),
    Case("QLinearAveragePool", (*pair(), scale(0.02), U8), {"kernel_shape": [2, 2], "channels_last": 1}),
    Case("QLinearAveragePool", (*pair(), scale(0.02), U8), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    Case("QLinearGlobalAveragePool", (*pair(), scale(0.01), U8)),
    Case("QLinearGlobalAveragePool", (*pair(np.int8, S8), scale(0.01), S8), {"channels_last": 1}),
    Case("QLinearConcat", (scale(0.05), U8, codes(2, 3), scale(0.02), U8, codes(2, 4), scale(0.04), np.asarray(7, np.uint8)), {"axis": 1}, (2, 5)),
    Case("QLinearWhere", (RANDOM.random((3, 4)) > 0.5, codes(3, 4), scale(0.02), U8, codes(4), scale(0.04), U8, scale(0.05), U8), {}, (0, 1, 4)),
    Case("QGemm", (codes(4, 8), scale(0.02), U8, codes(8, 6, dtype=np.int8), scale(0.03), S8, codes(6, dtype=np.int16).astype(np.int32), scale(0.4), U8)),
    Case("QGemm", (codes(4, 8), scale(0.02), U8, codes(6, 8, dtype=np.int8), np.abs(floats(6)) / 50, np.zeros(6, np.int8), None, scale(0.4), U8), {"transB": 1}),
    Case("QGemm", (codes(8, 4), scale(0.02), U8, codes(6, 8), scale(0.03), U8, codes(6, dtype=np.int16).astype(np.int32)), {"transA": 1, "transB": 1, "alpha": 0.5}),
    Case("MatMulIntegerToFloat", (codes(2, 4, 8), codes(8, 6, dtype=np.int8), scale(0.02), np.abs(floats(6)), np.asarray(7, np.uint8), np.zeros(6, np.int8), floats(6))),
    Case("DynamicQuantizeMatMul", (floats(2, 4, 8), codes(8, 6), np.abs(floats(1)), np.asarray([128], np.uint8), floats(6))),
    Case("QuantizeLinear", (floats(3, 4), scale(0.01), np.asarray(77, np.uint16))),
    Case("DequantizeLinear", (codes(3, 4, dtype=np.int16), scale(0.01), np.asarray(5, np.int16))),
    Case("QuantizeLinear", (floats(3, 4), np.abs(floats(3)) / 50, codes(3)), {"axis": 0}, note="scales of rows"),
    Case("DequantizeLinear", (codes(3, 4), np.abs(floats(4)) / 50, codes(4)), {"axis": -1}, note="scales of columns"),
    Case("Gelu", (floats(3, 5),)),
    Case("BiasGelu", (floats(2, 3, 5), floats(5))),
    Case("FastGelu", (floats(2, 3, 5), floats(5))),
    Case("QuickGelu", (floats(3, 5),), {"alpha": 1.702}),
    Case("FusedMatMul", (floats(2, 4, 3), floats(2, 5, 4)), {"transA": 1, "transB": 1, "alpha": 0.3}, (0, 1)),
    Case("FusedGemm", (floats(4, 3), floats(3, 5), floats(5)), {"activation": "LeakyRelu", "activation_alpha": 0.2}),
    Case("FusedConv", (floats(1, 3, 8, 8), floats(4, 3, 3, 3), floats(4), floats(1, 4, 6, 6)), {"activation": "Relu"}, (0, 3)),
    Case("FusedConv", (floats(1, 3, 8, 8), floats(4, 3, 3, 3)), {"activation": "Clip", "activation_params": [0.0, 1.0]}),
    Case("SkipLayerNormalization", (floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)), {"epsilon": 1e-5}, (0, 1), (0, 3)),
    Case("SkipSimplifiedLayerNormalization", (floats(2, 3, 8), floats(2, 3, 8), floats(8)), {"epsilon": 1e-5}, (0, 1), (0, 3)),
    Case("SkipLayerNormalization", (floats(2, 3, 8) / 9999, floats(1, 3, 8) / 9999, floats(8)), {}, (0, 1)),
    Case("SkipSimplifiedLayerNormalization", (floats(2, 3, 8) / 9999, floats(3, 8) / 9999, floats(8)), {}, (0, 1)),
    Case("SimplifiedLayerNormalization", (floats(2, 3, 8), floats(8)), {"epsilon": 1e-5, "axis": -1}, domain=""),
    Case("EmbedLayerNormalization", (RANDOM.integers(0, 9, (2, 4)).astype(np.int32), RANDOM.integers(0, 2, (2, 4)).astype(np.int32), floats(9, 8), floats(6, 8), floats(2, 8), floats(8), floats(8), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)), {"epsilon": 1e-5}, (0, 1, 7), (0, 1)),
    Case("QLinearConv", (codes(2, 7, 9, 6), scale(0.02), U8, codes(4, 3, 3, 3, dtype=np.int8), np.abs(floats(4)) / 50, np.zeros(4, np.int8), scale(0.9), U8, int32(9, -500, 70, 3000)), {"channels_last": 1, "group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]}),
    Case("QLinearConv", (codes(2, 3, 7, 9), scale(0.02), U8, codes(5, 3, 3, 2, dtype=np.int8), scale(0.02), np.asarray(0, np.int8), scale(0.9), U8), {"dilations": [1, 2]}),
    Case("NhwcMaxPool", (codes(2, 7, 9, 3),), {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}),
    Case("DynamicQuantizeLSTM", (floats(4, 3, 7), codes(2, 7, 20), codes(2, 5, 20), floats(2, 40), None, None, None, None, np.abs(floats(2)) / 90, codes(2), np.abs(floats(2)) / 90, codes(2)), {"hidden_size": 5, "direction": "bidirectional"}, (0,), (0, 1, 2)),
    Case("DynamicQuantizeLSTM", (floats(4, 3, 7), codes(1, 7, 20, dtype=np.int8), codes(1, 5, 20, dtype=np.int8), floats(1, 40), None, floats(1, 3, 5), floats(1, 3, 5), None, np.abs(floats(1, 20)) / 90, np.zeros((1, 20), np.int8), np.abs(floats(1, 20)) / 90, np.zeros((1, 20), np.int8)), {"hidden_size": 5}, (0, 5, 6), (0, 1, 2), note="scales of gates"),
    Case("QEmbedLayerNormalization", (RANDOM.integers(0, 9, (2, 5)).astype(np.int32), RANDOM.integers(0, 2, (2, 5)).astype(np.int32), codes(9, 7), codes(6, 7), codes(2, 7), codes(7), codes(7), np.array([[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]], np.int32), *map(scale, (0.02, 0.01, 0.03, 0.02, 0.01)), *[np.asarray(z, np.uint8) for z in (120, 130, 90, 20, 128)]), {"epsilon": 1e-5}, (0, 1, 7), (0, 1)),
    Case("MatMulInteger16", (codes(3, 5, dtype=np.int16) // 64, codes(5, 4, dtype=np.int16) // 64), {}, (0, 1)),
    Case("CDist", (floats(5, 3), floats(7, 3)), {"metric": "sqeuclidean"}, (0, 1)),
    Case("CDist", (floats(5, 3), floats(7, 3)), {"metric": "euclidean"}, (0, 1)),
    Case("ExpandDims", (floats(3, 5), np.asarray(-1, np.int32))),
    Case("GatherND", (floats(3, 5, 2), np.array([[1, 2], [0, 4]]))),
    Case("Pad", (floats(3, 5), np.array([1, 0, 0, 2]), scale(0.5))),
    Case("Range", (int32(2).reshape(()), int32(11).reshape(()), int32(3).reshape(())), {}, ()),
    Case("Trilu", (floats(2, 3, 5), np.asarray(-1, np.int64)), {"upper": 0}),
    Case("Trilu", (floats(4, 3),)),
    Case("GridSample", (floats(2, 3, 5, 4), floats(2, 6, 3, 2))),
    Case("GridSample", (floats(1, 2, 5, 4), floats(1, 6, 3, 2)), {"mode": "bicubic", "padding_mode": "reflection", "align_corners": 1}, (0, 1)),
    Case("FusedMatMul", (floats(5, 2, 3), floats(2, 3, 7)), {"transBatchA": 1}, (0, 1), note="batches of a behind its rows"),
    Case("FusedMatMul", (floats(3, 2, 5), floats(7, 2, 3)), {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1, "alpha": 2.0}, (0, 1), note="both"),
    Case("FusedMatMul", (floats(3), floats(2, 3, 7)), {"transA": 1}, (0, 1), note="a vector"),
    Case("TransposeMatMul", (floats(2, 4, 3), floats(2, 5, 4)), {"transA": 1, "transB": 1}, (0, 1)),
    Case("QuickGelu", (floats(3, 5),), {"alpha": -0.7}, note="another alpha"),
    Case("SkipLayerNormalization", (floats(3, 5, 7), floats(5, 7), floats(7)), {}, (0, 1), (0, 3), note="one skip for all examples"),
    Case("SkipSimplifiedLayerNormalization", (floats(3, 5, 7), floats(3, 5, 7), floats(7), floats(7)), {}, (0, 1), (0, 3), note="bias"),
    Case("SkipLayerNormalization", (floats(5, 7), floats(5, 7), floats(7), floats(7)), {}, (0, 1), (0, 3), note="two dims"),
    Case("EmbedLayerNormalization", (RANDOM.integers(0, 9, (2, 4)).astype(np.int32), None, floats(9, 7), floats(6, 7), None, floats(7), floats(7), None, np.array([[0, 1, 2, 3], [5, 4, 3, 0]], np.int32)), {}, (0, 8), (0, 2), note="positions"),
    Case("FusedConv", (floats(2, 3, 7, 9), floats(4, 3, 2, 3), floats(4)), {"activation": "HardSigmoid", "activation_params": [0.3, 0.4], "strides": [1, 2], "pads": [0, 1, 1, 1]}, note="odd"),
    Case("DynamicQuantizeMatMul", (floats(3, 5, 7), codes(7, 5, dtype=np.int8), np.abs(floats(5)) / 50, np.zeros(5, np.int8)), note="scales of columns"),
    Case("MatMulIntegerToFloat", (codes(3, 5), codes(5, 7), scale(0.02), np.abs(floats(1)), np.asarray(7, np.uint8), np.asarray(130, np.uint8)), note="no bias"),
]  # fmt: skip
