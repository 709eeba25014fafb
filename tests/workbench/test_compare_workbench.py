"""Comparing on real engines: who agrees, what one changed weight does, and who may stay away."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from support.small_scores import scores

from xpuruntime.decisions import Reason
from xpuruntime.errors import EngineUnavailable, InputError, UnavailableError
from xpuruntime.types import DType, TensorSpec
from xpuruntime.workbench.compare.engines import REFERENCE, compare_engines
from xpuruntime.workbench.compare.models import compare_models
from xpuruntime.workbench.compare.nodes import compare_engine_nodes
from xpuruntime.workbench.inputs import Inputs
from xpuruntime.workbench.session_options import SessionOptions

onnx = pytest.importorskip("onnx")
ENGINES = [e for e in ("onnxruntime", "openvino") if importlib.util.find_spec(e)]
pytestmark = pytest.mark.skipif(len(ENGINES) < 2, reason="needs onnxruntime and openvino")


def test_engines_agree(net) -> None:
    report = compare_engines(net, ENGINES, samples=2)
    assert report.ok
    assert report.samples == 2
    (pair,) = report.pairs
    (scores,) = pair.outputs
    assert (pair.actual, pair.reference) == ("openvino", "onnxruntime")
    assert scores.max_rel <= pair.tolerance == 5e-5
    assert scores.cosine == pytest.approx(1.0)
    assert scores.elements == 20
    assert report.sentence == "openvino, onnxruntime agree"


def test_a_tolerance_that_cannot_be_met_names_the_output(net) -> None:
    """The two round differently somewhere in 5 samples of a convolution; if they ever do not, the test says so."""
    report = compare_engines(net, ENGINES, samples=5, tolerance=0.0)
    assert any(c.mismatched for c in report.pairs[0].outputs), (
        "the engines gave equal bits, so this shows nothing"
    )
    assert not report.ok
    assert report.pairs[0].first_difference.name == "scores"
    assert "first in output 'scores'" in report.sentence


def test_last_places_of_one_are_no_difference(tmp_path) -> None:
    """ONNX Runtime's sigmoid gives very small scores as zeros."""
    model, engines = scores(tmp_path / "scores.onnx", -17.0), ["onnxruntime", "native"]
    report = compare_engines(model, engines, samples=1)
    assert report.ok
    assert any("round in last places of 1" in note for note in report.notes)
    assert not compare_engines(model, engines, samples=1, tolerance=5e-5).ok


def test_scores_that_are_multiplied_are_compared_as_ever(tmp_path) -> None:
    model = scores(tmp_path / "scores.onnx", -17.0, "Mul")
    report = compare_engines(model, ["onnxruntime", "native"], samples=1)
    assert not report.ok
    assert not any("round in last places of 1" in note for note in report.notes)


def test_against_the_reference_evaluator(net) -> None:
    report = compare_engines(net, ENGINES, against=REFERENCE, samples=1)
    assert report.ok
    assert [(p.actual, p.reference) for p in report.pairs] == [(e, REFERENCE) for e in ENGINES]


def test_against_an_engine_by_its_alias(net) -> None:
    report = compare_engines(net, ["onnxruntime"], against="openvino", samples=1)
    assert [(p.actual, p.reference) for p in report.pairs] == [("onnxruntime", "openvino")]


def test_one_engine_alone_is_no_comparison(net) -> None:
    with pytest.raises(EngineUnavailable, match="there is nothing to compare with; got only onnxruntime"):
        compare_engines(net, ["onnxruntime"])
    with pytest.raises(EngineUnavailable, match="there is nothing to compare with; got onnxruntime"):
        compare_engine_nodes(net, ["onnxruntime"])


def test_an_engine_that_was_not_named_may_stay_away(net) -> None:
    report = compare_engines(net, [*ENGINES, "tensorrt"], named=False, samples=1)
    assert report.ok
    assert [(c.name, c.code) for c in report.rejected] == [("tensorrt", Reason.NOT_INSTALLED)]


def test_an_engine_that_was_named_must_be_there(net) -> None:
    with pytest.raises(UnavailableError, match="the Python package 'tensorrt' is not installed"):
        compare_engines(net, [*ENGINES, "tensorrt"])


def test_a_device_nobody_has(net) -> None:
    with pytest.raises(EngineUnavailable, match="no engine can run it here") as caught:
        compare_engines(net, ENGINES, named=False, options=SessionOptions(device="npu"))
    assert [c.name for c in caught.value.decision.rejected] == ENGINES


def test_the_same_model_twice_has_equal_bits(net) -> None:
    report = compare_models(net, net, ENGINES)
    assert report.ok
    assert all(c.mismatched == 0 for p in report.pairs for c in p.outputs)
    assert all(p.tolerance == 0 for p in report.pairs)
    assert "the two files are the same model, byte for byte" in report.notes


