"""Run by test_library_refusals.py in a process of its own, with XPU_LIBONEDNN naming a oneDNN that declines products: `python refusal_case.py CASE`."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.compiler.resolve import resolve_target
from xpuruntime.decisions import Reason
from xpuruntime.errors import BuildError, KernelRefused, KernelUnavailable, StrictError
from xpuruntime.runtime import Executor
from xpuruntime.testing.conformance import conformance, kernels

X = np.random.default_rng(0).standard_normal((8, 32), dtype=np.float32)
W = np.random.default_rng(1).standard_normal((32, 64), dtype=np.float32)
V = np.random.default_rng(2).standard_normal((64, 48), dtype=np.float32)
SAID = "oneDNN has no implementation for these shapes and types"


def net() -> ir.Graph:
    b = ir.GraphBuilder("net")
    y = b.mm(b.input("x", "float32[8, 32]"), b.weight("w", "float32[32, 64]"), name="first")
    b.output("y", b.mm(b.relu(y, name="between"), b.weight("v", "float32[64, 48]"), name="second"))
    return b.build()


def model(rows: str | int) -> bytes:
    """The same as an ONNX file."""
    made = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "between"),
        helper.make_node("MatMul", ["b", "v"], ["y"], "second"),
    ]
    borders = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (rows, size))]
        for name, size in (("x", 32), ("y", 48))
    ]
    weights = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(V, "v")]
    graph = helper.make_graph(made, "net", *borders, weights)
    opsets = [helper.make_opsetid("", 21)]
    found: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return found


def session(policy: xrt.KernelPolicy, rows: str | int = 8, **options: Any) -> xrt.InferenceSession:
    return xrt.InferenceSession(model(rows), engine="native", device="cpu", kernel_policy=policy, **options)


def wanted(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ W, 0) @ V


def kernels_of(found: xrt.InferenceSession) -> list[str]:
    (evidence,) = found.receipt().evidence.values()
    return [row.kernel.partition(":")[0] for row in evidence.rows]


def preferred() -> None:
    """What is preferred is passed over where the library declines it, and every place says so."""
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("xpuruntime.session").addHandler(handler)
    found = session(xrt.KernelPolicy(matmul="onednn"))
    (y,) = found.run({"x": X}).values()
    assert np.allclose(y, wanted(X), atol=1e-4)
    assert not any("onednn" in k for k in kernels_of(found))
    receipt = found.receipt()
    (evidence,) = receipt.evidence.values()
    assert len(evidence.fallbacks) == 2
    assert all(f.startswith("matmul/onednn was chosen for ") and SAID in f for f in evidence.fallbacks)
    assert all(sum(f in h for h in heard) == 1 for f in evidence.fallbacks), heard
    assert not receipt.confirmed
    rejected = [c for d in receipt.plan.decisions if d.question == "kernel matmul" for c in d.rejected]
    declined = [c for c in rejected if c.name == "onednn"]
    assert declined
    assert all(c.code is Reason.FORBIDDEN for c in declined)
    assert all(f"the library declines: matmul/onednn: {SAID}" in c.reason for c in declined)


def forced() -> None:
    """What is forced is an error that says why."""
    rule = xrt.Rule(node="second", use="onednn")
    with pytest.raises(BuildError) as refused:
        session(xrt.KernelPolicy(rules=[rule]))
    assert SAID in str(refused.value)
    policy = xrt.KernelPolicy(rules=[rule])
    with pytest.raises(KernelUnavailable, match=f"the library declines: matmul/onednn: {SAID}") as at_once:
        xrt.compile(net(), target="cpu", policy=policy, weights={"w": W, "v": V})
    assert at_once.value.decision is not None
    # For machines that are not here nobody is asked.
    named = resolve_target("cpu").name
    program = xrt.compile(net(), target=named, policy=policy, weights={"w": W, "v": V})
    with pytest.raises(KernelRefused) as at_load:
        Executor(program)
    ((kernel, nodes, why),) = at_load.value.calls
    assert (kernel, nodes) == ("matmul/onednn", ("second",))
    assert SAID in why


def compiled() -> None:
    """A program for this machine's own processor is made without what its library declines, and says so."""
    policy = xrt.KernelPolicy(matmul="onednn")
    weights = {"w": W, "v": V}
    program = xrt.compile(net(), target="cpu", policy=policy, weights=weights)
    with Executor(program) as executor:
        executor.bind(weights)
        (y,) = executor.run_arrays([X])
    assert np.allclose(y, wanted(X), atol=1e-4)
    declined = [c for d in program.decisions for c in d.rejected if c.name == "onednn"]
    assert declined
    assert all(c.code is Reason.FORBIDDEN for c in declined)
    assert all(c.reason.startswith(f"the library declines: matmul/onednn: {SAID}") for c in declined)
    named = resolve_target("cpu").name
    elsewhere = xrt.compile(net(), target=named, policy=policy, weights=weights)
    assert elsewhere.digest != program.digest
    assert {c.kernel for c in elsewhere.entries[0].plans[0].calls if c.library} == {"matmul/onednn"}
    again = xrt.compile(net(), target="cpu", policy=policy, weights=weights)
    assert again.to_bytes() == program.to_bytes()


