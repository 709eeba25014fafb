"""The CUDA target: its names, its prelude, and NVRTC on every family of generated kernels for three generations of GPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.codegen.cuda.sm import LEVELS, sm_level
from xpuruntime.codegen.cuda.target import CudaTarget, cuda_part, cuda_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.compiler.resolve import resolve_target
from xpuruntime.errors import BuildError, DeviceUnavailable
from xpuruntime.kernels.catalogue import kernels_of
from xpuruntime.testing.conformance.native_batch import Batch, batch_of
from xpuruntime.testing.emulation.cuda_host import cuda_host


def has_nvrtc() -> bool:
    try:
        nvrtc_toolchain()
    except BuildError:
        return False
    return True


needs_nvrtc = pytest.mark.skipif(not has_nvrtc(), reason="NVRTC is not installed")


def test_a_capability_is_named() -> None:
    target = resolve_target("cuda:sm_90")
    assert isinstance(target, CudaTarget)
    assert (target.name, target.kind, target.sm.architecture) == ("cuda:sm_90", "cuda", "sm_90a")


@pytest.mark.parametrize("text", ["cuda:sm_9", "cuda:9.0", "cpu:sm_90"])
def test_a_word_that_names_no_capability(text: str) -> None:
    with pytest.raises(DeviceUnavailable, match=r"no such CUDA target.*Name one of cuda, cuda:sm_80"):
        cuda_target(text)


def test_a_device_takes_the_most_that_it_runs() -> None:
    assert sm_level((9, 0)) is LEVELS["sm_90"]
    assert sm_level((8, 7)) is LEVELS["sm_86"]
    assert sm_level((7, 5)) is None
    assert sm_level((13, 0)) is None


def test_a_machine_without_a_device_is_told_to_name_one() -> None:
    from xpuruntime import _core

    status, facts = _core.cuda_facts(_core.Search())
    if status.ok and facts.devices:
        pytest.skip("there is a device here")
    with pytest.raises(DeviceUnavailable, match=r"has no visible CUDA device 90.*Name one of cuda:sm_80"):
        cuda_target("cuda:90")
    with pytest.raises(DeviceUnavailable, match=r"has no visible CUDA device.*Name one of cuda:sm_80"):
        cuda_target("cuda")


def test_parts_are_cuda_s_own_or_the_c_one() -> None:
    assert cuda_part("reduce")[0] == "reduce.cuh"
    assert cuda_part("exp") == cuda_part("erf") == cuda_part("math")
    assert cuda_part("sorting")[0] == "sorting.h"
    with pytest.raises(BuildError, match="no such part of the prelude; got 'nothing'"):
        cuda_part("nothing")
    source = cuda_target("cuda:sm_80").source({"k": "// KERNEL"}, {"exp", "softplus", "log"})
    assert source.count("// math:") == 1
    assert (
        source.index("// prelude:")
        < source.index("// math:")
        < source.index("// softplus:")
        < source.index("// k")
    )


def test_the_guide_s_methods_name_what_there_is() -> None:
    target = cuda_target("cuda:sm_90")
    for _, file in (
        target.elementwise_kernel("erf"),
        target.matmul_kernel(True, False),
        target.matmul_kernel(False, True),
        target.fused_kernel("softmax"),
        target.fused_kernel("attention"),
    ):
        assert target.shader_source(file)


def test_kernels_are_those_of_the_target_s_kind() -> None:
    names = {k.name for k in kernels_of("softmax", "cuda")}
    assert names == {"softmax/generated"}
    assert all(type(k).__module__ != "xpuruntime.kernels.ported" for k in kernels_of("add", "cuda"))


# ── NVRTC ──

Build = Callable[[Any], None]


def floats(b: Any, dtype: str) -> None:
    x, y = b.input("x", f"{dtype}[64, 96]"), b.input("y", f"{dtype}[96]")
    h = b.add(b.gelu(x), b.mul(b.tanh(y), b.pow(b.abs(x), 1.5)))
    b.output("a", b.softmax(h, dim=1))
    b.output("b", b.layer_norm(h, y, y, normalized_shape=[96], eps=1e-5))
    b.output("c", b.mean(b.sin(h), dim=[0]))
    b.output("d", b.argmax(x, dim=1))
    b.output("e", b.permute(x, dims=[1, 0]))
    b.output("f", b.cast(x, dtype="int32"))
    b.output("g", b.topk(x, k=3, dim=1)[0])


def whole(b: Any, dtype: str) -> None:
    x, y = b.input("x", f"{dtype}[7, 9]"), b.input("y", f"{dtype}[9]")
    b.output("a", b.sum(b.maximum(x, y), dim=[1]))
    b.output("b", b.cat(x, x, dim=0))
    b.output("c", b.amax(x, dim=[0]))
    b.output("d", b.cast(x, dtype="float16"))


def places(b: Any, dtype: str) -> None:
    x, at, y = b.input("x", f"{dtype}[9, 6]"), b.input("at", "int64[3]"), b.input("y", f"{dtype}[3, 6]")
    b.output("a", b.index_copy(x, at, y, dim=0))
    b.output("b", b.index_select(x, at, dim=0))
    b.output("c", b.embedding(x, at))


def images(b: Any, dtype: str) -> None:
    x = b.input("x", f"{dtype}[2, 8, 9, 9]")
    window = {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1]}
    b.output("a", b.max_pool(x, **window))
    b.output("b", b.avg_pool(x, **window))
    b.output("c", b.pad(x, pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.0))
    b.output("d", b.resize(x, size=[2, 8, 18, 18], mode="linear"))


def tails(b: Any, dtype: str) -> None:
    """Texts that are the CPU's: tables with infinities, convolutions as they are written."""
    x, w = b.input("x", f"{dtype}[1, 4, 9, 9]"), b.input("w", f"{dtype}[4, 4, 3, 3]")
    b.output("a", b.convolution(x, w, stride=[1, 1], padding=[1, 1], dilation=[1, 1]))
    b.output("b", b.cast(b.cast(x, dtype="float8_e5m2"), dtype=dtype))
    b.output("c", b.cumsum(x, dim=1))