@pytest.mark.parametrize("name", ["kernel", "bias", "head"])
def test_one_changed_weight_is_seen(net, change_weight, name: str) -> None:
    def one_percent(w):
        w.flat[np.abs(w).argmax()] *= 1.01
        return w

    report = compare_models(net, change_weight(net, name, one_percent), ENGINES)
    assert not report.ok
    assert all(p.first_difference is not None and p.first_difference.name == "scores" for p in report.pairs)


def test_a_change_below_two_engines_rounding_is_seen_and_explained(net, change_weight) -> None:
    def tiny(w):
        return (w * np.float32(1 + 1e-6)).astype(np.float32)

    other = change_weight(net, "head", tiny)
    report = compare_models(net, other, ENGINES)
    assert not report.ok
    assert any("normal for two exports of one model (then use --tolerance 5e-05)" in n for n in report.notes)
    assert compare_models(net, other, ENGINES, tolerance=5e-5).ok


def test_a_dead_weight_is_named_even_though_no_output_shows_it(make_network, change_weight) -> None:
    """A channel whose bias keeps it below zero on every sample and probe: its head weight moves nothing."""

    def off(b):
        b[2] = -1e6
        return b

    def moved(w):
        w[2, 5] += 1
        return w

    model = change_weight(make_network(), "bias", off)
    report = compare_models(model, change_weight(model, "head", moved), ENGINES[:1])
    assert report.ok
    assert report.notes[-1].startswith(
        "the files' weights differ in head, but no output differs on these inputs"
    )


def test_a_probe_finds_what_the_samples_do_not(make_network, change_weight) -> None:
    """The channel lives only where inputs are far larger than the samples are; probes of other scales reach it."""

    def nearly_off(b):
        b[2] = -6.0
        return b

    def moved(w):
        w[2, 5] += 1
        return w

    def quiet(k):
        k[2] = 0.2
        return k

    model = change_weight(change_weight(make_network(), "bias", nearly_off), "kernel", quiet)
    report = compare_models(model, change_weight(model, "head", moved), ENGINES[:1], samples=1)
    assert not report.ok


def test_models_with_other_inputs_are_refused(net, make_network) -> None:
    other = make_network()
    other.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in other.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    other.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(InputError, match="the two models have different inputs"):
        compare_models(net, other, ENGINES[:1])


def test_other_names_in_the_same_places_are_matched(net) -> None:
    other = onnx.ModelProto.FromString(net.SerializeToString())
    other.graph.input[0].name = "x"
    other.graph.node[0].input[0] = "x"
    other.graph.output[0].name = "y"
    other.graph.node[-1].output[0] = "y"
    report = compare_models(net, other, ENGINES)
    assert report.ok
    assert [c.name for c in report.pairs[0].outputs] == ["scores"]


def test_inputs_of_the_user_are_used(net, tmp_path) -> None:
    np.save(tmp_path / "x.npy", np.full((1, 3, 8, 8), np.nan, np.float32))
    report = compare_engines(net, ENGINES, inputs=Inputs((str(tmp_path / "x.npy"),)), samples=5)
    assert report.samples == 1
    assert report.inputs == str(tmp_path / "x.npy")
    assert report.notes == (
        "output 'scores' of onnxruntime holds no finite number, so its agreement shows nothing",
    )


def test_a_model_that_amplifies_rounding_gets_a_wider_tolerance_and_is_told() -> None:
    """x @ v @ w less what that is for the sample, to 4 digits: almost everything cancels, so the inputs' last bits count."""
    from onnx import TensorProto, helper, numpy_helper

    from xpuruntime.inference.self_check.conditioning import WIDEST

    random = np.random.default_rng(5)
    x = Inputs().samples([TensorSpec((1, 64), DType.FLOAT32, "x")])[0]["x"]
    v, w = (
        random.standard_normal((64, 64)).astype(np.float32),
        random.standard_normal((64, 1)).astype(np.float32),
    )
    away = (-(x.astype(np.float64) @ v @ w) * (1 - 1e-4)).astype(np.float32).reshape(1)
    nodes = [("MatMul", ["x", "v"], ["h"]), ("MatMul", ["h", "w"], ["p"]), ("Add", ["p", "away"], ["y"])]
    graph = helper.make_graph(
        [helper.make_node(*node) for node in nodes],
        "cancel",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])],
        [numpy_helper.from_array(a, n) for n, a in (("v", v), ("w", w), ("away", away))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = compare_engines(model, ENGINES, samples=1)
    (y,) = report.pairs[0].outputs
    assert 5e-5 < y.tolerance <= WIDEST * 5e-5
    assert report.pairs[0].tolerance == 5e-5
    assert report.notes[0].startswith("output 'y' changes by ")
    assert compare_engines(model, ENGINES, samples=1, tolerance=1e-6).pairs[0].outputs[0].tolerance == 1e-6
