"""ONNX Runtime's packed weights beside ONNX Runtime, and what the native engine makes of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from support.contrib.case import Case, differences, model_of, ours, theirs
from support.contrib.packed import CASES, bits

from xpuruntime import InferenceSession
from xpuruntime.errors import UnavailableError, WrongResult
from xpuruntime.frontends.model_file import open_model
from xpuruntime.inference.self_check import opening
from xpuruntime.protocols import Products


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_packed_weights_equal_onnx_runtime(case: Case) -> None:
    """With ``accuracy_level`` 4, ONNX Runtime rounds activations to int8."""
    model, feeds = model_of(case)
    (got,), (want,) = ours(model, feeds), theirs(model, feeds)
    assert differences(got, want) <= (2e-2 if case.attributes.get("accuracy_level") == 4 else 2e-5)


@pytest.mark.parametrize(
    "case", [bits(4, 24, 96, 32, zeros="packed", note=""), bits(8, 7, 64, 16, note="")], ids=["4", "8"]
)
def test_weights_are_unpacked_when_they_are_loaded(case: Case) -> None:
    """A run has one product; the unpacking is a recipe."""
    model, feeds = model_of(case)
    with InferenceSession(model, engine="native", device="cpu") as sess:
        (got,) = sess.run(feeds).values()
        receipt = str(sess.receipt())
    assert differences(got, theirs(model, feeds)[0]) <= 1e-5
    assert ", 1 steps," in receipt, receipt


def test_zero_points_that_onnx_runtime_ignores_are_refused() -> None:
    model, _ = model_of(bits(4, 5, 64, 32, zeros="packed", groups=True, note=""))
    with pytest.raises(UnavailableError, match="ignores packed zero points next to g_idx"):
        InferenceSession(model, engine="native", device="cpu")


def test_codes_of_another_width_are_refused() -> None:
    model, _ = model_of(bits(4, 5, 64, 32, note=""))
    proto = onnx.ModelProto.FromString(model)
    next(a for a in proto.graph.node[0].attribute if a.name == "bits").i = 3
    with pytest.raises(UnavailableError, match="codes of 3 bits are not supported"):
        InferenceSession(proto, engine="native", device="cpu")


def test_int4_weights_keep_the_codes() -> None:
    """A policy of 4-bit weights finds the codes again: the only error is that of scales in bfloat16."""
    model, feeds = model_of(bits(4, 64, 256, 32, note=""))
    with InferenceSession(
        model, engine="native", device="cpu", kernel_policy={"version": 1, "kernel": {"weights": "int4"}}
    ) as sess:
        (got,) = sess.run(feeds).values()
    assert differences(got, theirs(model, feeds)[0]) <= 1e-2
    assert np.isfinite(got).all()


def test_a_model_that_allows_int8_activations_opens() -> None:
    """ONNX Runtime, which the session compares itself with, rounds activations; native kernels do not."""
    case = bits(4, 48, 96, 32, zeros="packed", accuracy_level=4, note="")
    model, feeds = model_of(case)
    assert open_model(model).products == Products(floats=1, rounded=1)
    with InferenceSession(
        model,
        engine="native",
        device="cpu",
        exec_policy={"version": 1, "execution": {"self_check": "always"}},
    ) as sess:
        (got,) = sess.run(feeds).values()
    exact, _ = model_of(case._replace(attributes={**case.attributes, "accuracy_level": 0}))
    assert differences(got, theirs(exact, feeds)[0]) <= 1e-5


def test_three_per_cent_too_much_in_such_a_model_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter judges, which rounds no activations either. A vendor's tolerance would let this pass."""
    model, _ = model_of(bits(4, 48, 96, 32, zeros="packed", accuracy_level=4, note=""))
    always = {"version": 1, "execution": {"self_check": "always"}}
    with InferenceSession(model, engine="native", device="cpu", exec_policy=always) as sess:
        decision = sess.plan.decision("self_check")
        assert decision is not None
        assert decision.chosen is not None
        assert decision.chosen.name == "the reference interpreter"
    right = opening._twin_run
    monkeypatch.setattr(
        opening, "_twin_run", lambda executor: lambda feeds: [1.03 * a for a in right(executor)(feeds)]
    )
    with pytest.raises(WrongResult, match="disagrees with the reference interpreter"):
        InferenceSession(model, engine="native", device="cpu", exec_policy=always).close()
