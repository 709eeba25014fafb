"""Kernels of users for CUDA: texts compiled by NVRTC and run on the emulator, their launches and errors; Triton where it is installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.native import check

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.codegen.cuda.cubin import kernels_in
from xpuruntime.errors import BuildError, KernelUnavailable
from xpuruntime.plugins import registered
from xpuruntime.testing.emulation.cuda_host import cuda_host

ROWS = """
constexpr int64_t COLS = in0_shape[1];

__device__ float joined(float *all, float mine, bool greatest) {
    const unsigned t = threadIdx.x;
    __syncthreads();
    all[t] = mine;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half; half /= 2) {
        if (t < half) all[t] = greatest ? fmaxf(all[t], all[t + half]) : all[t] + all[t + half];
        __syncthreads();
    }
    return all[0];
}

__global__ void rows(const in0_t *x, out0_t *y, double scale) {
    __shared__ float all[64];
    const in0_t *from = x + blockIdx.x * COLS;
    float most = -3e38f, sum = 0;
    for (int64_t c = threadIdx.x; c < COLS; c += blockDim.x) most = fmaxf(most, load<1>(from + c));
    most = joined(all, most, true);
    for (int64_t c = threadIdx.x; c < COLS; c += blockDim.x) sum += exp(load<1>(from + c) - most);
    sum = joined(all, sum, false);
    for (int64_t c = threadIdx.x; c < COLS; c += blockDim.x)
        store<1>(y + blockIdx.x * COLS + c, exp(load<1>(from + c) - most) / sum * (float)scale);
}
"""
LEVELS = ("sm_80", "sm_90", "sm_100")
X = np.random.default_rng(4).standard_normal((5, 137)).astype(np.float32)
MINE = xrt.KernelPolicy(softmax="mine")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = registered._TABLE.kernels, registered._TABLE.functions
    yield
    registered._TABLE.kernels, registered._TABLE.functions = before


def softmax_mine(**changed: Any) -> Any:
    given = {
        "op": "softmax",
        "target": "cuda",
        "source": ROWS,
        "launch": lambda call: xrt.Launch(call.outputs[0].shape[0], 64),
        "params": lambda call: {"scale": 1.0},
        "supports": lambda call: None if call.attrs["dim"] == 1 else "rows only",
    }
    return xrt.register_kernel("softmax/mine", **(given | changed))


def graph(dtype: str = "float32") -> ir.Graph:
    b = ir.GraphBuilder("scores")
    b.output("y", b.relu(b.softmax(b.input("x", f"{dtype}[5, 137]"), dim=1, name="probs")))
    return b.build()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_text_is_right_on_the_stand_in(dtype: str) -> None:
    softmax_mine()
    check(graph(dtype), {"x": X.astype(xrt.DType.of(dtype).numpy)}, policy=MINE, target=cuda_host())


@pytest.mark.parametrize("level", LEVELS)
def test_a_text_becomes_a_cubin_of_its_own_with_its_launch(level: str) -> None:
    softmax_mine()
    program = xrt.compile(graph("bfloat16"), target=f"cuda:{level}", policy=MINE)
    (plan,) = program.entries[0].plans
    mine, rest = plan.calls
    assert (mine.kernel, mine.symbol, plan.binary_of(mine)) == ("softmax/mine", "rows", 0)
    assert (rest.kernel, plan.binary_of(rest)) == ("elementwise/generated", 1)
    assert dict(mine.options) == {"grid": [5, 1, 1], "block": [64, 1, 1], "shared": 0}
    assert [(p.name, p.type, p.value) for p in mine.params] == [("scale", "f64", 1.0)]
    assert list(kernels_in(program.binaries[0].data)) == ["rows"]
    assert xrt.CompiledProgram.from_bytes(program.to_bytes()).entries == program.entries


def test_clusters_shared_memory_and_grids_are_the_users() -> None:
    softmax_mine(launch=lambda call: xrt.Launch((4, 2), (16, 2, 2), shared=128, cluster=(2, 1, 1)))
    (call, _) = xrt.compile(graph(), target="cuda:sm_90", policy=MINE).entries[0].plans[0].calls
    assert dict(call.options) == {"grid": [4, 2, 1], "block": [16, 2, 2], "shared": 128, "cluster": [2, 1, 1]}
    assert call.tasks == 8


def refused(**changed: Any) -> str:
    softmax_mine(**changed)
    with pytest.raises(BuildError) as error:
        xrt.compile(graph(), target="cuda:sm_90", policy=MINE)
    return str(error.value)


def test_a_compile_error_shows_line_node_and_rule() -> None:
    said = refused(source=ROWS.replace("float most = -3e38f", "flaot most = -3e38f"))
    assert said.startswith(
        "[kernel softmax/mine for node probs (softmax) on cuda:sm_90] mine.cu line 18 does not compile: "
        "`flaot most = -3e38f, sum = 0;` (chosen because softmax= of policy argument prefers it); got "
    )
    assert 'mine.cu(18): error: identifier "flaot" is undefined' in said
    assert said.endswith("Correct line 18 of mine.cu.")


def test_other_mistakes_are_said() -> None:
    said = refused(params=None)
    assert "mine.cu line 15 has a wrong signature: `__global__ void rows(" in said
    assert said.endswith('Write: extern "C" __global__ void rows(const float *in0, float *out0)')
    assert "has no function 'lines'" in refused(entry="lines")
    assert "2048 threads per block; the maximum is 1024" in refused(launch=lambda call: xrt.Launch(5, 2048))
    wide = ROWS.replace("float most =", "float a[120];\n#pragma unroll\nfor (int i = 0; i < 120; ++i) a[i] = x[i * 97 + threadIdx.x];\n__syncthreads();\n"
        "#pragma unroll\nfor (int i = 0; i < 120; ++i) y[i * 97 + threadIdx.x] = a[119 - i];\nfloat most =")  # fmt: skip
    said = refused(source=wide, launch=lambda call: xrt.Launch(5, 1024))
    assert "registers per thread" in said
    assert "__launch_bounds__(1024)" in said
    assert "sizes are one to three positive numbers, got (0, 1)" in refused(
        launch=lambda call: xrt.Launch((0, 1))
    )
    assert "identifier" in refused(flags=("-DCOLS=5.5.5",))


def test_one_name_serves_both_kinds_of_target() -> None:
    softmax_mine()
    xrt.register_kernel(
        "softmax/mine", op="softmax", function=lambda x, **_: np.exp(x) / np.exp(x).sum(1, keepdims=True)
    )
    kinds = [
        xrt.compile(graph(), target=t, policy=MINE).entries[0].plans[0].calls[0].library
        for t in ("cuda:sm_80", "cpu")
    ]
    assert kinds == ["", "python"]
    assert registered.kernel_words() == ("mine",)


def test_a_python_function_of_arrays_is_for_the_host() -> None:
    xrt.register_kernel("softmax/py", op="softmax", target="cuda", function=lambda x, **_: x, arrays="torch")
    (call, _) = (
        xrt.compile(graph(), target="cuda:sm_90", policy=xrt.KernelPolicy(softmax="py"))
        .entries[0]
        .plans[0]
        .calls
    )
    assert (call.library, call.symbol) == ("python", "softmax/py@cuda")
    with pytest.raises(KernelUnavailable, match=r"supports arrays='numpy' or arrays='torch'; got 'cupy'"):
        xrt.register_kernel("softmax/py", op="softmax", target="cuda", function=print, arrays="cupy")


# ── Triton ──

TRITON = """
import triton
import triton.language as tl

