"""Every field of a TargetConfig changes what is generated, and no sane value changes what is computed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from support.native import check, compile_native

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.codegen.cpp import cpu_target
from xpuruntime.codegen.isa import LEVELS
from xpuruntime.program.program import CompiledProgram
from xpuruntime.runtime.device import cuda
from xpuruntime.targets import CUDA_GPU, TARGETS, TargetConfig
from xpuruntime.testing.emulation.cuda_host import cuda_host

# A value of each field that differs from the own one of every CPU level.
OTHER = {
    "name": "cpu_another",
    "channel_alignment_bytes": 64,
    "channel_tile": 4,
    "matmul_tile": 3,
    "max_threadgroup_1d": 512,
    "max_threadgroup_2d": 4,
    "max_threadgroup_3d_xy": 5,
    "max_threadgroup_3d_z": 3,
    "max_dispatches_per_batch": 2,
}


@pytest.fixture(scope="module")
def network() -> tuple[ir.Graph, dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    b = ir.GraphBuilder("net")
    weights = {
        "w0": rng.standard_normal((20, 3, 3, 3), dtype=np.float32) / 5,
        "w1": rng.standard_normal((48, 20, 1, 1), dtype=np.float32) / 4,
        "w2": rng.standard_normal((40, 48), dtype=np.float32) / 6,
    }
    w = {n: b.weight(n, f"float32[{', '.join(map(str, a.shape))}]") for n, a in weights.items()}
    x = b.input("x", "float32[2, 3, 56, 56]")
    h = b.relu(b.convolution(x, w["w0"], stride=[1, 1], padding=[1, 1], dilation=[1, 1]))
    h = b.max_pool(h, kernel_size=[3, 3], stride=[2, 2], padding=[1, 1], dilation=[1, 1])
    h = b.convolution(h, w["w1"], stride=[1, 1], padding=[0, 0], dilation=[1, 1])
    h = b.permute(b.view(h, size=[2, 48, 784]), dims=[0, 2, 1])
    h = b.tanh(b.sigmoid(b.linear(h, w["w2"])))
    b.output("y", h)
    b.output("turned", b.permute(h, dims=[0, 2, 1]))
    return b.build(), {"x": rng.standard_normal((2, 3, 56, 56), dtype=np.float32)}, weights


def shown(program: CompiledProgram) -> list[object]:
    """What was generated: calls with their tasks, buffers, code."""
    plan = program.entries[0].plans[0]
    return [plan.calls, plan.buffers, plan.batch, program.binaries[0].source]


def test_every_field_has_another_value() -> None:
    assert set(OTHER) == {f.name for f in fields(TargetConfig)}
    for level in LEVELS.values():
        assert [name for name, value in OTHER.items() if getattr(level.config, name) == value] == []


@pytest.mark.parametrize("field", [f for f in OTHER if f != "name"])
def test_a_field_changes_the_program_and_nothing_else(field: str, network: Any) -> None:
    graph, feeds, weights = network
    config = replace(cpu_target("cpu").config, **{field: OTHER[field]})
    assert shown(compile_native(graph, feeds, target=config)) != shown(compile_native(graph, feeds))
    check(graph, feeds, weights=weights, target=config, split=3)


def test_all_at_once(network: Any) -> None:
    graph, feeds, weights = network
    check(graph, feeds, weights=weights, target=TargetConfig(**OTHER), split=2)


@pytest.mark.parametrize("name", [n for n, t in TARGETS.items() if t.kind == "cuda"])
def test_a_gpu_s_sizes_make_a_cuda_program(name: str, network: Any, caplog: pytest.LogCaptureFixture) -> None:
    graph, _, _ = network
    program = xrt.compile(graph, target=TARGETS[name])
    target = program.entries[0].plans[0].target
    assert target.startswith("cuda:sm_")
    assert {b.format for b in program.binaries} == {"cubin"}
    if not cuda().devices:
        assert f"code is generated for {target.removeprefix('cuda:')}" in caplog.text
    assert shown(program) != shown(xrt.compile(graph, target=target)), "the sizes are used"


def test_a_gpu_s_sizes_change_no_result(network: Any) -> None:
    graph, feeds, weights = network
    check(graph, feeds, weights=weights, target=cuda_host(config=CUDA_GPU))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("metal_gpu", "there is none for metal"),
        ("webgpu", "there is none for webgpu"),
        ("npu-sim:edge", "there is none for npu"),
        ("another", "begins with no kind of device"),
    ],
)
def test_sizes_for_what_no_code_is_generated_for_are_an_error(name: str, said: str, network: Any) -> None:
    with pytest.raises(xrt.BuildError, match=said) as caught:
        xrt.compile(network[0], target=replace(CUDA_GPU, name=name))
    assert f"TargetConfig {name!r}" in str(caught.value)
    assert "CodegenTarget" in caught.value.do
