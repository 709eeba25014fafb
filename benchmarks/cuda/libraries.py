"""Library kernels, convolutions and attention on a GPU, run as compiled programs, compared with PyTorch in float64, and timed.

    python benchmarks/cuda/libraries.py [--out FILE] [--only WORD]

Needs the package installed (its C++ core), torch with CUDA. A row has the implementation that the library chose. Runs are
queued on one stream, each a replay of the program's CUDA graph, so times of small cases include the launch. PyTorch runs eagerly, in the same loop.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, queued_us, run_parts
from library_cases import Case, attention_cases, cases, tensor

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import KernelRefused
from xpuruntime.ir import GraphBuilder
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor
from xpuruntime.runtime.backends.cuda import CudaBackend

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 8e-3, "float16": 1e-3}
"""Largest max|d| / max|ref|: one rounding of the result in 16 bits."""

DECLINED = ("conv/cudnn", "groups=32", "bfloat16", "act=silu")
"""Words of the name of the calls that cuDNN has no engine for: depthwise convolutions with SiLU in bfloat16."""


def program_of(
    case: Case, backend: CudaBackend, repeat: int = 1
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return a program of ``repeat`` nodes, each on the result of the previous one; its inputs; its weights."""
    b = GraphBuilder("one")
    feeds: dict[str, Any] = {}
    known: dict[str, Any] = {}
    names: list[Any] = []
    for i, x in enumerate(case.operands):
        if x is None:
            names.append(None)
            continue
        declare, arrays = (b.weight, known) if str(i) in case.weights else (b.input, feeds)
        arrays[f"x{i}"] = x = x.swapaxes(1, 2).copy() if case.swapped else x
        name = declare(f"x{i}", f"{x.dtype.name}{list(x.shape)}")
        names.append(b.call("permute", name, dims=[0, 2, 1, 3]) if case.swapped else name)
    out = names[0]
    for _ in range(repeat):
        out = b.call(case.op, out, *names[1:], **case.attrs)
    b.output("y", b.call("permute", out, dims=[0, 2, 1, 3]) if case.swapped else out)
    program = compile_graph(
        b.build(),
        target=backend.target,
        policy=KernelPolicy(**{case.family: case.word}),
        passes=3,
    )
    if case.change:
        program = replace(program, entries=tuple(
            replace(e, plans=tuple(replace(p, calls=tuple(
                replace(c, options=dict(c.options) | case.change) if c.library else c for c in p.calls)) for p in e.plans))
            for e in program.entries))  # fmt: skip
    return program, feeds, known


def run(case: Case, backend: CudaBackend) -> dict[str, Any]:
    """Compile, run, compare and time a case. Return its row."""
    program, feeds, known = program_of(case, backend)
    calls = [c for e in program.entries for p in e.plans for c in p.calls]
    inputs = {n: tensor(x) for n, x in feeds.items()}
    stream = torch.cuda.current_stream().cuda_stream
    executor = Executor(program, backend)
    try:
        executor.bind(known)
        y = torch.from_dlpack(executor.run(inputs, stream=stream)["y"])
        torch.cuda.synchronize()
        wide = [None if x is None else tensor(x).double() for x in case.operands]
        want = case.reference(*wide)
        want = want.transpose(1, 2) if case.swapped else want
        error = float((y.double() - want).abs().max() / want.abs().max())
        dtype = case.operands[0].dtype.name
        row: dict[str, Any] = {
            "case": case.name, "kernels": [c.kernel for c in calls], "chose": [x for x in executor.implementations if x], "error": error,
            "ok": bool(error <= TOLERANCE[dtype]) and (case.word == "auto" or any(c.kernel == f"{case.family}/{case.word}" for c in calls)),
        }  # fmt: skip
        again = torch.from_dlpack(executor.run(inputs, stream=stream)["y"])
        row["same bits again"] = bool(torch.equal(y, again))
    finally:
        executor.close()
    if case.time:
        times = timed(case, backend, inputs)
        row["ms"] = {n: round(t, 5) for n, t in times.items()}
        row["tflops"] = {n: round(case.flops / t / 1e9, 1) for n, t in times.items()}
    return row


def timed(case: Case, backend: CudaBackend, inputs: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the milliseconds of one node, ours and PyTorch's. If ``repeat`` is not 1, PyTorch's nodes are captured in a CUDA graph as well."""
    program, _, known = program_of(case, backend, case.repeat)
    stream = torch.cuda.current_stream().cuda_stream
    executor = Executor(program, backend)
    try:
        executor.bind(known)
        out = executor.run(
            inputs, stream=stream
        )  # the same memory each time, so that the graph needs no update
        times = {"ours": queued_us(lambda: executor.run(inputs, out=out, stream=stream))}
    finally:
        executor.close()
    if case.peer is not None:
        operands = [None if x is None else tensor(x) for x in case.operands]

        def peer() -> None:
            y = operands[0]
            for _ in range(case.repeat):
                y = case.peer(y, *operands[1:])

        if case.repeat > 1:
            peer()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                peer()
            times["torch"] = queued_us(graph.replay)
        else:
            times["torch"] = queued_us(peer)
    return {n: t / 1e3 / case.repeat for n, t in times.items()}


def rows(report: Report, args: argparse.Namespace) -> Any:
    """Check and time every library's kernels and our convolutions, next to PyTorch."""
    return run_cases(cases(), report, args)


def attention(report: Report, args: argparse.Namespace) -> Any:
    """Check and time cuDNN's attention and ours."""
    return run_cases(attention_cases(), report, args)


def run_cases(cases_to_run: Iterable[Case], report: Report, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Run cases until the time limit. Return a row for each."""
    begin, backend, rows_done = time.time(), CudaBackend(), list[dict[str, Any]]()
    for case in cases_to_run:
        if args.only not in case.name:
            continue
        if time.time() - begin > args.limit:
            rows_done.append({"case": case.name, "skipped": "out of time"})
            continue
        try:
            row = run_or_replaced(case, backend)
        except Exception as error:
            row = {"case": case.name, "ok": False, "failed": f"{type(error).__name__}: {str(error)[:400]}"}
        rows_done.append(row)
        print(json.dumps(row), flush=True)
        if not row["ok"]:
            report.check(False, f"{case.name}: {row.get('failed', row.get('error'))}")
    return rows_done


def run_or_replaced(case: Case, backend: CudaBackend) -> dict[str, Any]:
    """Run a case. If it is one that the library declines, run the default kernel."""
    try:
        return run(case, backend)
    except KernelRefused as error:
        if not all(word in case.name for word in DECLINED):
            raise
        done = run(replace(case, word="auto"), backend)
        return done | {"case": case.name, "declined": str(error)[:400]}


PARTS = {"rows": rows, "attention": attention}


def prepare(args: argparse.Namespace) -> None:
    """Disable TF32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a result is wrong, or a library refuses a call that its kernel accepted and that is not in ``DECLINED``."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which no further case begins")
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), argv=argv, parser=parser,
        before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