@triton.jit
def rows(x, y, scale, COLS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    here = i < COLS
    v = tl.load(x + tl.program_id(0) * COLS + i, mask=here, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + tl.program_id(0) * COLS + i, e / tl.sum(e, 0), mask=here)

@triton.jit
def wrong(x, y, in0_size: tl.constexpr):
    z = tl.lod(x)
    tl.store(y, z)
"""


@pytest.fixture
def functions(tmp_path: Path) -> Any:
    pytest.importorskip("triton")
    file = tmp_path / "triton_rows.py"
    file.write_text(TRITON)
    spec = importlib.util.spec_from_file_location("triton_rows", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["triton_rows"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["triton_rows"]


def of_triton(function: Any, **changed: Any) -> None:
    given: dict[str, Any] = {
        "launch": lambda call: call.outputs[0].shape[0],
        "params": lambda call: {"scale": 1.0},
        "constants": lambda call: {"COLS": call.outputs[0].shape[1], "BLOCK": 256},
        "options": {"num_warps": 2},
    }
    xrt.register_kernel("softmax/mine", op="softmax", target="cuda", function=function, **(given | changed))


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_triton_function_becomes_a_cubin(functions: Any, level: str, dtype: str) -> None:
    of_triton(functions.rows)
    program = xrt.compile(graph(dtype), target=f"cuda:{level}", policy=MINE)
    call = program.entries[0].plans[0].calls[0]
    assert (call.kernel, call.symbol) == ("softmax/mine", "rows")
    assert call.options["grid"] == [5, 1, 1]
    assert call.options["block"] == [64, 1, 1]
    assert call.params[0].name == "scale"
    assert {(p.type, p.value) for p in call.params[1:]} <= {("i64", 0)}  # scratch memory that it does not use
    assert list(kernels_in(program.binaries[0].data)) == ["rows"]
    assert program.binaries[0].compiler.startswith("Triton ")
    assert "tl.program_id(0)" in program.binaries[0].source


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_mistakes_in_triton_are_said(functions: Any) -> None:
    def refused(function: Any, **changed: Any) -> str:
        of_triton(function, **changed)
        with pytest.raises(BuildError) as error:
            xrt.compile(graph(), target="cuda:sm_90", policy=MINE)
        return str(error.value)

    said = refused(functions.wrong, params=None)
    assert said.startswith("[kernel softmax/mine for node probs (softmax) on cuda:sm_90] ")
    assert (
        "triton_rows.py line 15 does not compile: `z = tl.lod(x)` (chosen because softmax= of policy argument prefers it)"
        in said
    )
    assert "no attribute 'lod'" in said
    assert "softmax/mine gets 2 arguments (in0, out0), but its function takes x, y, scale" in refused(
        functions.rows, params=None
    )
    assert "has no value for the constexpr COLS; give it in constants=" in refused(
        functions.rows, constants=None
    )
    with pytest.raises(KernelUnavailable, match="Give target='cuda'"):
        xrt.register_kernel("softmax/mine", op="softmax", function=functions.rows)
    of_triton(functions.rows)
    forced = xrt.KernelPolicy(rules=[xrt.Rule(op="softmax", use="mine")])
    with pytest.raises(KernelUnavailable, match="Triton compiles for CUDA devices, not for cpu"):
        xrt.compile(graph(), target=cuda_host(), policy=forced)