GRAPHS: tuple[tuple[Callable[[Any, str], None], tuple[str, ...]], ...] = (
    (floats, ("float32", "bfloat16", "float16", "float64")),
    (whole, ("int8", "uint8", "int64", "bool")),
    (places, ("float32", "bfloat16")),
    (images, ("float32", "bfloat16")),
    (tails, ("float32", "int32")),
)


def gathered(target: Batch) -> Batch:
    """Functions of all graphs, for one run of the compiler."""
    for write, dtypes in GRAPHS:
        for dtype in dtypes:
            b = ir.GraphBuilder("g")
            write(b, dtype)
            compile_graph(b.build(), target=target, passes=0)
    return target


@pytest.mark.sampled(1)
@needs_nvrtc
@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
def test_every_family_compiles(level: str) -> None:
    target = gathered(batch_of(cuda_target(f"cuda:{level}")))
    assert len(target.functions) > 60
    (program,) = target.done([compile_one(target)])
    assert not isinstance(program, BuildError), program
    (binary,) = program.binaries
    assert (binary.target, binary.format, binary.requires) == (f"cuda:{level}", "cubin", (f"cuda:{level}",))
    assert set(binary.symbols) == set(target.functions)
    assert all(symbol.encode() in binary.data for symbol in target.functions)
    assert binary.compiler.startswith("NVRTC")


def compile_one(target: Batch) -> Any:
    b = ir.GraphBuilder("g")
    b.output("y", b.relu(b.input("x", "float32[3]")))
    return compile_graph(b.build(), target=target)


@needs_nvrtc
def test_a_program_carries_its_launches() -> None:
    b = ir.GraphBuilder("g")
    b.output("y", b.softmax(b.exp(b.input("x", "float32[100, 300]")), dim=1))
    program = compile_graph(b.build(), target="cuda:sm_80")
    (call,) = program.entries[0].plans[0].calls
    (threads, _, _), grid = call.options["block"], call.options["grid"]
    assert grid == [100, 1, 1]
    assert call.tasks == 100
    launch = f"grid 100 1 1, block {threads} 1 1, shared 0"
    head = f'extern "C" __global__ void __launch_bounds__({threads}) {call.symbol}('
    assert f"{launch}\n{head}" in program.binaries[0].source


def test_the_stand_in_is_the_same_text() -> None:
    """What runs on a CPU is what NVRTC gets, line by line."""
    b = ir.GraphBuilder("g")
    b.output("y", b.softmax(b.input("x", "float32[5, 300]"), dim=1))
    graph = b.build()
    ours = compile_graph(graph, target=cuda_host("sm_90"))
    (call,) = ours.entries[0].plans[0].calls
    text = ours.binaries[0].source
    _, _, rest = text.partition("// softmax(")
    own = "// softmax(" + rest.partition('extern "C" __attribute__')[0]
    gathering = batch_of(cuda_target("cuda:sm_90"))
    compile_graph(graph, target=gathering)
    assert own.replace("gpu_", "").strip() == gathering.functions[call.symbol].strip()


def test_configurations_size_what_is_launched() -> None:
    from dataclasses import replace

    from xpuruntime.targets import CUDA_GENERATED

    def texts(**changed: int) -> str:
        target = batch_of(CudaTarget(LEVELS["sm_90"], replace(CUDA_GENERATED, **changed)))
        gathered(target)
        return "\n".join(target.functions.values())

    usual = texts()
    assert np.unique([usual, texts(max_threadgroup_1d=128), texts(max_threadgroup_2d=16)]).size == 3


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_regions_of_two_samples_compile(arch: str) -> None:
    """NVRTC 13.0 ended the process in these sizes when a thread computed all bins of a region."""
    b = ir.GraphBuilder("regions")
    operands = [
        b.input("x", "float32[2, 3, 9, 8]"),
        b.input("rois", "float32[4, 4]"),
        b.input("images", "int64[4]"),
    ]
    b.output("y", b.call("roi_align", *operands, output_size=[3, 2], sampling_ratio=2, spatial_scale=0.5))
    assert compile_graph(b.build(), target=f"cuda:{arch}").binaries[0].data
