"""Two GPUs of one host: sessions and programs on each, partitioned models with copies between them, groups of ranks, and a rank that is killed.

    python tests/gpu/several_devices.py --out benchmarks/results/cuda_several_devices.json [devices dag collectives graphs killed missing]

Needs torch and two GPUs; with fewer it says so and does nothing. NVLink multicast stays off (``NCCL_NVLS_ENABLE=0``), in child processes, too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

os.environ["NCCL_NVLS_ENABLE"] = "0"

import numpy as np
from gpu_report import Report, arguments, run_parts
from small_net import INPUTS, compiled, feeds, network, references, right, weights

import xpuruntime as xrt
from xpuruntime.compiler.partition.partitioner import partition
from xpuruntime.errors import InputError, RankLost, XpuError
from xpuruntime.inference.partitioned.dag_executor import DAGExecutor
from xpuruntime.runtime import Communicator, DeviceBuffer, Executor, Stream, load_weights
from xpuruntime.runtime.device import cuda

LOST_WITHIN_S = 10.0
"""Time within which a rank must learn that another was killed."""
SIZES = (8, 4096, 1_000_001, 16 << 20)
"""Elements of each rank in a collective."""


def link() -> dict[str, str]:
    """Return how the GPUs are linked, as nvidia-smi reports it."""
    facts = {}
    for name, command in (("topology", ["topo", "-m"]), ("nvlink", ["nvlink", "-s"])):
        done = subprocess.run(["nvidia-smi", *command], capture_output=True, text=True, check=False)
        plain = re.sub(r"\x1b\[[0-9;]*m| \(UUID: [^)]*\)", "", done.stdout)
        lines = [line.strip() for line in plain.splitlines() if line.strip() and "Legend" not in line]
        facts[name] = "; ".join(lines[:12])[:1500]
    return facts


def refused(report: Report, what: str, work: Callable[[], Any], kind: type[XpuError], *words: str) -> None:
    """Check that work is refused with an error of a class whose text has these words."""
    try:
        work()
    except kind as error:
        text = str(error)
        report.check(all(w in text for w in words), f"{what} is refused: {text.splitlines()[0][:160]}")
    else:
        report.check(False, f"{what} is refused: it was not")


def devices(report: Report, args: argparse.Namespace) -> Any:
    """Sessions, executors, pools, streams and library handles on both GPUs at once; values of the wrong device are refused."""
    import torch

    names = ("cuda:0", "cuda:1")
    programs = {n: compiled(n) for n in names}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/small.npubin"
        programs["cuda:0"].save(path, weights())
        sessions = {n: xrt.InferenceSession(path, device=n, engine="native") for n in names}
        executors = {n: Executor(programs[n], n) for n in names}
        for executor in executors.values():
            executor.bind(weights())
        errors: list[str] = []

        def ways(name: str, x: Any) -> dict[str, Callable[[], Any]]:
            tensor = torch.from_numpy(x).to(name)
            return {
                "session": lambda: sessions[name].run({"x": x})["y"],
                "tensors": lambda: sessions[name].run({"x": tensor})["y"].cpu().numpy(),
                "arrays": lambda: executors[name].run_arrays([x])[0],
                "buffers": lambda: (
                    executors[name].run({"x": DeviceBuffer.from_numpy(x, name)})["y"].to_numpy()
                ),
            }

        def thread(name: str, number: int) -> None:
            for i in range(60):
                which = (i + number) % INPUTS
                for way, run in ways(name, feeds(which)["x"]).items():
                    if not right(which, run()):
                        errors.append(f"{way} on {name}, input {which}")

        threads = [threading.Thread(target=thread, args=(n, i)) for i in range(2) for n in names]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        report.check(not errors, f"960 runs on two GPUs at once are right: {errors[:3]}")
        for name, session in sessions.items():
            text = str(session.receipt())
            report.check(
                f"every step ran on {name}" in text, f"the receipt of the session on {name} confirms it"
            )
        result = torch.from_numpy(feeds(0)["x"]).to("cuda:1")
        y = sessions["cuda:1"].run({"x": result})["y"]
        report.check(str(y.device) == "cuda:1", "an output is on the device of its session")
        refused(report, "a session on cuda:7", lambda: xrt.InferenceSession(path, device="cuda:7"), XpuError, "cuda:7", str(len(cuda().devices)))  # fmt: skip
    first, second = executors["cuda:0"], executors["cuda:1"]
    here, there = (DeviceBuffer.from_numpy(feeds(0)["x"], n) for n in names)
    refused(
        report, "a buffer of the other GPU", lambda: first.run({"x": there}), InputError, "cuda:0", "cuda:1"
    )
    refused(report, "a tensor of the other GPU", lambda: second.run({"x": torch.zeros(4, 3, 16, 16, device="cuda:0")}), InputError, "cuda:0", "cuda:1")  # fmt: skip
    out = DeviceBuffer.from_numpy(np.zeros(references()[0].shape, np.float32), "cuda:1")
    refused(
        report,
        "an output of the other GPU",
        lambda: first.run({"x": here}, out={"y": out}),
        InputError,
        "cuda:1",
    )
    loaded = load_weights(weights(), programs["cuda:0"], "cuda:1")
    refused(report, "weights of the other GPU", lambda: first.bind(loaded), InputError, "cuda:0", "cuda:1")
    refused(
        report,
        "a stream of the other GPU",
        lambda: Stream("cuda:1").run(first, {"x": here}),
        InputError,
        "cuda:1",
    )
    count = len(cuda().devices)
    for what, place, work in (
        ("a device", "cuda:7", lambda: xrt.Device("cuda:7")),
        ("an executor", "cuda:7", lambda: Executor(programs["cuda:0"], "cuda:7")),
        ("a target", "CUDA device 7", lambda: compiled("cuda:7")),
    ):
        refused(report, f"{what} on cuda:7", work, XpuError, place, str(count))
    before = [executors[n].backend.memory()["live_bytes"] for n in names]
    block = DeviceBuffer.from_numpy(np.zeros(1 << 24, np.float32), "cuda:1")
    after = [executors[n].backend.memory()["live_bytes"] for n in names]
    report.check(
        after[0] == before[0] and after[1] >= before[1] + (64 << 20), "each GPU has a pool of its own"
    )
    del block
    executor = executors["cuda:1"]
    record = executor.observe([feeds(0)["x"]])
    report.check(not record.absent and record.calls, f"CUPTI records a run on cuda:1 {record.absent}")
    return {"devices": count}


def dag(report: Report, args: argparse.Namespace) -> Any:
    """A model in three regions, on cuda:0, cuda:1 and cuda:0; copies go from GPU to GPU, and through the host if they cannot."""
    graph = network()
    middle = {
        n.name: "native on cuda:1"
        for n in graph.nodes
        if n.op in ("softmax", "matmul", "rms_norm", "linear", "permute", "mul", "add")
    }
    plan = partition(graph, engine="native on cuda:0", others=(), place=middle, target="cuda:0")
    facts: dict[str, Any] = {"regions": [f"{r.id}: {r.engine} on {r.device}" for r in plan.regions]}
    print("  ", facts["regions"], flush=True)
    report.check({r.device for r in plan.regions} == {"cuda:0", "cuda:1"}, "regions are on both GPUs")
    import torch

    for way in ("direct", "through the host"):
        with DAGExecutor(plan, None) as executor:
            executor.load_weights(weights())
            if way != "direct":
                from xpuruntime.runtime.backends.cuda import CudaBackend

                kept, CudaBackend.reaches_peer = CudaBackend.reaches_peer, lambda *_: False  # type: ignore[method-assign]
            try:
                for which in range(INPUTS):
                    report.check(
                        right(which, executor.execute(feeds(which))["y"]), f"{way}: input {which} is right"
                    )
                x = torch.from_numpy(feeds(1)["x"]).to("cuda:0")
                for _ in range(50):
                    y = executor.execute({"x": x})["y"]
                report.check(
                    str(y.device) == "cuda:0" and right(1, y.cpu().numpy()),
                    f"{way}: tensors of cuda:0 stay there",
                )
                receipt = str(executor.receipt())
                facts[way] = {
                    "counters": executor.counters,
                    "transfers": [line.strip() for line in receipt.splitlines() if "transfers since" in line],
                }
                wanted = "p2p" if way == "direct" else "inner d2h"
                report.check(
                    wanted in receipt, f"{way}: the receipt counts {wanted}: {facts[way]['transfers']}"
                )
                report.check(
                    way == "direct" or "p2p" not in receipt, f"{way}: no copy from GPU to GPU is claimed"
                )
            finally:
                if way != "direct":
                    CudaBackend.reaches_peer = kept  # type: ignore[method-assign]
    return facts


def _collective_rank(rank: int, port: int, answers: Any) -> None:
    """A process: torch.distributed's collectives and ours on the same tensors, and the times of both."""
    try:
        answers.put((rank, _compare(rank, port)))
    except BaseException as error:
        answers.put((rank, {"error": f"{type(error).__name__}: {error}"}))
        raise


