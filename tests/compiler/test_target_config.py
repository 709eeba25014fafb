"""Every field of a TargetConfig changes what is generated, and no sane value changes what is computed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import check, compile_native

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.codegen.cpp.isa import LEVELS
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.codegen.cuda.sm import LEVELS as SM_LEVELS
from xpuruntime.codegen.cuda.target import CudaTarget
from xpuruntime.compiler.resolve import resolve_target
from xpuruntime.errors import DeviceUnavailable
from xpuruntime.program.program import CompiledProgram
from xpuruntime.runtime.device import cuda
from xpuruntime.targets import CUDA_GENERATED, CUDA_GPU, GPUS, TARGETS, TargetConfig
from xpuruntime.testing.conformance.native_batch import batch_of
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType

# A value of each field that CPU kernels read, different from the own one of every CPU level.
OTHER: dict[str, Any] = {
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
# Fields that describe one GPU, with another value than that of any compute capability.
OTHER_GPU = {"num_sms": 12, "smem_per_block": 48 * 1024, "max_cluster_size": 1}


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
    assert {*OTHER, *OTHER_GPU} == {f.name for f in fields(TargetConfig)}
    for level in LEVELS.values():
        assert [name for name, value in OTHER.items() if getattr(level.config, name) == value] == []


@pytest.mark.sampled(3)
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


def decoder() -> tuple[ir.Graph, dict[str, Any]]:
    """Return a matrix product and one decoding step of attention over a cache of 1088 places, in bfloat16, and their inputs."""
    rng, b = np.random.default_rng(3), ir.GraphBuilder("decoder")
    shapes = {"a": (256, 64), "w": (64, 512), "q": (1, 2, 1, 128), "k": (1, 1, 1, 128), "v": (1, 1, 1, 128)}
    shapes |= {"cos": (1, 64), "sin": (1, 64)}
    feeds: dict[str, Any] = {
        n: rng.standard_normal(s).astype(ml_dtypes.bfloat16) for n, s in shapes.items()
    } | {"places": np.array([9])}
    x = {n: b.input(n, f"{DType.of(a.dtype)}{list(a.shape)}") for n, a in feeds.items()}
    states = [b.state(n, "bfloat16[1, 1, 1088, 128]") for n in ("keys", "values")]
    b.output("product", b.matmul(x["a"], x["w"]))
    y, *after = b.rope_attention(
        *(x[n] for n in ("q", "k", "v", "cos", "sin")), *states, x["places"], None, None
    )
    b.output("y", y)
    for state, value in zip(states, after, strict=True):
        b.set_state(state, value)
    return b.build(), feeds


@pytest.mark.sampled(1)
@pytest.mark.parametrize("field", OTHER_GPU)
def test_a_field_of_one_gpu_changes_the_program_and_nothing_else(field: str) -> None:
    graph, feeds = decoder()
    target = cuda_host(config=replace(CUDA_GENERATED, **{field: OTHER_GPU[field]}))
    assert shown(compile_native(graph, feeds, target=target)) != shown(
        compile_native(graph, feeds, target=cuda_host())
    )
    check(graph, feeds, target=target)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", GPUS)
def test_a_named_gpu_fills_the_fields_and_the_program_records_them(name: str) -> None:
    graph = relu()
    target = resolve_target(f"cuda:{name}")
    level = SM_LEVELS[GPUS[name].capability]
    recorded = {
        "num_sms": GPUS[name].num_sms,
        "smem_per_block": level.smem_per_block,
        "max_cluster_size": level.max_cluster_size,
    }
    program = xrt.compile(graph, target=batch_of(target))  # without NVRTC
    assert program.facts["gpus"] == {f"cuda:{level.name}": recorded}
    again = resolve_target(TargetConfig.named(name))
    assert (again.name, again.config) == (target.name, target.config)


def test_a_capability_alone_has_documented_defaults() -> None:
    counts = {name: resolve_target(f"cuda:{name}").config.num_sms for name in SM_LEVELS}
    assert counts == {"sm_80": 108, "sm_86": 72, "sm_89": 142, "sm_90": 132, "sm_100": 148, "sm_120": 170}
    assert "gpus" not in xrt.compile(relu(), target="cpu").facts


def test_a_config_cannot_exceed_its_capability() -> None:
    config = CudaTarget(
        SM_LEVELS["sm_80"], replace(CUDA_GENERATED, smem_per_block=1 << 20, max_cluster_size=16)
    ).config
    assert (config.smem_per_block, config.max_cluster_size) == (163 * 1024, 1)


def test_an_unknown_gpu() -> None:
    with pytest.raises(DeviceUnavailable, match=r"no GPU of this name.*Did you mean 'h100-sxm'"):
        TargetConfig.named("h100-sxm5")
    with pytest.raises(DeviceUnavailable, match=r"no such CUDA target.*Did you mean 'cuda:h200'"):
        resolve_target("cuda:h201")


def relu() -> ir.Graph:
    b = ir.GraphBuilder("relu")
    b.output("y", b.relu(b.input("x", "float32[8, 8]")))
    return b.build()


def test_a_gpu_s_sizes_change_no_result(network: Any) -> None:
    graph, feeds, weights = network
    check(graph, feeds, weights=weights, target=cuda_host(config=CUDA_GPU))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("metal_gpu", "there is no code generator for metal"),
        ("webgpu", "there is no code generator for webgpu"),
        ("npu-sim:edge", "there is no code generator for npu"),
        ("another", "its name has no kind of device"),
    ],
)
def test_sizes_for_what_no_code_is_generated_for_are_an_error(name: str, said: str, network: Any) -> None:
    with pytest.raises(xrt.BuildError, match=said) as caught:
        xrt.compile(network[0], target=replace(CUDA_GPU, name=name))
    assert f"TargetConfig {name!r}" in str(caught.value)
    assert "CodegenTarget" in caught.value.do
