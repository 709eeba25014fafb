"""Library kernels, convolutions and attention on a GPU, as calls of whole programs: compiled, loaded, run, compared with torch in float64, timed.

    python benchmarks/cuda/libraries.py [--out FILE] [--only WORD]

Needs the package installed (its C++ core), torch with CUDA. A row says what the library chose. Times are of runs one after the other
on one stream, each a replay of the program's CUDA graph, so small ones show the launch too; torch's are eager, in the same loop.
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
from xpuruntime.ir import GraphBuilder
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor
from xpuruntime.runtime.backends.cuda import CudaBackend

TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "bfloat16": 8e-3, "float16": 1e-3}
"""Largest max|d| / max|ref|: one rounding of the result in 16 bits."""


def program_of(
    case: Case, backend: CudaBackend, repeat: int = 1
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The node (``repeat`` of them, each over the result of the one before) as a program, its inputs, its weights."""
    b = GraphBuilder("one")
    feeds: dict[str, Any] = {}
    known: dict[str, Any] = {}
    names: list[Any] = []
    for i, x in enumerate(case.operands):
        if x is None:
            names.append(None)
            continue
        declare, held = (b.weight, known) if str(i) in case.weights else (b.input, feeds)
        held[f"x{i}"] = x = x.swapaxes(1, 2).copy() if case.turned else x
        name = declare(f"x{i}", f"{x.dtype.name}{list(x.shape)}")
        names.append(b.call("permute", name, dims=[0, 2, 1, 3]) if case.turned else name)
    out = names[0]
    for _ in range(repeat):
        out = b.call(case.op, out, *names[1:], **case.attrs)
    b.output("y", b.call("permute", out, dims=[0, 2, 1, 3]) if case.turned else out)
    program = compile_graph(
        b.build(), target=backend.target, policy=KernelPolicy(**{case.family: case.word}), passes=3
    )
    if case.change:
        program = replace(program, entries=tuple(
            replace(e, plans=tuple(replace(p, calls=tuple(
                replace(c, options=dict(c.options) | case.change) if c.library else c for c in p.calls)) for p in e.plans))
            for e in program.entries))  # fmt: skip
    return program, feeds, known


def run(case: Case, backend: CudaBackend) -> dict[str, Any]:
    """Compile, run, compare, time."""
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
        want = want.transpose(1, 2) if case.turned else want
        error = float((y.double() - want).abs().max() / want.abs().max())
        dtype = case.operands[0].dtype.name
        found: dict[str, Any] = {
            "case": case.name, "kernels": [c.kernel for c in calls], "chose": [x for x in executor.implementations if x], "error": error,
            "ok": bool(error <= TOLERANCE[dtype]) and any(c.kernel == f"{case.family}/{case.word}" for c in calls),
        }  # fmt: skip
        again = torch.from_dlpack(executor.run(inputs, stream=stream)["y"])
        found["same bits again"] = bool(torch.equal(y, again))
    finally:
        executor.close()
    if case.time:
        times = timed(case, backend, inputs)
        found["ms"] = {n: round(t, 5) for n, t in times.items()}
        found["tflops"] = {n: round(case.flops / t / 1e9, 1) for n, t in times.items()}
    return found


def timed(case: Case, backend: CudaBackend, inputs: dict[str, torch.Tensor]) -> dict[str, float]:
    """Milliseconds of one, ours and torch's: of a program of ``repeat``, and of a CUDA graph of as many where that is not 1."""
    program, _, known = program_of(case, backend, case.repeat)
    stream = torch.cuda.current_stream().cuda_stream
    executor = Executor(program, backend)
    try:
        executor.bind(known)
        out = executor.run(
            inputs, stream=stream
        )  # the same memory each time: the graph needs no other addresses
        times = {"ours": queued_us(lambda: executor.run(inputs, out=out, stream=stream))}
    finally:
        executor.close()
    if case.peer is not None:
        given = [None if x is None else tensor(x) for x in case.operands]

        def peer() -> None:
            y = given[0]
            for _ in range(case.repeat):
                y = case.peer(y, *given[1:])

        if case.repeat > 1:
            peer()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                peer()
            times["torch"] = queued_us(graph.replay)
        else:
            times["torch"] = queued_us(peer)
    return {n: t / 1e3 / case.repeat for n, t in times.items()}


def rows(report: Report, asked: argparse.Namespace) -> Any:
    """Every library's row and our convolutions in whole programs, right and timed against torch."""
    return judged(cases(), report, asked)


def attention(report: Report, asked: argparse.Namespace) -> Any:
    """cuDNN's attention and ours compared with it, right and timed."""
    return judged(attention_cases(), report, asked)


def judged(given: Iterable[Case], report: Report, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each case until the time is up."""
    begin, backend, found = time.time(), CudaBackend(), list[dict[str, Any]]()
    for case in given:
        if asked.only not in case.name:
            continue
        if time.time() - begin > asked.limit:
            found.append({"case": case.name, "skipped": "out of time"})
            continue
        try:
            row = run(case, backend)
        except Exception as error:
            row = {"case": case.name, "ok": False, "failed": f"{type(error).__name__}: {str(error)[:400]}"}
        found.append(row)
        print(json.dumps(row), flush=True)
        if not row["ok"]:
            report.check(False, f"{case.name}: {row.get('failed', row.get('error'))}")
    return found


PARTS = {"rows": rows, "attention": attention}


def prepare(asked: argparse.Namespace) -> None:
    """Full float32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a result is wrong or a library refuses what its row promised."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which no further case begins")
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), given=argv, parser=parser,
        before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
