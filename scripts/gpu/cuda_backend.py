"""The CUDA backend on the real driver: correct, on the caller's stream, as graphs, out of memory, threads, and what a run costs.

    python scripts/gpu/cuda_backend.py --out benchmarks/results/cuda_backend.json [CHECK ...]

Every check notes what it found and failures are counted; one visit to the machine says everything. Needs torch with CUDA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_machine import machine

import xpuruntime as xrt
from xpuruntime import runtime
from xpuruntime.codegen.toolchains_nvrtc import nvrtc_toolchain
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import OutOfMemory
from xpuruntime.program.program import (
    Binary,
    BufferAllocation,
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    KernelCall,
    KernelParam,
    WeightRef,
    WeightTransformRecipe,
)
from xpuruntime.runtime import CudaBackend, DeviceBuffer, Executor
from xpuruntime.testing import models
from xpuruntime.types import DType, TensorSpec

failures: list[str] = []
CHECKS: dict[str, Callable[[], Any]] = {}

TEXT = r"""
extern "C" __global__ void add(float const *a, float const *b, float *y) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) y[i] = a[i] + b[i];
}
extern "C" __global__ void scale(float const *a, float *y, long long shift, double factor) {
#if EARLY
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) y[i] = a[i] * (float)factor + (float)shift;
}
extern "C" __global__ void ranked(float const *a, float *y) {  // adds its rank in the cluster
    unsigned rank, size;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    extern __shared__ float room[];
    room[threadIdx.x] = a[blockIdx.x * blockDim.x + threadIdx.x];
    __syncthreads();
    y[blockIdx.x * blockDim.x + threadIdx.x] = room[blockDim.x - 1 - threadIdx.x] + (float)rank + 100.0f * (float)size;
}
extern "C" __global__ void wild(float const *a, float *y) { y[1ll << 50] = a[0]; }
"""


def check(ok: Any, what: str) -> bool:
    """Note a failure and go on."""
    print("  ok  " if ok else "  FAIL", what, flush=True)
    if not ok:
        failures.append(what)
    return bool(ok)


def checked(function: Callable[[], Any]) -> Callable[[], Any]:
    CHECKS[function.__name__] = function
    return function


def f32(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.FLOAT32, name)


def call(symbol: str, inputs: str, outputs: str, n: int, **more: Any) -> KernelCall:
    """Names of buffers in one text, parted by spaces; blocks of 256 threads."""
    options = {"grid": [-(-n // 256), 1, 1], "block": [256, 1, 1], **more.pop("options", {})}
    ins, outs = tuple(inputs.split()), tuple(outputs.split())
    return KernelCall(f"test/{symbol}", symbol, ins, outs, tasks=-(-n // 256), options=options, **more)


def program(n: int, calls: list[KernelCall], early: int = 0, arena: int | None = None) -> CompiledProgram:
    """x, weight w -> y, with room t between."""
    spec = f32("x", n)
    sm = CudaBackend().target.partition(":")[2]
    cubin = nvrtc_toolchain().build(TEXT, sm, (f"-DN={n}", f"-DEARLY={early}"))
    kinds = {"x": BufferKind.INPUT, "w": BufferKind.WEIGHT, "t": BufferKind.SCRATCH, "y": BufferKind.OUTPUT}
    buffers = tuple(BufferAllocation(k, v, spec, 4 * n, k) for k, v in kinds.items())
    binary = Binary(f"cuda:{sm}", "cubin", (f"cuda:{sm}",), tuple(c.symbol for c in calls), cubin, TEXT)
    plan = ExecutionPlan(f"cuda:{sm}", 0, tuple(calls), buffers, 4 * n if arena is None else arena, 1000)
    entry = EntryPoint("main", (f32("input", n),), (f32("output", n),), ("x",), ("y",), (plan,))
    return CompiledProgram(
        "chain",
        (entry,),
        weights=(WeightRef("w", f32("w", n), key="w"),),
        recipes=(WeightTransformRecipe("w", f32("w", n), "w"),),
        binaries=(binary,),
    )


def chain(n: int, length: int = 2, early: int = 0, **options: Any) -> CompiledProgram:
    """y = (x + w) * 0.5 + 3, with ``length`` - 2 scalings by 1 between."""
    same = (KernelParam("shift", "i64", 0), KernelParam("factor", "f64", 1.0))
    last = (KernelParam("shift", "i64", 3), KernelParam("factor", "f64", 0.5))
    more = {"pdl": True} if early else {}
    calls = [call("add", "x w", "t", n)]
    calls += [call("scale", "t", "t", n, params=same, options=more) for _ in range(length - 2)]
    calls += [call("scale", "t", "y", n, params=last, options=more)]
    return program(n, calls, early, **options)


def executor_of(made: CompiledProgram, **options: Any) -> tuple[Executor, np.ndarray]:
    n = made.entries[0].inputs[0].shape[0]
    w = np.arange(n, dtype=np.float32) % 7
    executor = Executor(made, "cuda:0", **options)
    executor.bind({"w": w})
    return executor, w


def median_us(run: Callable[[], Any], times: int) -> float:
    for _ in range(20):
        run()
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return round(statistics.median(spent) * 1e6, 2)


@checked
def facts() -> Any:
    report = runtime.cuda()
    check(
        report.status.ok,
        f"driver {report.driver_version}, API {report.driver_api}: {report.status.message or 'ready'}",
    )
    backend = CudaBackend()
    check(backend.target == report.devices[0].target, f"{backend}")
    found = [x.to_json() for x in runtime.libraries()]
    for x in found:
        print("   ", x["name"], x["version"], x["path"] or x["status"]["message"])
    return {"cuda": report.to_json(), "libraries": found}


@checked
def arrays_and_graphs() -> Any:
    executor, w = executor_of(chain(100_003))
    before = executor.backend.counters()
    for i in range(6):
        x = np.random.default_rng(i).standard_normal(100_003).astype(np.float32)
        (y,) = executor.run_arrays([x])
        want = (x + w) * np.float32(0.5) + 3
        check(np.array_equal(y, want), f"run {i}: equal to NumPy")
    after = executor.backend.counters()
    check(
        after["captures"] - before["captures"] == 1 and after["replays"] - before["replays"] == 5,
        f"graphs: {after}",
    )
    check(executor.counters["sent"] == 6 * 4 * 100_003, f"{executor.counters}")
    bad = executor.run_arrays([x[::-1]])[0]
    check(np.array_equal(bad, (x[::-1] + w) * np.float32(0.5) + 3), "a strided array is copied first")
    times = np.zeros(2, np.int64)
    executor.run_arrays([x], times=times)
    check((times > 0).all() and (times < 10_000_000).all(), f"times {times} ns")
    return {"counters": executor.backend.counters(), "notes": executor.notes}


@checked
def early_and_clusters() -> Any:
    n = 1 << 20
    executor, w = executor_of(chain(n, 12, early=1))
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    for i in range(4):
        (y,) = executor.run_arrays([x])
        check(np.array_equal(y, (x + w) * np.float32(0.5) + 3), f"launched early {i}: equal to NumPy")
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
    return check(np.array_equal(y.reshape(16, 256), want), "a cluster of 4 with 100 KiB of shared memory")


@checked
def device_tensors() -> Any:
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
            check(torch.equal(again, ((x + weight) * 0.5 + 3) * 2), f"on a stream of torch's {i}")
    check(y.data_ptr() == buffer.address, "the output is the tensor: no copy")
    y2 = executor.run({"input": x})["output"]  # waits
    check(torch.equal(torch.from_dlpack(y2), (x + weight) * 0.5 + 3), "without a stream")
    other = torch.cuda.Stream()
    buffer = executor.run({"input": x}, stream=stream.cuda_stream)["output"]
    with torch.cuda.stream(other):
        check(
            torch.equal(torch.from_dlpack(buffer) + 0, (x + weight) * 0.5 + 3),
            "a consumer on another stream waits",
        )
    back = DeviceBuffer.from_dlpack(x, "cuda:0")
    check(
        back.address == x.data_ptr() and np.array_equal(back.to_numpy(), x.cpu().numpy()),
        "a tensor as a buffer",
    )
    half = DeviceBuffer.from_dlpack(x.to(torch.bfloat16), "cuda:0")
    check(half.spec.dtype is DType.BFLOAT16, f"{half}")
    check(torch.equal(torch.from_dlpack(half), x.to(torch.bfloat16)), "bfloat16 there and back")
    found["counters"] = executor.backend.counters()
    print("   ", found["counters"])
    return found


@checked
def out_of_memory() -> Any:
    executor, w = executor_of(chain(1000))
    x = np.ones(1000, np.float32)
    executor.run_arrays([x])
    said = ""
    try:
        large, _ = executor_of(chain(1000, arena=1 << 42))
        large.run_arrays([x])
        check(False, "4 TiB of arena must be refused")
    except OutOfMemory as error:
        said = str(error)
        check("bytes (4194304 MiB) on cuda:0" in said and "are free" in said, said)
    (y,) = executor.run_arrays([x])
    check(np.array_equal(y, (x + w) * np.float32(0.5) + 3), "the session goes on")
    memory = executor.backend.memory()
    freed = executor.backend.trim()
    check(
        executor.backend.memory()["cached_bytes"] <= memory["cached_bytes"],
        f"trim gave {freed} bytes back: {memory}",
    )
    return said


@checked
def threads() -> Any:
    n = 50_000
    executor, w = executor_of(chain(n, 6), contexts=4)
    wrong: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            x = rng.standard_normal(n).astype(np.float32)
            (y,) = executor.run_arrays([x])
            if not np.array_equal(y, (x + w) * np.float32(0.5) + 3):
                wrong.append(f"thread {seed}")

    team = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in team:
        t.start()
    for t in team:
        t.join()
    return check(
        not wrong and executor.counters["contexts"] <= 4,
        f"8 threads, 800 runs: {wrong or 'right'}, {executor.counters}",
    )


@checked
def costs() -> Any:
    """What a run of a captured program costs beside its graph, on device memory and on arrays; and memory over 10,000 runs."""
    n = 1024
    executor, _ = executor_of(chain(n, 20))
    x = DeviceBuffer.from_numpy(np.ones(n, np.float32), "cuda:0")
    y = DeviceBuffer.empty(f32("output", n), "cuda:0")
    core, fixed = executor._core, executor._fixed
    run = lambda: core.run_memory(fixed, [x.address], [y.address])  # noqa: E731
    ours = median_us(run, 3000)
    stream = torch.cuda.Stream()
    tx, w = torch.ones(n, device="cuda"), torch.ones(n, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        t = tx + w
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            t = tx + w
            for _ in range(19):
                t = t * 0.5

    def torch_graph() -> None:
        graph.replay()
        torch.cuda.synchronize()

    theirs = median_us(torch_graph, 3000)
    array = np.ones(n, np.float32)
    out = [np.empty(n, np.float32)]
    whole = median_us(lambda: executor.run_arrays([array], out), 3000)
    s = stream.cuda_stream
    queued = median_us(lambda: core.run_memory(fixed, [x.address], [y.address], None, None, None, s), 3000)
    torch.cuda.synchronize()
    before = executor.backend.memory(), executor.backend.pinned_memory()
    tensor = torch.ones(n, device="cuda")
    for i in range(10_000):
        executor.run({"input": tensor}, stream=s) if i % 2 else executor.run_arrays([array], out)
    torch.cuda.synchronize()
    after = executor.backend.memory(), executor.backend.pinned_memory()
    flat = after[0]["live_bytes"] - before[0]["live_bytes"]
    check(
        flat <= 1 << 21 and after[1]["live_bytes"] == before[1]["live_bytes"],
        f"memory over 10,000 runs: {before} -> {after}",
    )
    found = {
        "kernels": 20,
        "run_and_wait_us": ours,
        "torch_graph_replay_and_wait_us": theirs,
        "run_arrays_us": whole,
        "queue_us": queued,
        "memory_growth_bytes": flat,
    }
    print("   ", found)
    return found


def one_model(name: str, dtype: str = "float32") -> dict[str, Any]:
    module, _ = models.build(name, "small")
    feeds = models.inputs(name, 1)
    tensors = tuple(torch.from_numpy(v) for v in feeds.values())
    with torch.no_grad():
        want = module.double()(*(t.double() if t.is_floating_point() else t for t in tensors))
        module.float()
    want = np.asarray(want.detach() if torch.is_tensor(want) else want[0].detach())
    started = time.perf_counter()
    with xrt.InferenceSession(module, device="cuda:0", engine="native", example_inputs=tensors) as sess:
        opened = time.perf_counter() - started
        given = dict(zip([s.name for s in sess.input_info], feeds.values(), strict=True))
        results = [next(iter(sess.run(given).values())) for _ in range(4)]
        receipt = sess.receipt()
        evidence = receipt.evidence["r0"]
        run_us = median_us(lambda: sess.run(given), 200)
    scale = np.abs(want).max()
    errors = [float(np.abs(np.asarray(r, np.float64) - want).max() / scale) for r in results]
    check(
        max(errors) <= 1e-5,
        f"{name}: max|d|/max|ref| {max(errors):.2e} against float64, opened in {opened:.1f} s, {run_us} us",
    )
    check(all(np.array_equal(results[0], r) for r in results), f"{name}: the same bits in every run")
    check(
        all(r.device == "cuda:0" for r in evidence.rows),
        f"{name}: {len(evidence.rows)} kernels on cuda:0, {evidence.notes}",
    )
    kernels = sorted({r.kernel.partition(":")[0] for r in evidence.rows})
    print("   ", kernels)
    return {
        "max_rel": max(errors),
        "open_s": round(opened, 2),
        "run_us": run_us,
        "kernels": kernels,
        "notes": evidence.notes,
    }


@checked
def sessions() -> Any:
    found = {}
    for name in models.MODELS:
        try:
            found[name] = one_model(name)
        except Exception as error:
            check(False, f"{name}: {type(error).__name__}: {str(error)[:1500]}")
    return found


@checked
def session_tensors() -> Any:
    """Sessions on tensors of the device: no copy, on PyTorch's current stream, nobody waits."""
    module, _ = models.build("resnet18", "small")
    image = torch.from_numpy(models.inputs("resnet18", 1)["image"])
    with torch.no_grad():
        want = module.double()(image.double())
        module.float()
    found: dict[str, Any] = {}
    with xrt.InferenceSession(module, device="cuda:0", engine="native", example_inputs=(image,)) as sess:
        name = sess.input_info[0].name
        host = sess.run({name: image})
        check(all(t.device.type == "cpu" for t in host.values()), "tensors of the host come back on the host")
        sent = sess._executable.counters["sent"]
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(6):
                x = image.cuda(non_blocking=True) * 2 / 2
                y = next(iter(sess.run({name: x}).values()))
                z = (y.double().cpu() - want).abs().max() / want.abs().max()
                check(y.device.type == "cuda" and z < 1e-5, f"on the device: {float(z):.2e}")
        check(sess._executable.counters["sent"] == sent, "nothing crossed")
        x = image.cuda()
        found["queue_us"] = median_us(lambda: sess.run({name: x}), 300)
        torch.cuda.synchronize()

        def waited() -> None:
            sess.run({name: x})
            torch.cuda.synchronize()

        found["run_and_wait_us"] = median_us(waited, 300)
        try:
            sess.run({name: x.double()})
            check(False, "another dtype must be refused")
        except xrt.InputError as error:
            check("must be float32" in str(error), str(error))
        print("   ", found, sess.receipt().evidence["r0"].notes)
    return found


