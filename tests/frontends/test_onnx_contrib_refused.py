"""Forms of ONNX Runtime's ops that ONNX Runtime refuses or computes otherwise: not lowered, with a reason that names the number."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from support.contrib import packed
from support.contrib.attention import grouped
from support.contrib.case import (
    U8,
    Case,
    codes,
    differences,
    feeds_of,
    floats,
    int32,
    model_of,
    ours,
    proto_of,
    scale,
    theirs,
    typed,
)
from support.contrib.fused import CASES

from xpuruntime import InferenceSession
from xpuruntime.errors import UnavailableError
from xpuruntime.frontends.onnx.importer import import_onnx

LSTM = next(c for c in CASES if c.op == "DynamicQuantizeLSTM" and not c.note)
BITS = packed.bits(4, 5, 64, 32, zeros="packed", bias=True, note="")
CONV = Case("FusedConv", (floats(1, 3, 8, 8), floats(4, 3, 3, 3)), {"activation": "Relu"})
TRANSPOSED = Case("ConvTranspose", (floats(1, 3, 8, 8), floats(3, 4, 3, 3)), domain="")
NORM = Case(
    "SkipLayerNormalization", (floats(2, 3, 8), floats(2, 3, 8), floats(8), floats(8), floats(8)), {}, (0, 1)
)
POOL = Case(
    "QLinearAveragePool", (codes(1, 2, 5, 7), scale(0.02), U8, scale(0.02), U8), {"kernel_shape": [3, 3]}
)
ROWS = packed.rows_of(4, 16, 32, zeros=False)
TABLES = (floats(11, 4), floats(11, 4))


def with_operand(case: Case, at: int, value: Any) -> Case:
    operands = list(case.operands)
    operands[at] = value
    return case._replace(operands=tuple(operands))


def with_words(case: Case, **words: Any) -> Case:
    return case._replace(attributes={**case.attributes, **words})


REFUSED = [
    (Case("FusedMatMul", (floats(3, 4), floats(4, 5)), {"transBatchA": 1}), "transBatchA needs three dims or more, and there are 2"),
    (Case("FusedMatMul", (floats(1, 7, 2), floats(7)), {"transA": 1}), "a transposed matrix times a vector"),
    (Case("FusedMatMul", (floats(4, 4), floats(4, 4)), {"transA": 5}), "'transA' is 5; only 0 and 1"),
    (Case("FusedGemm", (floats(4, 3), floats(3, 5))), "FusedGemm without an activation"),
    (Case("FusedGemm", (floats(4, 3), floats(3, 5)), {"activation": "LeakyRelu", "activation_beta": 0.3}), "needs 1 numbers and has 0"),
    (with_words(CONV, activation="LeakyRelu"), "'LeakyRelu' needs 1 numbers and has 0"),
    (with_words(CONV, activation="Clip", activation_params=[-0.5, 0.5, 3.0]), "'Clip' needs 2 numbers and has 3"),
    (with_words(CONV, kernel_shape=[3, 4]), r"kernel_shape is \[3, 4\], and its filter has \[3, 3\]"),
    (with_words(CONV, auto_pad="SAME"), "auto_pad 'SAME' is not supported"),
    (with_words(CONV, pads=[0, 0, -1, 1]), r"pads are \[0, 0, -1, 1\]; 4 numbers from 0 on"),
    (with_words(CONV, strides=[1, 0]), r"strides are \[1, 0\]; 2 numbers from 1 on"),
    (with_words(TRANSPOSED, auto_pad="FOO"), "auto_pad 'FOO' is not supported"),
    (with_words(TRANSPOSED, pads=[-1, -1, -1, -1]), r"pads are \[-1, -1, -1, -1\]; 4 numbers from 0 on"),
    (with_words(CONV, dilations=[1]), r"dilations are \[1\]; 2 numbers from 1 on"),
    (Case("NhwcMaxPool", (codes(1, 5, 5, 2),), {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER", "dilations": [2, 2]}), "auto_pad SAME with dilations"),
    (with_words(POOL, ceil_mode=1, count_include_pad=1, pads=[1, 1, 1, 1]), "ceil_mode with count_include_pad"),
    (Case("BiasGelu", (floats(2, 3, 5), floats(1))), "bias is float32.1. instead of one dim of 5"),
    (with_operand(NORM, 2, floats(1)), "gamma is float32.1. instead of one dim of 8"),
    (with_operand(NORM, 4, floats(1)), "bias is float32.1. instead of one dim of 8"),
    (with_operand(NORM, 1, floats(2, 1, 8)), "a skip .* is not supported"),
    (with_words(NORM, epsilon=-1.0), "epsilon is -1.0"),
    (with_words(NORM, epsilon=float("nan")), "epsilon is nan"),
    (Case("QGemm", (codes(4, 8), scale(0.02), U8, codes(8, 6), scale(0.03), U8, None, scale(0.4))), "without its zero point"),
    (Case("MatMulIntegerToFloat", (codes(3, 5), codes(5, 7), scale(0.02).reshape(1, 1), scale(0.02))), "a scale or zero point .* is not supported"),
    (Case("DynamicQuantizeMatMul", (floats(5, 7), codes(7, 7), scale(0.02), None, floats(1))), "bias is float32.1. instead of one dim of 7"),
    (Case("QuantizeLinear", (floats(1, 5), scale(0.02).repeat(5)), {"axis": 0}), "the scale's dim and the axis of x must be equal"),
    (with_operand(LSTM, 4, int32(4, 4)), "the number of lengths and the batch must be equal"),
    (Case("RotaryEmbedding", (floats(2, 5, 24), np.array([0]), *TABLES), {"num_heads": 2}, (0, 1)), "2 heads of 8 elements do not make up 24"),
    (Case("RotaryEmbedding", (floats(2, 5, 24), np.array([0]), *TABLES), {"num_heads": 2, "rotary_embedding_dim": 6}, (0, 1)), "rotary_embedding_dim is 6, and its tables rotate 8"),
    (grouped(5, None, 5, (4,), causal=0, local_window_size=2, note=""), "a window of attention that is not causal"),
    (with_operand(BITS, 1, BITS.operands[1].astype(np.int8)), "codes are int8.* instead of uint8"),
    (with_operand(BITS, 1, BITS.operands[1].reshape(-1)), "codes are uint8.160. instead of uint8.5, 2, 16."),
    (with_operand(BITS, 2, np.ascontiguousarray(BITS.operands[2].T)), "scales are float32.2, 5. instead of float32.5, 2. or float32.10."),
    (with_operand(BITS, 2, BITS.operands[2].astype(np.float16)), "scales are float16"),
    (with_operand(BITS, 3, codes(9)), "zero points are uint8.9. instead of uint8.5, 1. or uint8.5."),
    (with_operand(BITS, 5, floats(1)), "bias are float32.1. instead of float32.5."),
    (with_words(BITS, block_size=24), "blocks of 24 are not supported"),
    (with_words(BITS, weight_prepacked=1), "'weight_prepacked' is 1; only 0"),
    (packed.bits(2, 5, 64, 32, groups=True, note=""), "g_idx next to codes of 2 bits"),
    (packed.bits(8, 5, 64, 32, groups=True, note=""), "g_idx next to codes of 8 bits"),
    (with_operand(ROWS, 2, floats(9, 3)), "scales float32.9, 3. of 32 columns in blocks of 16"),
    (with_words(ROWS, quantize_axis=5), "only rows of the first dim with blocks along the last one"),
    (with_words(ROWS, block_size=8), "blocks of 8 are not supported"),
    (Case("Attention", (floats(2, 4, 8), floats(8, 24), floats(1)), {"num_heads": 2}), "bias is float32.1. instead of one dim of 24"),
    (Case("RotaryEmbedding", (floats(2, 3, 4, 16), np.array([0]), *TABLES), {}, (0, 1)), "heads have 16 elements, and its tables rotate 8"),
]  # fmt: skip


@pytest.mark.parametrize(("case", "reason"), REFUSED, ids=lambda v: getattr(v, "op", None))
def test_a_form_is_refused_with_its_reason(case: Case, reason: str) -> None:
    (opaque,) = (n for n in import_onnx(proto_of(case)).graph.nodes if n.op == "opaque")
    assert re.search(reason, str(opaque.attrs["reason"])), opaque.attrs["reason"]


def test_a_session_names_the_node_and_the_reason() -> None:
    model = typed(with_operand(BITS, 1, BITS.operands[1].astype(np.int8)), [floats(2, 3, 5)])
    with pytest.raises(
        UnavailableError, match=r"MatMulNBits \(the_node\) has no form in the IR: its codes are int8"
    ):
        InferenceSession(model, engine="native", device="cpu")


def test_a_norm_has_the_type_of_its_scale() -> None:
    for x, weight in ((np.float16, np.float32), (np.float32, np.float16)):
        case = Case(
            "SimplifiedLayerNormalization", (floats(3, 7).astype(x), floats(7).astype(weight)), domain=""
        )
        model, feeds = model_of(case)
        assert differences(ours(model, feeds)[0], theirs(model, feeds)[0]) <= 2e-3


def test_the_first_position_of_a_prompt_is_that_of_every_example() -> None:
    """As ONNX Runtime documents it; later calls have a position for each key."""
    case = grouped(5, None, 5, (4, 4), rotary=8, positions=True, note="")
    case = with_operand(case, 9, np.array([[3, 1, 0, 2, 4], [2, 2, 2, 2, 2]]))
    model, feeds = model_of(case)
    for got, want in zip(ours(model, feeds), theirs(model, feeds), strict=True):
        assert differences(got, want) <= 2e-5
    case = with_operand(grouped(3, 6, 9, (8,), rotary=8, positions=True, note=""), 9, np.array([[2, 7, 1]]))
    model, feeds = model_of(case)
    assert differences(ours(model, feeds_of(case))[0], theirs(model, feeds)[0]) <= 2e-5
