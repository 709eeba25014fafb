"""``engine="auto"``: the fastest candidate with correct results is chosen, and the choice is recorded for later sessions."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.onnx_models import build_model, small_classifier

import xpuruntime as xrt
from xpuruntime.decisions import Reason
from xpuruntime.errors import RunError
from xpuruntime.frontends.model_file import open_model
from xpuruntime.inference.execution.seeded_inputs import sample_feeds
from xpuruntime.inference.selection.auto import Contender, measure
from xpuruntime.types import DType

onnx = pytest.importorskip("onnx", reason="the tests build models with onnx")
pytest.importorskip("onnxruntime", reason="an engine is needed")
pytest.importorskip("openvino", reason="two engines are needed")


class Distorted:
    """A real executable whose results are multiplied by a factor, like those of a miscompiled kernel, or that is slow or fails."""

    def __init__(self, real, factor: float = 1.0, seconds: float = 0.0, fails: bool = False) -> None:
        self.real, self.factor, self.seconds, self.fails = real, factor, seconds, fails
        self.inputs, self.outputs = real.inputs, real.outputs

    def run(self, feeds):
        if self.fails:
            raise RunError("engine", "failed", got="on purpose")
        time.sleep(self.seconds)
        return [o * np.float32(self.factor) for o in self.real.run(feeds)]


@pytest.fixture
def real(path):
    with xrt.InferenceSession(path, device="cpu", engine="onnxruntime") as sess:
        yield sess._executable


@pytest.fixture
def model(path):
    return open_model(path)


def decide(model, *contenders: Contender, seconds: float = 20.0):
    return measure(model, contenders, sample_feeds(model.inputs), seconds)


def test_the_fastest_candidate_that_matches_the_reference_is_chosen(model, real) -> None:
    decision, warnings = decide(
        model,
        Contender("slow", Distorted(real, seconds=0.004), DType.FLOAT32),
        Contender("wrong", Distorted(real, factor=1.01), DType.FLOAT32),
        Contender("right", Distorted(real), DType.FLOAT32),
        Contender("broken", Distorted(real, fails=True), DType.FLOAT32),
    )
    assert decision.chosen.name == "right"
    assert decision.chosen.code is Reason.FASTEST
    assert "ONNX reference" in decision.chosen.reason
    assert {c.name: c.code for c in decision.rejected} == {
        "slow": Reason.SLOWER,
        "wrong": Reason.WRONG_RESULT,
        "broken": Reason.RUN_FAILED,
    }
    assert not warnings


def test_without_a_reference_the_results_of_the_majority_are_correct(model, real) -> None:
    decision, _ = decide(
        model,
        Contender("wrong", Distorted(real, factor=0.5), DType.FLOAT32),
        Contender("a", Distorted(real), DType.FLOAT32),
        Contender("b", Distorted(real, seconds=0.002), DType.FLOAT32),
        seconds=0.01,  # too short for the reference evaluator's process to answer
    )
    assert decision.chosen.name == "a"
    assert "took over" in decision.chosen.reason


def test_two_candidates_that_disagree_without_a_reference_give_a_warning(model, real) -> None:
    decision, warnings = decide(
        model,
        Contender("first", Distorted(real, seconds=0.002), DType.FLOAT32),
        Contender("second", Distorted(real, factor=2.0), DType.FLOAT32),
        seconds=0.01,
    )
    assert decision.chosen.name == "first"
    assert "disagree" in warnings[0]


def test_a_lower_precision_is_checked_with_its_own_tolerance(model, real) -> None:
    decision, _ = decide(
        model,
        Contender("f32", Distorted(real, seconds=0.002), DType.FLOAT32),
        Contender("bf16", Distorted(real, factor=1.01), DType.BFLOAT16),
    )
    assert decision.chosen.name == "bf16"


def test_a_recorded_choice_is_used_again_for_the_same_model_only(path, tmp_path) -> None:
    decisions = []
    for _ in range(2):
        with xrt.InferenceSession(path, device="cpu", engine="auto", cache_dir=tmp_path) as sess:
            decisions.append(sess.plan.decision("engine"))
    first, second = decisions
    assert first.chosen.code is Reason.FASTEST
    assert second.chosen.code is Reason.RECORDED
    assert second.chosen.name == first.chosen.name
    assert [c.name for c in second.rejected] == [c.name for c in first.rejected]
    other = small_classifier(seed=5)
    with xrt.InferenceSession(other, device="cpu", engine="auto", cache_dir=tmp_path) as sess:
        assert sess.plan.decision("engine").chosen.code is Reason.FASTEST


def test_a_model_that_seeded_inputs_cannot_run_is_opened_by_the_order_of_preference(tmp_path) -> None:
    # The inner dims of the product must be equal, but they have different names, so seeded inputs give them different sizes.
    nodes = [onnx.helper.make_node("MatMul", ["x", "y"], ["output"], name="mm")]
    proto = build_model(
        nodes,
        [("x", onnx.TensorProto.FLOAT, [2, "seq"]), ("y", onnx.TensorProto.FLOAT, ["rows", 2])],
        [("output", onnx.TensorProto.FLOAT, [2, 2])],
    )
    with xrt.InferenceSession(proto, device="cpu", engine="auto", cache_dir=tmp_path) as sess:
        decision = sess.plan.decision("engine")
        assert decision.chosen.code is Reason.DEFAULT
        assert "measuring failed" in decision.chosen.reason
        out = sess.run(x=np.ones((2, 5), np.float32), y=np.ones((5, 2), np.float32))
    np.testing.assert_array_equal(out["output"], np.full((2, 2), 5, np.float32))
