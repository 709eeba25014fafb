"""Overhead of a native program run over its kernels.

    python benchmarks/executor_overhead.py [--json] [--keep]

Programs of 1 to 100 calls whose kernel does nothing, through `Executor.run_arrays(..., out=)`, in microseconds: the smallest median of
many short blocks, since whatever else runs on the machine only adds. With two threads every call runs on both of them.
Bounds: 3 us a run on one thread, 2 us more for each call that two threads meet in.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
from machine import facts, keep

from xpuruntime.program.program import (
    Binary,
    BufferAllocation,
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    KernelCall,
)
from xpuruntime.runtime import Executor
from xpuruntime.types import DType, TensorSpec

SOURCE = 'extern "C" void nothing(void *const *, const void *, long, long, void *) {}'
RUN_US, CALL_US = 3.0, 2.0


def program(calls: int) -> CompiledProgram:
    """So many calls of a kernel that does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "k.cpp"), Path(folder, "k.so")
        source.write_text(SOURCE)
        subprocess.run(["c++", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        code = library.read_bytes()
    x, y = (TensorSpec((64,), DType.FLOAT32, n) for n in "xy")
    buffers = (
        BufferAllocation("x", BufferKind.INPUT, x, 256, "x"),
        BufferAllocation("y", BufferKind.OUTPUT, y, 256, "y"),
    )
    call = KernelCall("nothing", "nothing", ("x",), ("y",), tasks=64)
    plan = ExecutionPlan("cpu:any", 0, (call,) * calls, buffers, 0, 10_000)
    entry = EntryPoint("main", (x,), (y,), ("x",), ("y",), (plan,))
    return CompiledProgram("nothing", (entry,), binaries=(Binary("cpu:any", "elf", (), ("nothing",), code),))


def microseconds(executor: Executor, blocks: int = 60, runs: int = 200) -> float:
    """Of one run."""
    inputs, outputs = [np.zeros(64, np.float32)], [np.zeros(64, np.float32)]
    times = []
    for _ in range(blocks):
        start = perf_counter_ns()
        for _ in range(runs):
            executor.run_arrays(inputs, out=outputs)
        times.append((perf_counter_ns() - start) / runs / 1e3)
    times.sort()
    return statistics.median(times[: max(3, blocks // 10)])


def measure() -> list[dict[str, Any]]:
    """A row for each number of threads and calls."""
    rows = []
    for threads in (1, 2):
        for calls in (1, 10, 100):
            with Executor(program(calls), threads=threads) as executor:
                rows.append({"threads": threads, "calls": calls, "run_us": round(microseconds(executor), 3)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write results/executor_overhead.json")
    options = parser.parse_args()
    rows = measure()
    result = {"machine": facts(), "rows": rows}
    if options.keep:
        keep("executor_overhead", result)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for row in rows:
        bound = RUN_US + (row["calls"] * CALL_US if row["threads"] > 1 else 0.01 * row["calls"])
        print(
            f"{row['threads']} threads, {row['calls']:3} calls: {row['run_us']:8.2f} us (bound {bound:.1f})"
        )


if __name__ == "__main__":
    main()
