"""NVRTC: texts become CUBINs without a device, each once; what is wrong with a text is said in its own words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from xpuruntime import _core
from xpuruntime.codegen.cuda import nvrtc as toolchains_nvrtc
from xpuruntime.codegen.cuda.nvrtc import Nvrtc, nvrtc_toolchain
from xpuruntime.errors import BuildError
from xpuruntime.storage.store import Store

TEXT = """extern "C" __global__ void halve(float const *x, float *y) {
    int const i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = expf(x[i]) / 2.0f;
}"""


@pytest.fixture(scope="module")
def nvrtc() -> Nvrtc:
    return nvrtc_toolchain()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120"])
def test_a_text_becomes_a_cubin(nvrtc: Nvrtc, arch: str, tmp_path: Path) -> None:
    cubin = nvrtc.build(TEXT, arch, store=Store(tmp_path))
    assert cubin[:4] == b"\x7fELF"
    assert int.from_bytes(cubin[18:20], "little") == 190  # EM_CUDA
    assert b"halve" in cubin


def test_what_was_compiled_lies_in_the_store(
    nvrtc: Nvrtc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    first = nvrtc.build(TEXT, "sm_90", store=store)
    calls = []
    real = _core.nvrtc_compile
    monkeypatch.setattr(toolchains_nvrtc._core, "nvrtc_compile", lambda *a: calls.append(a[2]) or real(*a))
    assert nvrtc.build(TEXT, "sm_90", store=store) == first
    assert calls == []
    # Every ingredient of the key makes another entry.
    nvrtc.build(TEXT, "sm_80", store=store)
    nvrtc.build(TEXT, "sm_90", ("-DX=1",), store=store)
    nvrtc.build(TEXT + "\n", "sm_90", store=store)
    Nvrtc((nvrtc.version[0], nvrtc.version[1] + 1)).build(TEXT, "sm_90", store=store)
    assert calls == ["sm_80", "sm_90", "sm_90", "sm_90"]
    assert len([e for e in store.entries() if e.kind == "cubin"]) == 5


def test_a_store_that_cannot_be_written_is_no_reason_to_fail(nvrtc: Nvrtc) -> None:
    assert nvrtc.build(TEXT, "sm_90", store=Store("/proc/none"))[:4] == b"\x7fELF"


def test_an_error_in_a_text_shows_the_line(nvrtc: Nvrtc, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as error:
        nvrtc.build(TEXT.replace("expf", "expg"), "sm_90", who="kernel user/halve", store=Store(tmp_path))
    text = str(error.value)
    assert text.startswith(f"[kernel user/halve] {nvrtc.name} rejects the code for sm_90")
    assert 'kernels.cu(3): error: identifier "expg" is undefined' in text
    assert "y[i] = expg(x[i]) / 2.0f;" in text


def test_an_architecture_that_does_not_exist_is_refused(nvrtc: Nvrtc, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="invalid value for --gpu-architecture"):
        nvrtc.build(TEXT, "sm_9", store=Store(tmp_path))


def test_a_library_that_is_named_and_absent_says_so() -> None:
    code = (
        "from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain\n"
        "try: nvrtc_toolchain()\n"
        "except Exception as e: print(type(e).__name__, e)"
    )
    env = {"XPU_LIBNVRTC": "/none/libnvrtc.so", "PATH": "/usr/bin"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert said.stdout.startswith("BuildError [codegen] CUDA kernels need NVRTC; got NVIDIA NVRTC")
    assert "/none/libnvrtc.so" in said.stdout
    assert "XPU_LIBNVRTC names this file; correct it, or unset it to search as usual." in said.stdout
