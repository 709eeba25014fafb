"""Sequences whose elements are known are lists of tensors: against ONNX Runtime and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

parser = pytest.importorskip("onnx.parser")
pytest.importorskip("onnxruntime")

from onnx.reference import ReferenceEvaluator  # noqa: E402
from support.contrib.case import ours  # noqa: E402

from xpuruntime import InferenceSession  # noqa: E402
from xpuruntime.frontends.onnx import import_onnx  # noqa: E402

X = np.random.default_rng(3).standard_normal((2, 3, 4)).astype(np.float32)
NUMBERS = "<int64 i0 = {0}, int64 i1 = {1}, int64 last = {-1}, int64 two = {2}, int64[2] parts = {1, 3}>"
BODIES = {
    "constructed": "s = SequenceConstruct(x, y, x) z = SequenceAt(s, i1)",
    "from the end": "s = SequenceConstruct(x, y, x, y) z = SequenceAt(s, last)",
    "inserted": "e = SequenceEmpty() a = SequenceInsert(e, x) b = SequenceInsert(a, y, i0) z = ConcatFromSequence<axis=1>(b)",
    "inserted before the last": "a = SequenceConstruct(x, x) b = SequenceInsert(a, y, last) z = ConcatFromSequence<axis=0>(b)",
    "erased": "a = SequenceConstruct(x, y, x, y) b = SequenceErase(a, i1) c = SequenceErase(b) z = ConcatFromSequence<axis=-1>(c)",
    "stacked": "s = SequenceConstruct(x, y) z = ConcatFromSequence<axis=-1, new_axis=1>(s)",
    "counted": "s = SequenceConstruct(x, y) z = SequenceLength(s)",
    "split to ones": "s = SplitToSequence<axis=1>(x) z = SequenceAt(s, two)",
    "split without the dim": "s = SplitToSequence<axis=1, keepdims=0>(x) z = SequenceAt(s, last)",
    "split to twos": "s = SplitToSequence<axis=1>(x, two) z = SequenceAt(s, last)",
    "split to parts": "s = SplitToSequence<axis=2>(x, parts) z = SequenceAt(s, i1)",
    "two readers": "s = SplitToSequence<axis=2>(x, parts) a = SequenceAt(s, i1) b = SequenceLength(s) c = Cast<to=1>(b) z = Mul(a, c)",
}


def model(body: str, inputs: str = "float[2, 3, 4] x, float[2, 3, 4] y", output: str = "z") -> Any:
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => ({output}) {NUMBERS} {{ {body} }}'
    return parser.parse_model(text)


@pytest.mark.parametrize("name", BODIES)
def test_sequences_of_known_elements(name: str) -> None:
    proto, feeds = model(BODIES[name]), {"x": X, "y": X + 1}
    (want,) = ReferenceEvaluator(proto).run(None, feeds)
    graph, _ = import_onnx(proto)
    assert not [node for node in graph if node.op == "opaque"]
    (got,) = ours(proto.SerializeToString(), feeds)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    assert np.asarray(got).dtype == np.asarray(want).dtype


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "s = SequenceConstruct(x, y) z = SequenceAt(s, i)",
            "a number of a sequence is known only at run time",
        ),
        ("s = SequenceConstruct(x, y) z = SequenceAt(s, two)", "its position 2 is outside of the sequence"),
        ("s = SequenceEmpty() z = ConcatFromSequence<axis=0>(s)", "its sequence is empty"),
    ],
)
def test_other_sequences_are_opaque(body: str, reason: str) -> None:
    graph, _ = import_onnx(model(body, "float[2, 3, 4] x, float[2, 3, 4] y, int64 i"))
    assert graph.node("z").attrs["reason"] == reason


def test_a_symbolic_dim_is_split_when_its_size_is_known() -> None:
    x = X.reshape(-1, 3)[:4]
    given = model("s = SplitToSequence<axis=0>(x, parts) z = SequenceAt(s, i1)", "float[n, 3] x")
    (got,) = ours(given.SerializeToString(), {"x": x})
    np.testing.assert_array_equal(got, x[1:])
    ones = model("s = SplitToSequence<axis=0>(x) z = SequenceAt(s, last)", "float[n, 3] x")
    graph, _ = import_onnx(ones)
    assert graph.node("z").attrs["reason"] == "the elements of its sequence are known only at run time"
    with InferenceSession(ones, engine="native", device="cpu") as session:
        np.testing.assert_array_equal(session.run({"x": x})["z"], x[-1:])


def test_a_sequence_that_leaves_the_model_stays() -> None:
    proto = model("z = SequenceConstruct(x, y) a = SequenceAt(z, i1)", output="seq(float[2, 3, 4]) z, a")
    graph, _ = import_onnx(proto)
    assert [node.attrs["op_type"] for node in graph if node.op == "opaque"] == ["SequenceConstruct"]
