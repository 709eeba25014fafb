"""NVTX with a real library and a real listener, loaded the way profilers load theirs (NVTX_INJECTION64_PATH)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Writes down every push, pop and mark. Numbers: NVTX 3, nvtxDetail/nvtxTypes.h (export table 1 = callbacks, module 1 =
# core; in its table 2 = MarkA, 9 = RangePushA, 11 = RangePop).
LISTENER = r"""
#include <cstddef>
#include <cstdio>
#include <cstdlib>
static std::FILE* out;
static int depth = 0;
static void mark(const char* name) { std::fprintf(out, "mark %s\n", name); std::fflush(out); }
static int push(const char* name) { std::fprintf(out, "push %s\n", name); std::fflush(out); return depth++; }
static int pop() { std::fprintf(out, "pop\n"); std::fflush(out); return --depth; }
struct Callbacks { size_t size; int (*table)(int module, void**** functions, unsigned* count); };
extern "C" int InitializeInjectionNvtx2(const void* (*exported)(unsigned)) {
    const auto* callbacks = static_cast<const Callbacks*>(exported(1));
    void*** functions = nullptr;
    unsigned count = 0;
    if (callbacks == nullptr || callbacks->table(1, &functions, &count) == 0 || count < 12) return 0;
    out = std::fopen(std::getenv("LISTENER_LOG"), "w");
    *functions[2] = reinterpret_cast<void*>(&mark);
    *functions[9] = reinterpret_cast<void*>(&push);
    *functions[11] = reinterpret_cast<void*>(&pop);
    return 1;
}
"""


def python(code: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), **variables},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tool that writes what NVTX tells it; without it, or without NVTX, nothing can be heard."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    if "True" not in python("from xpuruntime.profiler import nvtx; print(nvtx.enable().loaded)"):
        pytest.skip("NVTX is not on this machine: pip install nvidia-nvtx")
    folder = tmp_path_factory.mktemp("listener")
    source, made = folder / "listener.cpp", folder / "liblistener.so"
    source.write_text(LISTENER)
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
    return made


def test_a_listener_hears_ranges_and_marks(listener: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    code = """
from xpuruntime.profiler import nvtx
early = nvtx.range("before enable").__enter__()
library = nvtx.enable()
assert library.loaded and library.path.startswith("/") and nvtx.active()
early.__exit__(None, None, None)
try:
    with nvtx.range("outer") as outer, nvtx.range("inner \u00e9") as inner:
        nvtx.mark("here")
        raise ValueError
except ValueError:
    pass
print(early.depth, outer.depth, inner.depth)
"""
    depths = python(code, NVTX_INJECTION64_PATH=str(listener), LISTENER_LOG=str(log))
    assert depths.split() == ["-1", "0", "1"]
    assert log.read_text(encoding="utf-8").splitlines() == [
        "push outer",
        "push inner \u00e9",
        "mark here",
        "pop",
        "pop",
    ]


def test_without_the_library_ranges_do_nothing(tmp_path: Path) -> None:
    code = """
from xpuruntime.profiler import nvtx
library = nvtx.enable()
with nvtx.range("nobody") as r:
    nvtx.mark("nobody")
print(library.loaded, library.status.code, nvtx.active(), r.depth)
"""
    out = python(code, XPU_LIBNVTX=str(tmp_path / "absent.so"))
    assert out.split() == ["False", "not_found", "False", "-1"]


PROGRAM = """
import numpy as np
from xpuruntime import ir
from xpuruntime.runtime import Executor
from support.native import compile_native

b = ir.GraphBuilder("small")
x = b.input("x", "float32[8]")
b.output("y", b.cumsum(b.exp(x), dim=0))
feed = np.zeros(8, np.float32)
executor = Executor(compile_native(b.build(), {"x": feed}))
for _ in range(2):
    (y,) = executor.run_arrays([feed])
assert y[-1] == 8
"""


@pytest.mark.parametrize("level", ["runs", "calls"])
def test_the_environment_gives_every_run_and_every_call_a_range(
    level: str, listener: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log.txt"
    python(PROGRAM, NVTX_INJECTION64_PATH=str(listener), LISTENER_LOG=str(log), XPU_NVTX=level)
    lines = log.read_text(encoding="utf-8").splitlines()
    inner = [
        "push kernel elementwise/generated (node exp)",
        "pop",
        "push kernel scan/generated (node cumsum)",
        "pop",
    ]
    assert lines == 2 * ["push small:main", *(inner if level == "calls" else ()), "pop"]


def test_an_unknown_level_is_refused() -> None:
    code = PROGRAM.replace(
        "executor = Executor",
        "import pytest\nfrom xpuruntime.errors import PolicyError\nwith pytest.raises(PolicyError, match='must be runs or calls; got .often.'):\n"
        "    Executor(compile_native(b.build(), {'x': feed}))\nraise SystemExit\nexecutor = Executor",
    )
    python(code, XPU_NVTX="often")
