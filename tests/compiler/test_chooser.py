"""Kernels are chosen by what they need and by measured times, where a policy or a file says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native import check

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.compiler.times import KernelTimes, call_key
from xpuruntime.errors import FormatError, KernelUnavailable
from xpuruntime.kernels import offers
from xpuruntime.kernels.kernel import NodeCall, Operand
from xpuruntime.policies import KernelPolicy, Rule
from xpuruntime.types import TensorSpec


def net() -> tuple[ir.Graph, dict[str, Any], dict[str, Any]]:
    """One convolution: three of our kernels and oneDNN compute it."""
    rng = np.random.default_rng(0)
    b = ir.GraphBuilder("net")
    x = b.input("x", "float32[1, 8, 12, 12]")
    w = b.weight("w", "float32[8, 8, 3, 3]")
    b.output("y", b.convolution(x, w, stride=[1, 1], padding=[1, 1], dilation=[1, 1]))
    feeds = {"x": rng.standard_normal((1, 8, 12, 12), dtype=np.float32)}
    return b.build(), feeds, {"w": rng.standard_normal((8, 8, 3, 3), dtype=np.float32) / 8}


def kernel_of(program: xrt.CompiledProgram) -> str:
    (name,) = {c.kernel for c in program.entries[0].plans[0].calls if c.kernel.startswith("conv/")}
    return name


def decision_of(program: xrt.CompiledProgram) -> Any:
    (found,) = [d for d in program.decisions if d.question == "kernel conv"]
    return found


def layer_calls() -> list[NodeCall]:
    """The convolution of ``net`` as the lowerer hands it to kernels."""
    seen: list[NodeCall] = []
    from xpuruntime.compiler import chooser

    original = chooser.Chooser.choose

    def watch(self: Any, node: Any, call: NodeCall) -> Any:
        seen.append(call)
        return original(self, node, call)

    chooser.Chooser.choose = watch  # type: ignore[method-assign]
    try:
        xrt.compile(net()[0])
    finally:
        chooser.Chooser.choose = original  # type: ignore[method-assign]
    return [c for c in seen if c.op in ("convolution", "fused_convolution")]


def test_a_limit_on_workspace_takes_the_kernel_that_fits_and_results_stay() -> None:
    graph, feeds, weights = net()
    usual = xrt.compile(graph)
    need = decision_of(usual).chosen.facts["workspace_bytes"]
    assert kernel_of(usual) == "conv/generated"
    assert need > 0
    small = KernelPolicy(rules=[Rule(op="conv", workspace_bytes=need - 1)])
    limited = xrt.compile(graph, policy=small)
    assert kernel_of(limited) == "conv/naive"
    no = next(c for c in decision_of(limited).rejected if c.name == "generated")
    assert no.code == "workspace_exceeded"
    assert (
        no.reason
        == f"needs {need} bytes of workspace; rules[0] of policy argument (op=conv) allows {need - 1}"
    )
    assert (
        kernel_of(xrt.compile(graph, policy=KernelPolicy(rules=[Rule(workspace_bytes=need)])))
        == "conv/generated"
    )
    check(graph, feeds, weights=weights, policy=small)


def test_workspace_is_what_the_program_says_of_its_calls() -> None:
    program = xrt.compile(net()[0])
    (call,) = [c for c in program.entries[0].plans[0].calls if c.kernel == "conv/generated"]
    assert decision_of(program).chosen.facts == {"workspace_bytes": call.scratch_bytes, "deterministic": True}


def test_determinism_shuts_out_who_does_not_promise_it() -> None:
    graph = net()[0]
    with pytest.raises(KernelUnavailable) as error:
        xrt.compile(graph, policy=KernelPolicy(rules=[Rule(op="conv", use="onednn", deterministic=True)]))
    text = str(error.value)
    assert "is not deterministic" in text or "is not installed" in text
    assert kernel_of(
        xrt.compile(graph, policy=KernelPolicy(conv="onednn", rules=[Rule(deterministic=True)]))
    ) != ("conv/onednn")


def times_for(us: dict[str, float], target: str | None = None) -> KernelTimes:
    return KernelTimes(target or cpu_target().name, 1, {call_key(c): us for c in layer_calls()})


def usable() -> list[str]:
    call = layer_calls()[0]
    return [k.name.partition("/")[2] for k, s in offers(call, cpu_target()) if s]


def test_the_fastest_of_all_measured_kernels_is_taken(tmp_path: Path) -> None:
    graph = net()[0]
    every = dict.fromkeys(usable(), 5.0) | {"naive": 2.5}
    file = tmp_path / "times.json"
    file.write_text(json.dumps(times_for(every).to_json()))
    program = xrt.compile(graph, times=file)
    assert kernel_of(program) == "conv/naive"
    chosen = decision_of(program).chosen
    assert chosen.code == "fastest"
    assert chosen.reason == f"2.5 us, the fastest of {len(every)} measured"
    assert program.digest != xrt.compile(graph).digest
    assert (
        kernel_of(xrt.compile(graph, times=file, policy=KernelPolicy(conv="generated"))) == "conv/generated"
    )


def test_times_of_another_target_or_call_or_of_some_kernels_decide_nothing() -> None:
    graph = net()[0]
    every = dict.fromkeys(usable(), 5.0) | {"naive": 2.5}
    partial = dict(list(every.items())[1:])
    for times in (
        times_for(every, "cpu:another"),
        times_for(partial),
        KernelTimes(cpu_target().name, 1, {"0" * 16: every}),
    ):
        assert kernel_of(xrt.compile(graph, times=times)) == "conv/generated"


def test_a_call_is_known_by_all_that_decides_its_code() -> None:
    (call,) = layer_calls()
    x = call.tensor(0)
    others = [
        NodeCall(call.node, (Operand(x.name, x.spec, True), *call.inputs[1:]), call.outputs),
        NodeCall(call.node, call.inputs, (call.outputs[0].substitute({}),) * 2),
        NodeCall(
            call.node,
            (Operand(x.name, TensorSpec.parse("float32[1, 8, 12, 13]")), *call.inputs[1:]),
            call.outputs,
        ),
    ]
    assert len({call_key(c) for c in (call, *others)}) == 1 + len(others)
    renamed = NodeCall(call.node, (Operand("other", x.spec), *call.inputs[1:]), call.outputs)
    assert call_key(renamed) == call_key(call)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"format": "other"}, "must be a file of format"),
        ({"format": "xpuruntime kernel times", "version": 1}, "has no target"),
        (
            {"format": "xpuruntime kernel times", "version": 1, "target": "cpu", "calls": {"a": {}}},
            "call a has no times_us",
        ),
        (
            {
                "format": "xpuruntime kernel times",
                "version": 1,
                "target": "cpu",
                "calls": {"a": {"times_us": {"k": -1}}},
            },
            "the time of k must be a positive number",
        ),
    ],
)
def test_a_damaged_file_of_times_is_refused(data: dict[str, Any], what: str) -> None:
    with pytest.raises(FormatError, match=what):
        xrt.compile(net()[0], times=data)
