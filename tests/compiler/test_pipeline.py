"""The pipeline as its users see it: targets, entry points, precision, policy, reproducible bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import check

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import IrError
from xpuruntime.runtime import Executor

LEVELS = ["cpu:x86-64-v2", "cpu:x86-64-v3"]


def perceptron(batch: str = "3") -> tuple[ir.Graph, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    b = ir.GraphBuilder("mlp")
    x = b.input("x", f"float32[{batch}, 8]")
    w, v = b.weight("w", "float32[16, 8]"), b.weight("v", "float32[4, 16]")
    with b.source(ir.Source(name="first", op="Gemm")):
        h = b.linear(x, w)
    with b.source(ir.Source(name="act", op="Relu")):
        h = b.relu(h)
    with b.source(ir.Source(name="second", op="Gemm")):
        b.output("y", b.linear(h, v))
    weights = {n: rng.standard_normal(s, dtype=np.float32) for n, s in (("w", (16, 8)), ("v", (4, 16)))}
    return b.build(), weights


def test_the_same_model_gives_the_same_bytes() -> None:
    graph, _ = perceptron()
    assert compile_graph(graph).to_bytes() == compile_graph(graph).to_bytes()


def test_alternatives_stand_in_order_and_the_first_that_runs_is_taken() -> None:
    graph, weights = perceptron()
    program = compile_graph(graph, target=LEVELS[::-1])
    assert [p.target for p in program.entries[0].plans] == LEVELS[::-1]
    executor = Executor(program)
    executor.bind(weights)
    assert executor.plan.target in LEVELS
    x = np.ones((3, 8), np.float32)
    (y,) = executor.run_arrays([x])
    np.testing.assert_allclose(y, np.maximum(x @ weights["w"].T, 0) @ weights["v"].T, rtol=1e-5)


def test_a_set_of_sizes_is_an_entry_point() -> None:
    graph, weights = perceptron("n")
    program = compile_graph(graph, shapes=[{"n": 1}, {"n": 5}])
    assert [e.name for e in program.entries] == ["main_n1", "main_n5"]
    assert len(program.recipes) == 2, "weights are shared between entry points"
    for entry, n in zip(program.entries, (1, 5), strict=True):
        executor = Executor(program, entry=entry.name)
        executor.bind(weights)
        assert executor.run_arrays([np.ones((n, 8), np.float32)])[0].shape == (n, 4)


def test_a_symbol_without_a_size_is_refused() -> None:
    with pytest.raises(IrError, match="symbolic dims without a value"):
        compile_graph(perceptron("n")[0])


@pytest.mark.parametrize("target", ["gpu", "cpu:x86-64-v9", 7])
def test_an_unknown_target_is_refused(target: Any) -> None:
    with pytest.raises((xrt.BuildError, xrt.DeviceUnavailable), match="target") as caught:
        compile_graph(perceptron()[0], target=target)
    assert repr(target) in str(caught.value)
    assert "Name" in caught.value.do


def test_a_rule_that_forces_a_kernel_blocks_the_fusion_that_would_hide_it() -> None:
    graph, weights = perceptron()
    policy = xrt.KernelPolicy(rules=[xrt.Rule(node="act", use="generated")])
    free, forced = compile_graph(graph), compile_graph(graph, policy=policy)
    assert [c.ops for c in free.entries[0].plans[0].calls] == [("fused_linear",), ("linear",)]
    assert [c.ops for c in forced.entries[0].plans[0].calls] == [("linear",), ("relu",), ("linear",)]
    assert any(d.question == "fusion" and "act" in d.explain() for d in forced.decisions)
    check(graph, {"x": np.ones((3, 8), np.float32)}, weights=weights, policy=policy)


def test_rules_see_what_earlier_passes_made() -> None:
    b = ir.GraphBuilder("normed")
    x = b.input("x", "float32[2, 3, 6, 6]")
    names = ("weight", "bias", "mean", "var")
    w, norm = b.weight("w", "float32[4, 3, 3, 3]"), [b.weight(n, "float32[4]") for n in names]
    y = b.convolution(x, w, stride=[1, 1], padding=[1, 1], dilation=[1, 1])
    y = b.batch_norm(y, *norm, eps=1e-5)
    b.output("y", b.relu(y, name="act"))
    draw = np.random.default_rng(0)
    weights = {n: draw.uniform(0.5, 1, 4).astype(np.float32) for n in names}
    weights["w"] = draw.standard_normal((4, 3, 3, 3), dtype=np.float32)
    policy = xrt.KernelPolicy(rules=[xrt.Rule(op="activation", use="generated")])
    plan = compile_graph(b.build(), policy=policy).entries[0].plans[0]
    assert ("relu",) in [c.ops for c in plan.calls]
    check(
        b.build(), {"x": draw.standard_normal((2, 3, 6, 6), dtype=np.float32)}, weights=weights, policy=policy
    )


def test_a_forbidden_kernel_is_not_taken() -> None:
    graph, _ = perceptron()
    policy = xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", forbid=["gemv", "generated", "onednn"])])
    with pytest.raises(xrt.KernelUnavailable) as caught:
        compile_graph(graph, policy=policy)
    assert caught.value.decision is not None


def test_precision_is_the_policy_s() -> None:
    graph, weights = perceptron()
    policy = xrt.ExecutionPolicy(precision="bfloat16")
    plan = compile_graph(graph, policy=policy).entries[0].plans[0]
    assert {str(b.spec.dtype) for b in plan.buffers if b.kind == "weight"} == {"bfloat16"}
    check(graph, {"x": np.ones((3, 8), np.float32)}, weights=weights, policy=policy, tolerance=2e-2)
