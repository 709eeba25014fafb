"""Memory: running out on purpose is a named error after which the next run works, ten thousand runs take no more than the first ones, and a
session reports what it takes: at most 5% over its weights and the least that a run needs.

    python tests/gpu/memory.py --out benchmarks/results/cuda_memory.json [--device cpu] [--runs 10000] [PART ...]

With ``--device cpu`` only the part ``flat`` has a meaning. Needs nothing but xpuruntime; with PyTorch, tensors of the device are run on, too. The
part ``sessions`` needs torch, torchvision and transformers.
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
from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import OutOfMemory
from xpuruntime.runtime import DeviceBuffer, Executor, MemoryPool, empty_pinned
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


def networks() -> dict[str, Any]:
    """Name -> a function that returns a module with seeded weights, and its input for a batch."""
    import torch
    import torchvision
    import transformers

    def resnet() -> Any:
        return torchvision.models.resnet50().eval(), lambda n: torch.randn(n, 3, 224, 224)

    def bert() -> Any:
        config = transformers.BertConfig(attn_implementation="sdpa")
        return transformers.BertModel(config).eval(), lambda n: torch.randint(0, 30000, (n, 128))

    return {"ResNet-50": resnet, "BERT-base": bert}


def sessions(report: Report, args: argparse.Namespace) -> Any:
    """Whole networks: what a session reports is what the pool saw, near the least, and sessions share weights."""
    import torch

    torch.manual_seed(0)
    pool, results = MemoryPool(args.device), {}
    for name, make in networks().items():
        model, data = make()
        key = "x" if name == "ResNet-50" else "input_ids"
        for precision in ("float32", "float16"):
            policy = {"version": 1, "execution": {"precision": precision, "self_check": "off"}}
            words: dict[str, Any] = {"engine": "native", "device": args.device, "policy": policy}
            what, x8 = f"{name}, {precision}", data(8).numpy()
            gc.collect()
            pool.trim()
            before = pool.statistics().live_bytes
            with xrt.InferenceSession(model, example_inputs=(data(8),), **words) as session:
                for _ in range(3):
                    session.run({key: x8})
                memory, held = session.memory, pool.statistics().live_bytes - before
                report.bound(f"{what}: memory over weights and the planner's bound", memory["peak"] / memory["bound"], at_most=1.05)  # fmt: skip
                report.bound(
                    f"{what}: the pool's bytes over those reported", held / memory["peak"], at_most=1.01
                )
                receipt = session.receipt(times=False).evidence["r0"].memory
                report.check(receipt == memory, f"{what}: the receipt has the same bytes")
                with xrt.InferenceSession(model, example_inputs=(data(8),), **words) as second:
                    second.run({key: x8})
                    more = pool.statistics().live_bytes - before - held
                    report.bound(f"{what}: bytes of a second session over its runs'", more / max(memory["runs"], 1), at_most=1.01)  # fmt: skip
            results[what] = {"memory": memory, "pool": held, "second": more}
            print("  ", what, results[what], flush=True)
    return results


def limits(report: Report, args: argparse.Namespace) -> Any:
    """Sizes that change share an arena, runs at a time wait for the memory of a limit, and runs on page-locked arrays copy once."""
    import threading
    import time

    import numpy as np
    import torch

    torch.manual_seed(0)
    results: dict[str, Any] = {}
    model, data = networks()["ResNet-50"]()
    shapes = {"x": {0: torch.export.Dim("batch", max=64)}}
    policy = {"version": 1, "execution": {"self_check": "off"}}
    words = {
        "engine": "native",
        "device": args.device,
        "example_inputs": (data(2),),
        "dynamic_shapes": shapes,
    }
    with xrt.InferenceSession(model, policy=policy, **words) as session:
        for n in (16, 1, 4, 16, 1):
            session.run({"x": data(n).numpy()})
        memory = session.memory
        report.bound("batches of 16, 1, 4: memory over weights and the bound of 16", memory["peak"] / memory["bound"], at_most=1.05)  # fmt: skip
        results["three batches"] = memory
    limited = {"version": 1, "execution": {"self_check": "off", "memory_bytes": memory["peak"]}}
    with xrt.InferenceSession(model, policy=limited, **words) as session:
        x16 = data(16).numpy()
        out, wrong = session.output_info[0].name, []
        first = session.run({"x": x16})[out]

        def work() -> None:
            wrong.extend(i for i in range(5) if not np.array_equal(session.run({"x": x16})[out], first))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report.check(not wrong and session.memory["peak"] <= memory["peak"], f"four threads within a limit of {memory['peak']} bytes: {session.memory}")  # fmt: skip
        try:
            session.run({"x": data(64).numpy()})
            report.check(False, "a batch over the limit is refused: it was not")
        except OutOfMemory as error:
            report.check("memory_bytes" in str(error), f"a batch over the limit is refused: {error}")
    return results | {"pinned": pinned(report, args, time.perf_counter)}


def pinned(report: Report, args: argparse.Namespace, clock: Any) -> Any:
    """Return microseconds of a run on arrays of 48 MiB: pageable ones, and page-locked ones."""
    import numpy as np

    size = (12 << 20,)
    b = ir.GraphBuilder("twice")
    x = b.input("x", f"float32[{size[0]}]")
    b.output("y", b.add(x, x))
    executor = Executor(compile_graph(b.build(), target="cuda"), args.device)
    data = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    arrays = {
        "pageable": (data, np.empty_like(data)),
        "page-locked": (
            empty_pinned(size, "float32", args.device),
            empty_pinned(size, "float32", args.device),
        ),
    }
    arrays["page-locked"][0][:] = data
    times = {}
    for name, (source, target) in arrays.items():
        runs = []
        for _ in range(8):
            start = clock()
            executor.run_arrays([source], [target])
            runs.append((clock() - start) * 1e6)
        times[name] = round(sorted(runs)[len(runs) // 2], 1)
        report.check(np.array_equal(target, data + data), f"a run on {name} arrays is right")
    report.bound(
        "time on page-locked arrays over that on pageable ones",
        times["page-locked"] / times["pageable"],
        at_most=0.7,
    )
    print("  ", times, flush=True)
    return times


PARTS = {"out_of_memory": out_of_memory, "flat": flat, "sessions": sessions, "limits": limits}


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
