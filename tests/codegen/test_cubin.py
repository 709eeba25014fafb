"""Registers of a CUBIN's kernels, and launches that cannot work: NVRTC is told how many registers to keep to."""

from __future__ import annotations

import pytest

from xpuruntime.codegen.cuda.cubin import check_launch, kernels_in
from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.errors import BuildError

TEXT = """
extern "C" __global__ void few(float *x) { x[threadIdx.x] *= 2; }
extern "C" __global__ void many(float *x) {
    float a[120];
    #pragma unroll
    for (int i = 0; i < 120; ++i) a[i] = x[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 120; ++i) x[i * 1024 + threadIdx.x] = a[119 - i];
}
"""


def cubin(architecture: str, *options: str) -> bytes:
    try:
        toolchain = nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(f"no NVRTC: {error.got}")
    return toolchain.build(TEXT, architecture, options)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100"])
def test_registers_are_those_that_the_compiler_keeps_to(architecture: str) -> None:
    free = kernels_in(cubin(architecture))
    assert set(free) == {"few", "many"}
    assert free["few"] < 32
    assert 120 < free["many"] <= 255
    assert kernels_in(cubin(architecture, "--maxrregcount=64"))["many"] == 64


def test_a_launch_that_cannot_work_is_refused() -> None:
    data = cubin("sm_90a")
    check_launch(data, "many", (256, 1, 1), "rows.cu")
    check_launch(data, "few", (1024, 1, 1), "rows.cu")
    with pytest.raises(
        BuildError,
        match=r"many needs \d+ registers per thread, \d+ for 1024 threads.*__launch_bounds__\(1024\)",
    ):
        check_launch(data, "many", (32, 32, 1), "rows.cu")
    with pytest.raises(BuildError, match="few is launched with 2048 threads per block; the maximum is 1024"):
        check_launch(data, "few", (2048, 1, 1), "rows.cu")
    with pytest.raises(BuildError, match=r"no kernel 'rows'; got kernels"):
        check_launch(data, "rows", (32, 1, 1), "rows.cu")


@pytest.mark.parametrize("data", [b"", b"\x7fELF" + bytes(60), b"\x7fELF\x02\x01" + bytes(100), b"MZ" * 64])
def test_what_is_no_cubin_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"ELF|CUBIN"):
        kernels_in(data)


def test_a_cut_cubin_is_refused_or_read() -> None:
    whole = cubin("sm_80")
    for size in range(64, len(whole), max(1, len(whole) // 97)):
        try:
            assert set(kernels_in(whole[:size])) <= {"few", "many"}
        except ValueError:
            continue
