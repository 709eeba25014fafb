"""Small programs of hand-written kernels, which the scripts about the backend run: y = (x + w) * 0.5 + 3, in as many launches as wanted."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
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
from xpuruntime.runtime import CudaBackend, Executor
from xpuruntime.types import DType, TensorSpec

__all__ = ["call", "chain", "executor_of", "f32", "program"]

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
