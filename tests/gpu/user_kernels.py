"""Kernels of users on a device: CUDA C++, Triton and Python functions in programs, correct against PyTorch, timed against PyTorch and our own.

    python tests/gpu/user_kernels.py --out benchmarks/results/cuda_user_kernels.json [PART ...]

The kernels are those of examples/user_kernels. Needs torch with CUDA; its Triton is used where it is there.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_report import Report, queued_us, run_parts

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import BuildError
from xpuruntime.plugins import registered
from xpuruntime.runtime import Executor

KERNELS = Path(__file__).resolve().parents[2] / "examples" / "user_kernels" / "kernels.py"
SHAPES = ((4, 1536), (2048, 1536), (16384, 4096), (3, 77))
DTYPES = ("float32", "bfloat16", "float16")
LIMITS = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}


def graph(shape: tuple[int, ...], dtype: str) -> ir.Graph:
    """An RMS norm, and an activation that our own kernel would take in."""
    b = ir.GraphBuilder("norm")
    x, w = b.input("x", f"{dtype}{list(shape)}"), b.input("w", f"{dtype}[{shape[-1]}]")
    b.output("y", b.relu(b.rms_norm(x, w, normalized_shape=(shape[-1],), eps=1e-5, name="normed")))
    return b.build()


def tensors(shape: tuple[int, ...], dtype: str) -> dict[str, torch.Tensor]:
    """Seeded operands on the device."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    return {
        "x": torch.randn(shape, device="cuda").to(kind),
        "w": torch.randn(shape[-1:], device="cuda").to(kind),
    }


def executor_of(word: str, shape: tuple[int, ...], dtype: str) -> Executor:
    """The program in which a policy forces a kernel; ``""`` for ours."""
    policy = xrt.KernelPolicy(rules=[xrt.Rule(op="norm", use=word)]) if word else None
    return Executor(compile_graph(graph(shape, dtype), target="cuda", policy=policy), "cuda:0")


