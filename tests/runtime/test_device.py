"""Facts about this machine, held against what the operating system says by other ways."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from xpuruntime import _core, runtime
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.runtime import device


def python(code: str, **variables: str) -> str:
    """Run code in a fresh interpreter (a library, once loaded, stays) and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- the host processor ---------------------------------------------------------------------------------------------


def test_cpu_counts_are_the_operating_systems() -> None:
    facts = runtime.cpu()
    assert facts.architecture == os.uname().machine
    assert facts.logical_cores == os.cpu_count()
    assert facts.affinity_cores == len(os.sched_getaffinity(0))
    assert 1 <= facts.usable_cores <= facts.affinity_cores
    assert 1 <= facts.physical_cores <= facts.logical_cores
    assert facts.memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="flags of x86-64")
@pytest.mark.skipif("XPU_TEST_LEVEL" in os.environ, reason="the mask of the tests hides flags")
def test_cpu_flags_are_the_kernels() -> None:
    facts = runtime.cpu()
    cpuinfo = Path("/proc/cpuinfo").read_text()
    words = cpuinfo.split("flags", 1)[1].split("\n", 1)[0].split()
    names = {"avx2": "avx2", "sse4.2": "sse4_2", "avx512f": "avx512f", "amx-tile": "amx_tile"}
    for ours, kernels in names.items():
        assert (ours in facts.flags) == (kernels in words), ours
    assert facts.level in {f"x86-64-v{n}" for n in (1, 2, 3, 4)}
    assert (facts.level == "x86-64-v4") <= ("avx512vl" in facts.flags)


@pytest.mark.level("x86-64-v2")
def test_the_mask_of_the_tests_lowers_what_is_detected_and_what_may_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XPU_TEST_LEVEL", "x86-64-v2")
    facts = runtime.cpu()
    assert (facts.level, "sse4.2" in facts.flags, "avx" in facts.flags) == ("x86-64-v2", True, False)
    assert cpu_target().name == "cpu:x86-64-v2"
    assert _core.missing_requirements(["sse4.2", "avx2"]) == ["avx2"]


def test_affinity_is_looked_at_anew() -> None:
    code = (
        "import os\nfrom xpuruntime import runtime\nbefore = runtime.cpu().affinity_cores\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(before, runtime.cpu().affinity_cores, runtime.cpu().usable_cores)"
    )
    assert python(code).split() == [str(len(os.sched_getaffinity(0))), "1", "1"]


def test_everything_is_json_and_comes_back_equal() -> None:
    for value in (runtime.cpu(), runtime.cuda(), *runtime.libraries(load=False)):
        assert json.loads(json.dumps(value.to_json())) == value.to_json()


# --- vendors' libraries ---------------------------------------------------------------------------------------------


def test_import_maps_no_vendor_library() -> None:
    code = (
        "import xpuruntime.runtime as r, xpuruntime.profiler.events, xpuruntime.profiler.nvtx\n"
        "r.cpu(); r.libraries(load=False)\n"
        "print(open('/proc/self/maps').read())"
    )
    maps = python(code).lower()
    assert "_core" in maps
    for word in ("libcuda", "libnv", "nvtx", "nvidia"):
        assert word not in maps


def test_nothing_is_loaded_until_asked() -> None:
    code = "from xpuruntime import runtime\nprint({x.name: x.status.code for x in runtime.libraries(load=False)})"
    assert python(code).strip() == str(dict.fromkeys(_core.library_names(), "not_loaded"))
    assert _core.library_names()[:2] == ["cuda", "nvtx"]


def test_cuda_gives_devices_or_the_reason() -> None:
    report = runtime.cuda()
    assert runtime.cuda_devices() == report.devices
    if report.status.ok:
        assert report.devices
        assert report.devices[0].target.startswith("cuda:sm_")
    else:
        assert report.devices == ()
        assert report.status.code in {"not_found", "unreadable", "no_device", "call_failed", "symbol_missing"}
        assert report.status.message
        assert report.status.advice


def test_an_override_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    code = (
        "import json\nfrom xpuruntime import runtime\nprint(json.dumps(runtime.cuda().to_json()['status']))"
    )
    status = json.loads(python(code, XPU_LIBCUDA=str(path)))
    assert status == {
        "code": "not_found",
        "message": f"NVIDIA CUDA driver: no file found; tried {path}",
        "advice": "XPU_LIBCUDA names this file; correct it, or unset it to search as usual.",
    }


def test_an_override_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libcuda.so.1"
    path.write_bytes(b"\x7fELF but no more")
    code = (
        "import json\nfrom xpuruntime import runtime\nprint(json.dumps(runtime.cuda().to_json()['status']))"
    )
    status = json.loads(python(code, XPU_LIBCUDA=str(path)))
    assert status["code"] == "unreadable"
    assert str(path) in status["message"]


def test_a_library_without_the_functions() -> None:
    libc = next(
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libc.so" in line
    )
    code = (
        "from xpuruntime import runtime\nx = runtime.cuda().status\nprint(x.code, x.message)\n"
        "print([(y.name, y.loaded, y.status.code) for y in runtime.libraries(load=False)])"
    )
    out = python(code, XPU_LIBCUDA=libc)
    assert out.startswith("symbol_missing NVIDIA CUDA driver: ")
    assert "has no cuInit (since 2.0), cuDriverGetVersion (since 2.2)" in out
    assert "('cuda', False, 'symbol_missing')" in out


def test_unknown_name_is_a_key_error_that_lists_the_known() -> None:
    with pytest.raises(KeyError, match="no library 'mkl'; one of cuda, nvtx"):
        device.open_library("mkl")


def test_packages_folders_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "nvidia" / "nvtx" / "lib"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("XPU_LIBNVTX", raising=False)
    assert str(folder) in device.search("nvtx").folders
    assert device.search("nvtx").override_path == ""
    monkeypatch.setenv("XPU_LIBNVTX", "~/x.so")
    assert device.search("nvtx").override_path == str(Path.home() / "x.so")
    assert device.search("nvtx").folders == []


def test_many_threads_may_ask_at_once() -> None:
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda: answers.append((runtime.cuda(), runtime.libraries())))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert all(answer == answers[0] for answer in answers)


def test_the_gil_is_free_while_a_library_loads(tmp_path: Path) -> None:
    """A library whose initializer sleeps for half a second: other Python threads run meanwhile."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source, library = tmp_path / "slow.cpp", tmp_path / "libslow.so"
    source.write_text("#include <unistd.h>\nstatic int slept = usleep(500000);\n")
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    code = (
        "import threading, time\nfrom xpuruntime import runtime\n"
        "t = threading.Thread(target=runtime.cuda); t.start(); ticks = 0\n"
        "while t.is_alive(): time.sleep(0.01); ticks += 1\n"
        "print(ticks)"
    )
    assert int(python(code, XPU_LIBCUDA=str(library))) >= 10