def _compare(rank: int, port: int) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0)
    dist.init_process_group("nccl", store=store, rank=rank, world_size=2)
    comm = Communicator.join(store, rank=rank, size=2, device=f"cuda:{rank}", name="ours")
    generator = torch.Generator(f"cuda:{rank}").manual_seed(rank)
    results: dict[str, Any] = {"wrong": [], "us": {}}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64):
        for size in SIZES:
            x = (torch.randn(2, size, generator=generator, device="cuda") * 8).to(dtype)
            want, got = x.clone(), torch.empty_like(x)
            dist.all_reduce(want)
            comm.all_reduce(x, out=got)
            wide = [torch.empty(4, size, dtype=dtype, device="cuda") for _ in range(2)]
            dist.all_gather_into_tensor(wide[0], x)
            comm.all_gather(x, out=wide[1])
            part = [torch.empty(1, size, dtype=dtype, device="cuda") for _ in range(2)]
            dist.reduce_scatter_tensor(part[0], x)
            comm.reduce_scatter(x, out=part[1])
            own = DeviceBuffer.from_dlpack(x, f"cuda:{rank}")
            fresh = torch.from_dlpack(comm.all_reduce(own))
            torch.cuda.synchronize()
            for name, ok in (
                ("all_reduce", torch.equal(want, got)),
                ("all_gather", torch.equal(*wide)),
                ("reduce_scatter", torch.equal(*part)),
                ("all_reduce to a new buffer", torch.equal(want, fresh)),
            ):
                if not ok:
                    results["wrong"].append(f"{name} of {size} {dtype}")
    y = torch.ones(64, 1024, dtype=torch.bfloat16, device="cuda") * (rank + 1)
    z = torch.empty_like(y)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(8):
            comm.all_reduce(y, out=z)
    graph.replay()
    torch.cuda.synchronize()
    results["captured"] = bool((z == 3).all())
    for size in (4096, 1 << 20, 128 << 20):  # elements of bfloat16
        x = torch.zeros(size, dtype=torch.bfloat16, device="cuda")
        for _ in range(2):  # in turns; the second counts
            times = {"torch": _timed(dist.all_reduce, x), "ours": _timed(partial(comm.all_reduce, out=x), x)}
        results["us"][f"{2 * size} bytes"] = times
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    y = torch.zeros(4096, dtype=torch.bfloat16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(64):
            comm.all_reduce(y, out=y)
    for _ in range(3):
        graph.replay()
    begin.record()
    for _ in range(10):
        graph.replay()
    end.record()
    end.synchronize()
    results["us"]["8192 bytes in a graph of 64"] = {"ours": round(begin.elapsed_time(end) / 640 * 1e3, 2)}
    del graph
    comm.close()
    try:
        comm.all_reduce(y)
    except RankLost as error:
        results["closed"] = str(error)
    dist.destroy_process_group()
    return results


def _timed(work: Callable[[Any], Any], x: Any, each: int = 30) -> float:
    """Return the microseconds of one of several collectives that are queued back to back."""
    import torch

    for _ in range(5):
        work(x)
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(each):
        work(x)
    end.record()
    end.synchronize()
    return round(begin.elapsed_time(end) / each * 1e3, 2)


def collectives(report: Report, args: argparse.Namespace) -> Any:
    """All-reduce, all-gather and reduce-scatter of two processes equal torch.distributed's, in graphs, too."""
    found = _two_processes(_collective_rank, _free_port(), timeout=90)
    for rank, facts in sorted(found.items()):
        report.check("error" not in facts, f"rank {rank} ends: {facts.get('error', '')[:300]}")
        report.check(not facts.get("wrong", ["nothing ran"]), f"rank {rank}: every result equals torch.distributed's: {facts.get('wrong')}")  # fmt: skip
        report.check(facts.get("captured"), f"rank {rank}: a captured all-reduce is right")
        report.check("closed" in facts, f"rank {rank}: a closed communicator says so")
    return found


def _killed_rank(rank: int, folder: str, answers: Any) -> None:
    """A process of which rank 1 is killed while rank 0 waits for it."""
    import torch

    torch.cuda.set_device(rank)
    comm = Communicator.join(folder, rank=rank, size=2, device=f"cuda:{rank}")
    x = torch.ones(1 << 20, device="cuda")
    comm.all_reduce(x, out=x)
    torch.cuda.synchronize()
    answers.put((rank, {"pid": os.getpid(), "sum": float(x[0])}))
    if rank == 1:
        time.sleep(60)  # it is killed here
        return
    try:
        while True:
            comm.all_reduce(x, out=x)  # the kernel waits on the GPU for rank 1
            torch.cuda.synchronize()
            comm.check()
    except RankLost as error:
        answers.put((rank, {"error": str(error), "when": time.time()}))
    comm.close()


def killed(report: Report, args: argparse.Namespace) -> Any:
    """A rank that is killed ends the other with RankLost within ten seconds; so does one that never comes."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        answers = context.Queue()
        processes = [context.Process(target=_killed_rank, args=(r, folder, answers)) for r in range(2)]
        for each in processes:
            each.start()
        ready = dict(answers.get(timeout=60) for _ in range(2))
        report.check(ready[0]["sum"] == ready[1]["sum"] == 2.0, "both ranks have the sum")
        time.sleep(1.0)
        began = time.time()
        os.kill(ready[1]["pid"], signal.SIGKILL)
        try:
            _, facts = answers.get(timeout=30)
        except Exception:
            facts = {"error": "", "when": began + 30}
        seconds = facts["when"] - began
        report.check("rank 1" in facts["error"], f"rank 0 names the rank: {facts['error'][:200]}")
        report.bound(
            "seconds until a killed rank ends the other", round(seconds, 2), at_most=LOST_WITHIN_S, unit="s"
        )
        processes[0].join(20)
        report.check(
            processes[0].exitcode == 0, f"rank 0 goes on after the error: exit code {processes[0].exitcode}"
        )
        for each in processes:
            if each.is_alive():
                each.kill()
        began = time.time()
        refused(report, "a group without its second rank",
                lambda: Communicator.join(f"{folder}/alone", rank=0, size=2, device="cuda:0", timeout_s=1.5), RankLost, "rank 1 did not come")  # fmt: skip
        report.check(time.time() - began < 10, "it waits no longer than it was told")
    return {"seconds": round(seconds, 2), "error": facts["error"]}


def missing(report: Report, args: argparse.Namespace) -> Any:
    """Without NCCL the error says what to install."""
    code = (
        "from xpuruntime.runtime import Communicator\n"
        "try:\n    Communicator.local(['cuda:0', 'cuda:1'])\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    environment = {**os.environ, "XPU_LIBNCCL": "/nowhere/libnccl.so.2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    text = done.stdout.strip()
    report.check(
        text.startswith("DeviceUnavailable") and "NCCL" in text,
        f"a missing NCCL is named: {text[:300]} {done.stderr[-300:]}",
    )
    return text


def _free_port() -> int:
    import socket

    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


def _two_processes(target: Callable[..., None], argument: Any, timeout: float) -> dict[int, Any]:
    """Return what two spawned ranks answer."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    processes = [context.Process(target=target, args=(r, argument, answers)) for r in range(2)]
    for each in processes:
        each.start()
    try:
        return dict(answers.get(timeout=timeout) for _ in processes)
    finally:
        for each in processes:
            each.join(15)
            if each.is_alive():
                each.kill()


PARTS = {"devices": devices, "dag": dag, "collectives": collectives, "killed": killed, "missing": missing}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts, or say that there are fewer than two GPUs."""
    parser = arguments(__doc__, tuple(PARTS))
    args = parser.parse_args(argv)
    if not args.dry_run and len(cuda().devices) < 2:
        print(f"nothing to do: needs two GPUs, this machine has {len(cuda().devices)}")
        return 0

    def gpu() -> str:
        import torch

        return f"2 x {torch.cuda.get_device_name(0)}"

    parts: dict[str, Any] = {**PARTS}
    return run_parts(
        __doc__, parts, gpu=gpu, packages=("torch",), argv=argv, parser=arguments(__doc__, tuple(PARTS))
    )


if __name__ == "__main__":
    sys.exit(main())