def run(executor: Executor, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """One run on tensors of the device."""
    return torch.from_dlpack(executor.run(given)["y"])


def words() -> list[str]:
    """Those of the example that this machine can compile."""
    return ["mine", *(["triton"] if importlib.util.find_spec("triton") is not None else [])]


def beside(report: Report, shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """One shape and dtype: errors against float64, and microseconds of one run."""
    given = tensors(shape, dtype)
    wide = {n: t.double() for n, t in given.items()}

    def theirs(of: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.relu(torch.nn.functional.rms_norm(of["x"], shape[-1:], of["w"], 1e-5))

    want, row = (
        theirs(wide),
        {"shape": shape, "dtype": dtype, "torch": {"us": round(queued_us(lambda: theirs(given)), 2)}},
    )
    for word in (*words(), ""):
        made = executor_of(word, shape, dtype)
        # Kernel by kernel, captured, replayed.
        errors = [(run(made, given).double() - want).abs().max() / want.abs().max() for _ in range(3)]
        error, kernels = max(map(float, errors)), [c.kernel for c in made.plan.calls]
        who = f"{word or 'ours'} {shape} {dtype}"
        report.check(error <= LIMITS[dtype], f"{who}: {error:.1e} from float64")
        report.check(not word or f"norm/{word}" in kernels, f"{who}: runs {kernels}")
        row[word or "ours"] = {
            "max_rel": error,
            "us": round(queued_us(functools.partial(made.run, given)), 2),
        }
    return row


def right(report: Report, args: argparse.Namespace) -> Any:
    """Every kernel in every dtype and shape against float64, and its time against PyTorch and our own kernel."""
    rows = [beside(report, shape, dtype) for shape in SHAPES for dtype in DTYPES]
    report.bound("kernels of users (CUDA C++, Triton) right on the device", not report.failures)
    return rows


def python(report: Report, args: argparse.Namespace) -> Any:
    """A Python function of torch tensors within a program: on the run's stream, no CUDA graph, and said so."""
    streams: list[int] = []

    @xrt.kernel("norm/torch", op="rms_norm", target="cuda", arrays="torch")
    def rms_norm(x: Any, weight: Any, *, normalized_shape: Any, eps: float) -> Any:
        streams.append(torch.cuda.current_stream().cuda_stream)
        return torch.nn.functional.rms_norm(x, normalized_shape, weight, eps)

    shape, given = SHAPES[0], tensors(SHAPES[0], "bfloat16")
    made = executor_of("torch", shape, "bfloat16")
    want = torch.relu(torch.nn.functional.rms_norm(given["x"], shape[-1:], given["w"], 1e-5))
    own = torch.cuda.Stream()
    with torch.cuda.stream(own):
        found = [run(made, given) for _ in range(3)]
    own.synchronize()
    report.check(all(torch.equal(y, want) for y in found), "a Python function gives what it gives outside")
    report.check(
        set(streams) == {own.cuda_stream}, f"it ran on the caller's stream: {streams}, {own.cuda_stream}"
    )
    notes = " ".join(made.notes)
    report.check(
        "cannot be part of a CUDA graph" in notes, f"the receipt says why there is no graph: {notes}"
    )
    return {"notes": made.notes, "implementations": made.implementations}


def saved(report: Report, args: argparse.Namespace) -> Any:
    """A saved program in a process that knows none of the kernels, with every compiler hidden."""
    given, outputs = tensors(SHAPES[0], "float32"), {}
    with tempfile.TemporaryDirectory() as folder:
        for word in words():
            made = executor_of(word, SHAPES[0], "float32")
            made.program.save(Path(folder) / f"{word}.npubin")
            outputs[word] = run(made, given).cpu().numpy()
        code = (
            "import sys, numpy as np, xpuruntime as xrt\n"
            "from xpuruntime.runtime import Executor\n"
            "x, w = (np.load(f'{n}.npy') for n in 'xw')\n"
            "for word in sys.argv[1:]:\n"
            "    np.save(f'{word}.npy', Executor(xrt.CompiledProgram.load(f'{word}.npubin'), 'cuda:0').run_arrays([x, w])[0])\n"
        )
        for name, tensor in given.items():
            np.save(Path(folder) / f"{name}.npy", tensor.cpu().numpy())
        environment = {k: v for k, v in os.environ.items() if k != "XPU_KERNELS"} | {
            "PATH": "/nowhere",
            "XPU_LIBNVRTC": "/nowhere.so",
        }
        subprocess.run(
            [sys.executable, "-c", code, *words()], cwd=folder, env=environment, check=True, timeout=120
        )
        same = {
            word: bool(np.array_equal(np.load(Path(folder) / f"{word}.npy"), outputs[word]))
            for word in words()
        }
    report.check(all(same.values()), f"the same bits from saved programs: {same}")
    return same


def mistakes(report: Report, args: argparse.Namespace) -> Any:
    """A compile error shows the source line, the node and the policy that chose the kernel."""
    text = "__global__ void broken(const in0_t *x, const in1_t *w, out0_t *y) {\n    y[threadIdx.x] = undefined_name;\n}\n"
    xrt.register_kernel("norm/broken", op="rms_norm", target="cuda", source=text)
    said = ""
    try:
        compile_graph(graph((3, 77), "float32"), target="cuda", policy=xrt.KernelPolicy(norm="broken"))
    except BuildError as error:
        said = str(error)
    wanted = (
        "node normed (rms_norm)",
        "broken.cu line 2 does not compile: `y[threadIdx.x] = undefined_name;`",
        "norm= of policy argument prefers it",
    )
    report.bound(
        "a user kernel with a compile error: line, node and policy in the message",
        all(w in said for w in wanted),
    )
    return said


def load(_: argparse.Namespace) -> None:
    """The example's kernels, as any process gets them."""
    os.environ["XPU_KERNELS"] = str(KERNELS)
    registered.load_plugins()


PARTS = {"right": right, "python": python, "saved": saved, "mistakes": mistakes}


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a kernel is wrong or a mistake is not said."""
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch", "triton"), argv=argv, before=load
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