def judged() -> None:
    """``xpu conformance`` counts what a library declines as refused, with its words: asked before, or met when a program is loaded."""
    mine = [k for k in kernels.rows("cpu") if k.name == "matmul/onednn"]
    assert mine
    kernels.rows = lambda kind: mine
    for where in ("cpu", resolve_target("cpu").name):
        report = conformance(where, suites=("kernels",), sample=6)
        assert not report.wrong, report.wrong
        (suite,) = report.suites
        declined = [f for f in suite.findings if SAID in f.why]
        assert declined
        assert all(f.outcome == "refused" and SAID in f.reason for f in declined)


def strict() -> None:
    """Under strict=True a library that declines is an error too."""
    with pytest.raises(StrictError, match="its library declines it"):
        session(xrt.KernelPolicy(matmul="onednn"), strict=True)


def open_shapes() -> None:
    """Sizes that are met later are compiled without it at once."""
    found = session(xrt.KernelPolicy(matmul="onednn"), rows="rows")
    for rows in (8, 3, 8):
        (y,) = found.run({"x": X[:rows]}).values()
        assert np.allclose(y, wanted(X[:rows]), atol=1e-4)
    assert not any("onednn" in k for k in kernels_of(found))


def alternatives() -> None:
    """A program that is compiled already continues with its next alternative; with none it is an error."""
    targets = ["cpu:x86-64-v3", "cpu:x86-64-v2"]
    policy = xrt.KernelPolicy(matmul="onednn")
    program = xrt.compile(net(), target=targets, policy=policy, weights={"w": W, "v": V})
    with pytest.raises(KernelRefused, match=SAID):
        Executor(program)
    (entry,) = program.entries
    plain = xrt.compile(net(), target=targets[1], weights={"w": W, "v": V})
    assert entry.plans[0].target == targets[0]
    plans = (*entry.plans[:1], *plain.entries[0].plans)
    from dataclasses import replace

    moved = tuple(
        replace(p, binary=len(program.binaries) if p in plain.entries[0].plans else p.binary) for p in plans
    )
    mixed = replace(
        program,
        entries=(replace(entry, plans=moved),),
        binaries=(*program.binaries, *plain.binaries),
        recipes=tuple({r.name: r for r in (*program.recipes, *plain.recipes)}.values()),
    )
    executor = Executor(mixed)
    assert executor.plan.target == targets[1]
    (first,) = executor.decision.rejected
    assert first.code is Reason.BUILD_FAILED
    assert SAID in first.reason


if __name__ == "__main__":
    globals()[sys.argv[1]]()
