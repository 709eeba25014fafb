"""The CUDA backend on the real driver: libraries found, graphs, streams, early launches, clusters, device tensors, a lost context.

    python tests/gpu/cuda_backend.py --out benchmarks/results/cuda_backend.json [PART ...]

Threads, memory and what a run costs: processes.py, memory.py, dispatch.py. Needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from cuda_chain import call, chain, executor_of, program
from gpu_report import Report, run_parts

import xpuruntime as xrt
from xpuruntime import runtime
from xpuruntime.runtime import CudaBackend, DeviceBuffer
from xpuruntime.types import DType


def facts(report: Report, args: argparse.Namespace) -> Any:
    """The driver, its devices, and which file and version of each library was found."""
    driver = runtime.cuda()
    report.check(
        driver.status.ok,
        f"driver {driver.driver_version}, API {driver.driver_api}: {driver.status.message or 'ready'}",
    )
    backend = CudaBackend()
    report.check(backend.target == driver.devices[0].target, f"{backend}")
    found = [x.to_json() for x in runtime.libraries()]
    for x in found:
        print("   ", x["name"], x["version"], x["path"] or x["status"]["message"])
    return {"cuda": driver.to_json(), "libraries": found}


def arrays_and_graphs(report: Report, args: argparse.Namespace) -> Any:
    """Arrays through graphs: the same bits as NumPy, one capture, replays counted, bytes counted."""
    executor, w = executor_of(chain(100_003))
    before = executor.backend.counters()
    for i in range(6):
        x = np.random.default_rng(i).standard_normal(100_003).astype(np.float32)
        (y,) = executor.run_arrays([x])
        want = (x + w) * np.float32(0.5) + 3
        report.check(np.array_equal(y, want), f"run {i}: equal to NumPy")
    after = executor.backend.counters()
    report.check(
        after["captures"] - before["captures"] == 1 and after["replays"] - before["replays"] == 5,
        f"graphs: {after}",
    )
    report.check(executor.counters["sent"] == 6 * 4 * 100_003, f"{executor.counters}")
    bad = executor.run_arrays([x[::-1]])[0]
    report.check(np.array_equal(bad, (x[::-1] + w) * np.float32(0.5) + 3), "a strided array is copied first")
    times = np.zeros(2, np.int64)
    executor.run_arrays([x], times=times)
    report.check((times > 0).all() and (times < 10_000_000).all(), f"times {times} ns")
    return {"counters": executor.backend.counters(), "notes": executor.notes}


def early_and_clusters(report: Report, args: argparse.Namespace) -> Any:
    """Programmatic dependent launches, clusters, more than 48 KiB of shared memory."""
    n = 1 << 20
    executor, w = executor_of(chain(n, 12, early=1))
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    for i in range(4):
        (y,) = executor.run_arrays([x])
        report.check(np.array_equal(y, (x + w) * np.float32(0.5) + 3), f"launched early {i}: equal to NumPy")
    options = {"cluster": [4, 1, 1], "shared": 100 * 1024}
    executor, _ = executor_of(
        program(
            4096,
            [
                call("ranked", "x", "y", 4096, options=options),
                call("ranked", "y", "y", 4096, options=options),
            ][:1],
        )
    )
    x = np.arange(4096, dtype=np.float32)
    (y,) = executor.run_arrays([x])
    want = x.reshape(16, 256)[:, ::-1] + (np.arange(16) % 4)[:, None] + 400
    return report.check(
        np.array_equal(y.reshape(16, 256), want), "a cluster of 4 with 100 KiB of shared memory"
    )


def device_tensors(report: Report, args: argparse.Namespace) -> Any:
    """PyTorch's tensors without a copy, on the caller's streams; buffers by DLPack."""
    n = 100_000
    executor, w = executor_of(chain(n, 4), contexts=2)
    weight = torch.from_numpy(w).cuda()
    stream = torch.cuda.Stream()
    found = {}
    with torch.cuda.stream(stream):
        for i in range(8):
            x = torch.randn(n, device="cuda") * 3
            x = x * 2  # queued, not done
            buffer = executor.run({"input": x}, stream=stream.cuda_stream)["output"]
            y = torch.from_dlpack(buffer)
            again = y * 2
            report.check(torch.equal(again, ((x + weight) * 0.5 + 3) * 2), f"on a stream of torch's {i}")
    report.check(y.data_ptr() == buffer.address, "the output is the tensor: no copy")
    y2 = executor.run({"input": x})["output"]  # waits
    report.check(torch.equal(torch.from_dlpack(y2), (x + weight) * 0.5 + 3), "without a stream")
    other = torch.cuda.Stream()
    buffer = executor.run({"input": x}, stream=stream.cuda_stream)["output"]
    with torch.cuda.stream(other):
        report.check(
            torch.equal(torch.from_dlpack(buffer) + 0, (x + weight) * 0.5 + 3),
            "a consumer on another stream waits",
        )
    back = DeviceBuffer.from_dlpack(x, "cuda:0")
    report.check(
        back.address == x.data_ptr() and np.array_equal(back.to_numpy(), x.cpu().numpy()),
        "a tensor as a buffer",
    )
    half = DeviceBuffer.from_dlpack(x.to(torch.bfloat16), "cuda:0")
    report.check(half.spec.dtype is DType.BFLOAT16, f"{half}")
    report.check(torch.equal(torch.from_dlpack(half), x.to(torch.bfloat16)), "bfloat16 there and back")
    found["counters"] = executor.backend.counters()
    print("   ", found["counters"])
    return found


def lost_context(report: Report, args: argparse.Namespace) -> Any:
    """Last: a kernel that writes where nothing is. Afterwards the context is gone, and errors say so."""
    executor, _ = executor_of(program(256, [call("wild", "x", "y", 256)]))
    said = []
    for _ in range(2):
        try:
            executor.run_arrays([np.ones(256, np.float32)])
            report.check(False, "a wild write must fail")
        except xrt.RunError as error:
            said.append(str(error))
    return report.check("context is lost for this process" in said[0], said[0]) and said


PARTS = {
    "facts": facts,
    "arrays_and_graphs": arrays_and_graphs,
    "early_and_clusters": early_and_clusters,
    "device_tensors": device_tensors,
    "lost_context": lost_context,  # last: nothing runs after it
}


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a check fails."""
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
