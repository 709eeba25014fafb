"""The policy field ``weights``: which word a node gets, what it excludes, and the deprecated kernel words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import compile_native

import xpuruntime as xrt
from examples.porting.edge_target import EdgeTarget
from xpuruntime.decisions import Support
from xpuruntime.ir import Graph, GraphBuilder
from xpuruntime.policies import KernelPolicy, NodeFacts, Offer, Policy, Rule, choose, load_policy
from xpuruntime.policies.choose import weights_of
from xpuruntime.policies.lint import lint
from xpuruntime.policies.vocabulary import WEIGHT_KERNELS, WEIGHTS

YES = Support.yes()
OFFERS = [Offer("gemv", YES), *(Offer(k, YES, on_request=True) for k in WEIGHT_KERNELS.values())]


def chosen(policy: KernelPolicy, node: str = "a", family: str = "matmul") -> str:
    return choose(policy, NodeFacts(node=node, family=family), OFFERS)[0]


@pytest.mark.parametrize("word", WEIGHTS)
def test_a_word_selects_its_kernel(word: str) -> None:
    assert chosen(KernelPolicy(weights=word)) == WEIGHT_KERNELS.get(word, "gemv")
    assert chosen(KernelPolicy(rules=[Rule(op="matmul", weights=word)])) == WEIGHT_KERNELS.get(word, "gemv")
    assert chosen(KernelPolicy(weights=word), family="conv") == "gemv"


def test_rules_come_first_and_higher_layers_before_lower_ones() -> None:
    policy = KernelPolicy(
        weights="int4", rules=[Rule(node="a", weights="int8"), Rule(node="[ab]", weights="model")]
    )
    assert [chosen(policy, n) for n in "abc"] == ["int8_weights", "gemv", "int4_weights"]
    assert chosen(policy.merge(KernelPolicy(weights="model"))) == "gemv"
    assert chosen(KernelPolicy(weights="model").merge(policy)) == "int8_weights"
    assert chosen(KernelPolicy(weights="int8", matmul=["int4_weights", "gemv"])) == "int8_weights"
    assert chosen(KernelPolicy(weights="model", matmul=["int4_weights", "gemv"])) == "gemv"
    assert chosen(KernelPolicy(weights="int8", rules=[Rule(use="gemv")])) == "gemv"
    stored = weights_of(policy, NodeFacts(node="c", family="matmul"))
    assert stored is not None
    assert stored[1].path == ("kernel", "weights")


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: KernelPolicy(weights="int3"), "weights: no such type of weights; got 'int3'. Did you mean 'int"),
        (lambda: Rule(weights="int8", use="gemv"), "no effect together with use"),
        (lambda: Rule(op="conv", weights="int8"), "only ops of the family matmul"),
        (lambda: Rule(weights="int8", forbid="int8_weights"), "forbids 'int8_weights'"),
        (lambda: load_policy({"version": 1, "kernel": {"weights": 8}}), "kernel.weights: no such type"),
        (
            lambda: load_policy({"version": 1, "kernel": {"weights": "int4"}, "execution": {"precision": "int8"}}),
            "integer arithmetic",
        ),
    ],
)  # fmt: skip
def test_a_contradiction_is_an_error(make: Any, text: str) -> None:
    with pytest.raises(xrt.PolicyError, match=text.replace(".", r"\.")):
        make()


def _linear() -> Graph:
    b = GraphBuilder("net")
    b.output("y", b.linear(b.input("x", "float32[3, 64]"), b.weight("w", "float32[32, 64]"), None))
    return b.build()


def test_precision_int8_from_another_layer_is_an_error() -> None:
    with (
        xrt.with_policy(xrt.ExecutionPolicy(precision="int8")),
        pytest.raises(xrt.PolicyError, match="integer"),
    ):
        xrt.compile(_linear(), policy=KernelPolicy(weights="int8"))


def test_a_target_without_such_kernels_is_an_error() -> None:
    with pytest.raises(xrt.KernelUnavailable, match=r"weights: int8 of .* demands weights in int8"):
        xrt.compile(_linear(), target=EdgeTarget(), policy=KernelPolicy(weights="int8"))


@pytest.mark.parametrize("word", ["int8", "int4_64"])
def test_an_old_word_warns_and_gives_the_same_program(word: str) -> None:
    feeds = {"x": np.ones((3, 64), np.float32)}
    new = compile_native(_linear(), feeds, policy=KernelPolicy(weights=word))
    with pytest.warns(DeprecationWarning, match=f"deprecated. Write weights: {word} instead") as caught:
        load_policy({"version": 1, "kernel": {"matmul": WEIGHT_KERNELS[word]}})
    assert caught[0].filename == __file__
    old = compile_native(_linear(), feeds, policy=KernelPolicy(matmul=WEIGHT_KERNELS[word]))
    kernels = [[c.kernel for c in p.entries[0].plans[0].calls] for p in (old, new)]
    assert kernels[0] == kernels[1]
    assert f"matmul/{WEIGHT_KERNELS[word]}" in kernels[0]


def test_lint_says_the_new_spelling() -> None:
    policy = KernelPolicy(matmul="int8_weights", rules=[Rule(node="a", forbid="int8_weights")])
    said = [str(f) for f in lint(Policy(kernel=policy)) if f.code == "deprecated"]
    assert any("Write weights: int8" in s for s in said)
    assert any("Write weights: model" in s for s in said)


def test_training_refuses_it() -> None:
    pytest.importorskip("torch")
    from xpuruntime.pytorch import set_kernel_policy

    with pytest.raises(xrt.PolicyError, match="weights: int8"):
        set_kernel_policy(KernelPolicy(weights="int8"))


def _model() -> bytes:
    onnx = pytest.importorskip("onnx")
    values = [onnx.helper.make_tensor_value_info(n, 1, [3, s]) for n, s in (("x", 64), ("z", 32))]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="fc"),
        onnx.helper.make_node("Softmax", ["y"], ["z"], name="head"),
    ]
    weight = onnx.numpy_helper.from_array(np.eye(64, 32, dtype=np.float32), "w")
    graph = onnx.helper.make_graph(nodes, "net", values[:1], values[1:], [weight])
    opsets = [onnx.helper.make_opsetid("", 17)]
    return bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


@pytest.mark.parametrize("execution", [{}, {"engine": "auto"}, {"place": {"softmax": "onnxruntime"}}])
def test_a_session_passes_over_engines_without_such_weights(execution: dict[str, Any]) -> None:
    pytest.importorskip("onnxruntime")
    policy = Policy(
        kernel=KernelPolicy(weights="int8"), execution=xrt.ExecutionPolicy(target="cpu", **execution)
    )
    with xrt.InferenceSession(_model(), policy=policy) as session:
        assert "weights: int8 of the policy" in session.plan.explain()


@pytest.mark.parametrize("execution", [{"engine": "onnxruntime"}, {"place": {"matmul": "onnxruntime"}}])
def test_a_named_vendor_engine_is_an_error(execution: dict[str, Any]) -> None:
    pytest.importorskip("onnxruntime")
    policy = Policy(
        kernel=KernelPolicy(weights="int8"), execution=xrt.ExecutionPolicy(target="cpu", **execution)
    )
    with pytest.raises(xrt.EngineUnavailable, match=r"does not store the weights of .* in int8"):
        xrt.InferenceSession(_model(), policy=policy)
