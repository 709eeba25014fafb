"""Lengths and positions that are impossible: errors of the run, as in ONNX Runtime, or reasons not to lower the node."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from support.contrib.attention import grouped, multi, quantized
from support.contrib.case import Case, differences, feeds_of, floats, int32, model_of, ours, proto_of, theirs

from xpuruntime import InferenceSession
from xpuruntime.errors import IrError, RunError
from xpuruntime.frontends.onnx.importer import import_onnx

PROMPT = grouped(5, None, 5, (4, 2), note="prompt")
STEP = grouped(1, 6, 7, (6, 3), rotary=8, note="step")
STEPS = grouped(3, 11, 9, (8,), rotary=8, note="steps")
PLACED = grouped(1, 6, 7, (6, 3), rotary=8, positions=True, note="positions")
TABLES = (floats(16, 4), floats(16, 4))
ROWS = Case(
    "RotaryEmbedding", (floats(2, 4, 24), np.arange(8).reshape(2, 4), *TABLES), {}, (0, 1), note="rows"
)
START = Case("RotaryEmbedding", (floats(2, 4, 24), np.array([3]), *TABLES), {}, (0, 1), note="start")
ENDS = Case(
    "Attention",
    (floats(2, 5, 8), floats(8, 24), floats(24), int32(5, 3)),
    {"num_heads": 2},
    (0, 3),
    note="ends",
)
CODES = quantized(int32(5, 4, 2), note="ends")
WORDS = Case(
    "EmbedLayerNormalization",
    (int32(1, 8).reshape(1, 2), int32(0, 1).reshape(1, 2), floats(9, 8), floats(6, 8), floats(2, 8), floats(8), floats(8), None, int32(5, 0).reshape(1, 2)),
    {}, (0, 1, 8), (0, 2), note="words",
)  # fmt: skip

IMPOSSIBLE = [
    (PROMPT, 5, [[-5, 4], [4, -1], [5, 4]]),
    (STEP, 5, [[-1, 6], [7, 6]]),
    (STEPS, 5, [[1], [11], [-5]]),
    (PLACED, 9, [[[-1], [3]], [[10], [3]]]),
    (ROWS, 1, [[[0, 1, 2, -1], [0, 1, 2, 3]], [[0, 1, 2, 16], [0, 1, 2, 3]]]),
    (START, 1, [[-1], [13]]),
    (ENDS, 3, [[-1, 3]]),
    (CODES, 5, [[5, -3, 2]]),
    (WORDS, 0, [[[-1, 2]], [[9, 2]]]),
    (WORDS, 1, [[[-1, 1]], [[2, 1]]]),
    (WORDS, 8, [[[-1, 1]], [[6, 1]]]),
]
_EACH = [(case, at, value) for case, at, values in IMPOSSIBLE for value in values]


def changed(case: Case, at: int, value: Any) -> Case:
    operands = list(case.operands)
    operands[at] = np.asarray(value, operands[at].dtype)
    return case._replace(operands=tuple(operands))


@pytest.mark.parametrize(("case", "at", "value"), _EACH, ids=lambda v: getattr(v, "name", str(v)))
def test_an_impossible_index_is_an_error_as_in_onnx_runtime(case: Case, at: int, value: Any) -> None:
    model, _ = model_of(case)
    feeds = feeds_of(changed(case, at, value))
    with pytest.raises(Exception, match=r"range|negative|too small|out of"):
        theirs(model, feeds)
    with pytest.raises(IrError, match=r"is not defined for these values: .*(range|bounds)"):
        ours(model, feeds)


@pytest.mark.parametrize("case", [PROMPT, STEP, START, ENDS, WORDS], ids=lambda c: c.name)
def test_the_native_engine_reports_it(case: Case) -> None:
    model, feeds = model_of(case)
    with InferenceSession(model, engine="native", device="cpu") as sess:
        for other, at, value in _EACH:
            if other is case:
                with pytest.raises(RunError, match=r"index -?\d+ is outside a dim of \d+") as caught:
                    sess.run(feeds_of(changed(case, at, value)))
                reported = int(re.search(r"index (-?\d+) is outside", str(caught.value))[1])
                assert reported >= 0 or reported in np.ravel(value)
        for got, want in zip(sess.run(feeds).values(), theirs(model, feeds), strict=True):
            assert differences(got, want) <= 1e-4


def test_ends_that_onnx_runtime_accepts_are_computed() -> None:
    """An end behind all keys, also a start; MultiHeadAttention takes an end before all keys as none."""
    for case, at, value in (
        (ENDS, 3, [99, 3]),
        (CODES, 5, [99, 0, 5]),
        (multi(floats(2, 5, 9), floats(2, 7, 9), floats(2, 7, 9), None, int32(5, 2), note="")._replace(inputs=(0, 1, 2, 4)), 4, [-3, 99]),
    ):  # fmt: skip
        model, feeds = model_of(changed(case, at, value))
        assert differences(ours(model, feeds)[0], theirs(model, feeds)[0]) <= 1e-3


@pytest.mark.parametrize(
    ("case", "total"),
    [(PROMPT, t) for t in (-1, 0, 4, 6, 99)] + [(STEP, t) for t in (-1, 0, 8, 99)] + [(STEPS, t) for t in (2, 12, 99)],
)  # fmt: skip
def test_an_impossible_total_is_not_lowered(case: Case, total: int) -> None:
    other = changed(case, 6, total)
    with pytest.raises(Exception, match=r"total_sequence_length"):
        theirs(proto_of(other).SerializeToString(), feeds_of(other))
    (opaque,) = (n for n in import_onnx(proto_of(other)).graph.nodes if n.op == "opaque")
    assert f"its total sequence length is {total} for a cache of" in str(opaque.attrs["reason"])


def test_tables_with_too_few_rows_are_not_lowered() -> None:
    operands = list(STEP.operands)
    operands[7], operands[8] = operands[7][:6], operands[8][:6]
    (opaque,) = (
        n
        for n in import_onnx(proto_of(STEP._replace(operands=tuple(operands)))).graph.nodes
        if n.op == "opaque"
    )
    assert "its tables have 6 rows for 7 positions" in str(opaque.attrs["reason"])
