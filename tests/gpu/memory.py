"""Memory: running out on purpose is a named error after which the next run works, and ten thousand runs take no more than the first ones.

    python tests/gpu/memory.py --out benchmarks/results/cuda_memory.json [--device cpu] [--runs 10000] [PART ...]

With ``--device cpu`` only the part ``flat`` has a meaning. Needs nothing but xpuruntime; with PyTorch, tensors of the device are run on, too.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_report import Report, arguments, run_parts
from small_net import INPUTS, compiled, feeds, network, right, weights

import xpuruntime as xrt
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import OutOfMemory
from xpuruntime.runtime import DeviceBuffer, Executor
from xpuruntime.types import DType, TensorSpec

MIB = 2**20


def resident() -> int:
    """Bytes of this process in the host's memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def held(backend: Any) -> dict[str, int]:
    """Bytes in use: the host's, and on a device those of its pool, of page-locked memory, and of the whole device."""
    found = {"host": resident()}
    if not backend.core_is_host:
        found |= {"device": backend.memory()["live_bytes"], "pinned": backend.pinned_memory()["live_bytes"]}
        if importlib.util.find_spec("torch") is not None:
            import torch

            free, total = torch.cuda.mem_get_info()
            found["whole device"] = total - free
    return found


def flat(report: Report, args: argparse.Namespace) -> Any:
    """Runs on arrays, buffers and tensors in turn: what is held after them all is what was held after the first hundredth."""
    executor = Executor(compiled("cpu" if args.device == "cpu" else "cuda"), args.device)
    executor.bind(weights())
    tensor = None
    if args.device != "cpu" and importlib.util.find_spec("torch") is not None:
        import torch

        tensor = torch.from_numpy(feeds(0)["x"]).to(args.device)

    def one(run: int) -> Any:
        which = run % INPUTS
        if run % 3 == 0:
            return which, executor.run_arrays([feeds(which)["x"]])[0]
        if run % 3 == 1 or tensor is None:
            return which, executor.run({"x": feeds(which)["x"]})["y"].to_numpy()
        return 0, executor.run({"x": tensor})["y"].to_numpy()

    warm, wrong = max(60, args.runs // 100), 0
    for run in range(warm):
        wrong += not right(*one(run))
    gc.collect()
    before, allocations = held(executor.backend), executor.counters["allocations"]
    for run in range(args.runs):
        which, y = one(run)
        wrong += run % 97 == 0 and not right(which, y)
    gc.collect()
    after = held(executor.backend)
    grown = {name: after[name] - before[name] for name in before}
    report.check(wrong == 0, f"{wrong} of the outputs that were looked at are wrong")
    report.bound(
        f"memory of the host grown over {args.runs} runs", grown["host"] / MIB, at_most=4, unit="MiB"
    )
    for name in sorted(grown.keys() - {"host"}):
        report.bound(
            f"memory of the {name} grown over {args.runs} runs", grown[name] / MIB, at_most=2, unit="MiB"
        )
    more = executor.counters["allocations"] - allocations
    report.bound(f"blocks of device memory that {args.runs} runs took for themselves", more, at_most=0)
    return {"runs": args.runs, "before": before, "after": after, "grown": grown}


def out_of_memory(report: Report, args: argparse.Namespace) -> Any:
    """A device filled to the brim: the run that finds no room says so, and works when there is room again."""
    if args.device == "cpu":
        return "the host's memory is not filled"
    executor = Executor(compiled("cuda"), args.device)
    executor.bind(weights())
    report.check(right(0, executor.run_arrays([feeds(0)["x"]])[0]), "a run before")
    loaded = Executor(compiled("cuda"), args.device)  # its first run still asks for memory
    loaded.bind(weights())
    filling: list[DeviceBuffer] = []
    size, said = 2**34, []
    while size >= 2**12:  # ever smaller pieces, until the smallest finds no room
        try:
            filling.append(DeviceBuffer.empty(TensorSpec((size,), DType.UINT8), args.device))
        except OutOfMemory as error:
            said.append(str(error))
            size //= 2
    report.check(
        len(said) > 10 and f"cannot allocate {2**34} bytes" in said[0],
        f"the error names sizes: {said[0] if said else 'none'}",
    )
    failed = ""
    try:
        large = compile_graph(network(512), target="cuda", weights=weights())
        Executor(large, args.device).run({"x": feeds(0, 512)["x"]}, weights=weights())
    except OutOfMemory as error:
        failed = str(error)
    except MemoryError as error:
        failed = f"a bare MemoryError: {error}"
    report.check("bytes" in failed and "free" in failed, f"a run without room says: {failed or 'nothing'}")
    report.check(
        right(1, executor.run_arrays([feeds(1)["x"]])[0]), "what was loaded goes on while the device is full"
    )
    filled = sum(b.size_bytes for b in filling)
    filling.clear()
    gc.collect()
    executor.backend.trim()
    report.check(right(2, loaded.run_arrays([feeds(2)["x"]])[0]), "the next run works when there is room")
    report.bound("out of memory on purpose: named error, next run works", not report.failures)
    return {"filled_bytes": filled, "said": [*said[:1], failed]}


PARTS = {"out_of_memory": out_of_memory, "flat": flat}


def main(argv: Sequence[str] | None = None) -> int:
    """1 when memory grows, or running out of it is not said."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--runs", type=int, default=10_000)
    device = parser.parse_args(argv).device

    def name() -> str:
        return "none (the host)" if device == "cpu" else str(xrt.Device(device).backend.name)

    return run_parts(__doc__, PARTS, gpu=name, packages=("torch",), argv=argv, parser=parser)


if __name__ == "__main__":
    sys.exit(main())
