"""Two processes of eight threads each on one device: sessions, executors, buffers and tensors at once; every output is compared.

    python tests/gpu/processes.py --out benchmarks/results/cuda_processes.json [--device cpu] [--processes 2] [--threads 8] [--runs 500]

Processes are spawned, since a forked one cannot use a device that its parent used. With ``--device cpu`` the same runs on the host. Tensors of the
device are PyTorch's, where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gpu_report import Report, arguments, run_parts
from small_net import INPUTS, compiled, feeds, right, weights

import xpuruntime as xrt
from xpuruntime.runtime import DeviceBuffer, Executor


def ways(device: str, path: str) -> dict[str, Callable[[int], Any]]:
    """How a thread may run: name -> function of the input's number that gives the output."""
    program = xrt.CompiledProgram.load(path)
    executor = Executor(program, device)
    executor.bind(weights())
    session = xrt.InferenceSession(path, device=device, engine="native")

    def on_buffers(which: int) -> Any:
        return executor.run({"x": DeviceBuffer.from_numpy(feeds(which)["x"], device)})["y"].to_numpy()

    found: dict[str, Callable[[int], Any]] = {
        "arrays": lambda which: executor.run_arrays([feeds(which)["x"]])[0],
        "session": lambda which: session.run(feeds(which))["y"],
        "buffers": on_buffers,
    }
    if device != "cpu" and importlib.util.find_spec("torch") is not None:
        import torch

        def on_tensors(which: int) -> Any:
            with torch.cuda.stream(torch.cuda.Stream(device)):
                x = torch.from_numpy(feeds(which)["x"]).to(device, non_blocking=True)
                return session.run({"x": x})["y"].cpu().numpy()

        found["tensors"] = on_tensors
    return found


def process(number: int, args: dict[str, Any], path: str, begin: Any, answers: Any) -> None:
    """A spawned process: threads that start together and run in every way in turn."""
    try:
        each = ways(args["device"], path)
        wrong: list[str] = []
        done = [0] * args["threads"]
        first: dict[tuple[str, int], Any] = {}
        together = threading.Barrier(args["threads"])

        def thread(at: int) -> None:
            together.wait()
            for run in range(args["runs"]):
                which, name = (at + run) % INPUTS, list(each)[(at * 3 + run) % len(each)]
                try:
                    y = each[name](which)
                    same = first.setdefault((name, which), y)
                    if not right(which, y):
                        wrong.append(
                            f"process {number}, thread {at}, run {run}: {name} of input {which} is wrong"
                        )
                    elif not np.array_equal(same, y):
                        wrong.append(
                            f"process {number}, thread {at}, run {run}: {name} of input {which} has other bits"
                        )
                except Exception as error:
                    wrong.append(
                        f"process {number}, thread {at}, run {run}: {name}: {type(error).__name__}: {error}"
                    )
                    return
                done[at] += 1

        begin.wait()
        threads = [threading.Thread(target=thread, args=(i,)) for i in range(args["threads"])]
        for each_thread in threads:
            each_thread.start()
        for each_thread in threads:
            each_thread.join()
        answers.put((number, sum(done), wrong, sorted(each)))
    except BaseException as error:
        begin.abort()
        answers.put((number, 0, [f"process {number}: {type(error).__name__}: {error}"], []))


def together(report: Report, args: argparse.Namespace) -> Any:
    """Two processes of eight threads: every output right, equal inputs give equal bits."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "small.npubin")
        compiled("cpu" if args.device == "cpu" else "cuda").save(path, weights())
        begin, answers = context.Barrier(args.processes), context.Queue()
        plain = {"device": args.device, "threads": args.threads, "runs": args.runs}
        started = time.perf_counter()
        workers = [
            context.Process(target=process, args=(i, plain, path, begin, answers), daemon=True)
            for i in range(args.processes)
        ]
        for worker in workers:
            worker.start()
        found = [answers.get(timeout=args.seconds) for _ in workers]
        for worker in workers:
            worker.join(30)
    wrong = [text for _, _, texts, _ in found for text in texts]
    for text in wrong[:10]:
        report.check(False, text)
    runs = sum(done for _, done, _, _ in found)
    wanted = args.processes * args.threads * args.runs
    report.bound(
        f"{args.processes} processes of {args.threads} threads: runs that were right", runs, at_least=wanted
    )
    return {
        "right": runs,
        "wrong": len(wrong),
        "ways": found[0][3],
        "seconds": round(time.perf_counter() - started, 1),
    } | plain


def name_of(device: str) -> str:
    """The device's own name."""
    return "none (the host)" if device == "cpu" else xrt.Device(device).backend.name


PARTS = {"together": together}


def main(argv: Sequence[str] | None = None) -> int:
    """1 when an output was wrong."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--runs", type=int, default=500, help="of each thread")
    parser.add_argument(
        "--seconds", type=int, default=140, help="after which a process that has not answered is a failure"
    )
    device = parser.parse_args(argv).device
    return run_parts(
        __doc__, PARTS, gpu=lambda: name_of(device), packages=("torch",), argv=argv, parser=parser
    )


if __name__ == "__main__":
    sys.exit(main())
