"""What a known call of `xrt.ops` and a session's run on tensors cost on the host, compared with the libraries' own ops.

    python benchmarks/dispatch.py [--json] [--keep]

Tiny tensors, so that hardly anything is computed: microseconds of one whole call, the least of many short bursts in turns. ``launch`` is the same kernel
by an executor that is handed addresses; a call of an op over that has the bound of 4 us. On a GPU: benchmarks/cuda/dispatch.py.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from machine import facts, keep

import xpuruntime as xrt
from xpuruntime import ops
from xpuruntime.ir.build import GraphBuilder

BOUND_US = 4.0
BURST, ROUNDS = 400, 150


def softmax() -> Any:
    b: Any = GraphBuilder("softmax")
    b.output("y", b.softmax(b.input("x", "float32[4, 8]"), dim=-1))
    return b.build()


def calls() -> dict[str, Callable[[], Any]]:
    """By name; each is right, or this raises AssertionError."""
    x, a, b = torch.randn(4, 8), torch.randn(3, 4), torch.randn(4, 5)
    n, out, m, k = x.numpy(), torch.empty(4, 8), a.numpy(), b.numpy()
    session = xrt.InferenceSession(xrt.compile(softmax()), engine="native", device="cpu", threads=1)
    executor = xrt.Executor(xrt.compile(softmax()), threads=1)
    fixed, where = executor.bind(None), ([x.data_ptr()], [out.data_ptr()])
    functions: dict[str, Callable[[], Any]] = {
        "launch": lambda: executor.core.run_memory(fixed, *where),
        "ops.softmax, PyTorch, out": lambda: ops.softmax(x, out=out),
        "ops.softmax, PyTorch": lambda: ops.softmax(x),
        "ops.softmax, NumPy": lambda: ops.softmax(n),
        "ops.matmul, PyTorch": lambda: ops.matmul(a, b),
        "torch.matmul": lambda: torch.matmul(a, b),
        "ops.matmul, NumPy": lambda: ops.matmul(m, k),
        "numpy.matmul": lambda: np.matmul(m, k),
        "session.run, PyTorch": lambda: session.run({"x": x})["y"],
        "session.run, NumPy": lambda: session.run({"x": n})["y"],
    }
    for name, call in functions.items():
        got = call()
        want = a @ b if "matmul" in name else torch.softmax(x, -1)
        torch.testing.assert_close(torch.as_tensor(out if got is None else got), want)
    return functions


def measure() -> dict[str, float]:
    """Microseconds of a call, by name."""
    functions = calls()
    best = dict.fromkeys(functions, float("inf"))
    gc.collect()
    gc.disable()
    for _ in range(ROUNDS):
        for name, call in functions.items():
            begin = perf_counter_ns()
            for _ in range(BURST):
                call()
            best[name] = min(best[name], (perf_counter_ns() - begin) / BURST / 1e3)
    gc.enable()
    return {name: round(us, 3) for name, us in best.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/dispatch.json")
    options = parser.parse_args()
    about, times = facts("numpy", "torch"), measure()
    added = round(times["ops.softmax, PyTorch"] - times["launch"], 3)
    result = {
        "machine": about,
        "us": times,
        "added_us": added,
        "bound_us": BOUND_US,
        "within_bound": added <= BOUND_US,
    }
    if options.keep:
        keep("dispatch", result)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print(f"{about['cpu']}, {about['busy']:.0%} busy with other work")
        for name, us in times.items():
            print(f"{name:<28} {us:7.3f} us")
        print(f"a known call over its launch: {added:.3f} us (bound {BOUND_US:g})")
    return 0 if added <= BOUND_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
