"""Heavy CUDA kernels compile for every architecture, without a device, and their code fits a multiprocessor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from support.heavy_cuda_calls import CALLS, FEW_SPILLS, call_text, resources, stages

from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.codegen.cuda.sm import LEVELS
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import BuildError
from xpuruntime.ir import GraphBuilder

REGISTERS = 65536  # of a multiprocessor
STATIC_SHARED = 48 * 1024  # bytes per block


@pytest.fixture(scope="module", autouse=True)
def nvrtc() -> None:
    try:
        nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("level", LEVELS)
def test_every_heavy_kernel_compiles_and_fits(
    level: str, part: Callable[[Sequence[str], int], list[str]]
) -> None:
    target = cuda_target(f"cuda:{level}")
    drawn = part([f"call {k}" for k in range(len(CALLS))], 3)
    for k in range(len(CALLS)):
        if f"call {k}" not in drawn:
            continue
        for found, options in resources(k, target):
            threads = math.prod(options["block"])
            what = f"{call_text(k)}: {found}, {threads} threads, {options['shared']} bytes of shared memory"
            assert 0 < found.registers * threads <= REGISTERS, what
            assert found.stack_bytes <= FEW_SPILLS, what
            assert found.shared_bytes <= STATIC_SHARED, what
            assert found.shared_bytes + options["shared"] <= target.config.smem_per_block, what


def test_attention_on_hopper_has_code_of_its_own() -> None:
    flash = next(
        k
        for k in range(len(CALLS))
        if call_text(k).startswith("attention/flash_v2") and "causal" in call_text(k)
    )
    for level in LEVELS:
        parts = {part for s in stages(flash, cuda_target(f"cuda:{level}")) for part in s.parts}
        assert ("flash_hopper" in parts) is (level == "sm_90")


def test_texts_that_a_compiler_once_died_of() -> None:
    """NVVM of CUDA 13 crashed where an image resized with values from outside and a byte copy stood in one text."""
    b = GraphBuilder("both")
    image = b.input("image", "bfloat16[2, 3, 7, 6]")
    cropped = b.resize(
        image, size=[2, 3, 13, 9], mode="cubic", coordinates="tf_crop_and_resize", roi=[0, 0, 0.2, -0.3, 1, 1, 0.8, 1.2], extrapolation_value=10.0,
    )  # fmt: skip
    b.output("cropped", cropped)
    b.output("turned", b.clone(b.permute(b.input("bytes", "int8[2, 14, 12, 3]"), dims=(0, 3, 1, 2))))
    assert compile_graph(b.build(), target="cuda:sm_90").binaries[0].data[:4] == b"\x7fELF"