@checked
def programs() -> Any:
    """Compiled ahead, saved, loaded, run; a binary for another device is refused before it runs."""
    module, _ = models.build("resnet18", "small")
    image = models.inputs("resnet18", 2)["image"]
    graph = xrt.extract_ir(module, (torch.from_numpy(image),))
    graph = getattr(graph, "graph", graph)
    path = Path("/tmp/model.npubin")
    weights = {k: v.detach().numpy() for k, v in module.state_dict().items()}
    compile_graph(graph, target=["cuda:sm_100", CudaBackend().target, "cpu"]).save(path)
    loaded = CompiledProgram.load(path)
    executor = Executor(loaded, "cuda:0")
    check("sm_100" in str(executor.decision.rejected[0]), f"{executor.decision.rejected[0].reason}")
    del weights
    return executor.plan.target


@checked
def lost_context() -> Any:
    """Last: a kernel that writes where nothing is. Afterwards the context is gone, and errors say so."""
    executor, _ = executor_of(program(256, [call("wild", "x", "y", 256)]))
    said = []
    for _ in range(2):
        try:
            executor.run_arrays([np.ones(256, np.float32)])
            check(False, "a wild write must fail")
        except xrt.RunError as error:
            said.append(str(error))
    return check("context is lost for this process" in said[0], said[0]) and said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(torch.cuda.get_device_name(0), "torch")}
    for name in arguments.checks or CHECKS:
        print(f"-- {name}", flush=True)
        started = time.perf_counter()
        try:
            results[name] = CHECKS[name]()
        except Exception as error:
            traceback.print_exc()
            check(False, f"{name}: {type(error).__name__}: {error}")
        print(f"   {time.perf_counter() - started:.1f} s", flush=True)
    results["failures"] = failures
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(results, indent=1, default=str) + "\n")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
