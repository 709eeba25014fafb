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


MEMORY = """
extern "C" __global__ void indexed(float *x, int n) {
    float a[64];
    for (int i = 0; i < 64; ++i) a[i] = x[i * n];
    for (int i = 0; i < 64; ++i) x[i] = a[(i * n) & 63];
}
extern "C" __global__ void shared(float *x) {
    __shared__ float s[100];
    s[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = s[99 - threadIdx.x];
}
"""


def cubin(architecture: str, *options: str, text: str = TEXT) -> bytes:
    try:
        toolchain = nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(f"no NVRTC: {error.got}")
    return toolchain.build(text, architecture, options)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100"])
def test_registers_are_those_that_the_compiler_keeps_to(architecture: str) -> None:
    free = kernels_in(cubin(architecture))
    assert set(free) == {"few", "many"}
    assert free["few"].registers < 32
    assert 120 < free["many"].registers <= 255
    assert free["few"].stack_bytes == free["many"].stack_bytes == free["few"].shared_bytes == 0
    tight = kernels_in(cubin(architecture, "--maxrregcount=64"))["many"]
    assert tight.registers == 64
    assert tight.stack_bytes >= 4 * (120 - 64), "what does not fit is spilled"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_120"])
def test_stack_and_shared_memory_are_those_of_the_text(architecture: str) -> None:
    kernels = kernels_in(cubin(architecture, text=MEMORY))
    assert kernels["indexed"].stack_bytes == 256
    assert kernels["indexed"].shared_bytes == 0
    reserved = 0 if architecture == "sm_80" else 1024
    assert kernels["shared"].shared_bytes == 400 + reserved
    assert kernels["shared"].stack_bytes == 0


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
