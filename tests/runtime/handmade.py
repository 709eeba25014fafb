"""Programs made by hand: C code compiled here, wrapped as CompiledProgram."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from pathlib import Path

import numpy as np

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
from xpuruntime.types import DType, TensorSpec

SOURCE = """
typedef long i64;
extern "C" void add(void* const* args, const void* params, i64 begin, i64 end, void*) {
    const float *a = (const float*)args[0], *b = (const float*)args[1];
    float* y = (float*)args[2];
    for (i64 i = begin; i < end; ++i) y[i] = a[i] + b[i];
}
extern "C" void scale(void* const* args, const void* params, i64 begin, i64 end, void*) {
    const float* a = (const float*)args[0];
    float* y = (float*)args[1];
    const i64* counts = (const i64*)params;
    const double* factors = (const double*)params;
    for (i64 i = begin; i < end; ++i) y[i] = a[i] * (float)factors[1] + (float)counts[0];
}
extern "C" void bump(void* const* args, const void*, i64 begin, i64 end, void*) {
    float* s = (float*)args[1];
    for (i64 i = begin; i < end; ++i) s[i] = ((const float*)args[0])[i] + 1;
}
extern "C" void slow(void* const* args, const void*, i64 begin, i64 end, void*) {
    volatile float* y = (volatile float*)args[1];
    for (i64 i = begin; i < end; ++i)
        for (int k = 0; k < 1000000; ++k) y[0] = y[0] * 0.5f;
}
extern "C" void scratch(void* const* args, const void*, i64 begin, i64 end, void* own) {
    const float* a = (const float*)args[0];
    float* y = (float*)args[1];
    float* t = (float*)own;
    for (i64 i = begin; i < end; ++i) t[i - begin] = a[i] * 2;
    for (i64 i = begin; i < end; ++i) y[i] = t[i - begin] + (((unsigned long)own) % 64);
}
"""


@functools.cache
def code(source: str = SOURCE) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        text, made = Path(folder, "k.cpp"), Path(folder, "k.so")
        text.write_text(source)
        flags = ["-O2", "-shared", "-fPIC", "-ffreestanding", "-nostdlib"]
        subprocess.run(["g++", *flags, "-o", str(made), str(text)], check=True)
        return made.read_bytes()


def binary(*requires: str, source: str = SOURCE) -> Binary:
    symbols = ("add", "scale", "bump", "slow", "scratch")
    return Binary("cpu:test", "elf-x86-64", requires, symbols, code(source), source, "g++")


def f32(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(shape, DType.FLOAT32, name)


def buffer(
    name: str, kind: BufferKind, spec: TensorSpec, root: str = "", offset: int = 0
) -> BufferAllocation:
    return BufferAllocation(name, kind, spec, spec.size_bytes or 0, root or name, offset)


def call(symbol: str, inputs: str, outputs: str, tasks: int, **options: object) -> KernelCall:
    """Names of buffers in one text, parted by spaces."""
    return KernelCall(
        f"test/{symbol}", symbol, tuple(inputs.split()), tuple(outputs.split()), tasks=tasks, **options
    )  # type: ignore[arg-type]


def chain(n: int = 64, *, grain: int = 1, batch: int = 1000, length: int = 2) -> CompiledProgram:
    """y = scale(x + w) ; w is a weight, the sum is in scratch; ``length`` - 2 further scalings by 1 in place."""
    spec = f32("x", n)
    params = (KernelParam("offset", "i64", 3), KernelParam("factor", "f64", 0.5))
    same = (KernelParam("offset", "i64", 0), KernelParam("factor", "f64", 1.0))
    calls = [call("add", "x w", "t", n, grain=grain)]
    calls += [call("scale", "t", "t", n, grain=grain, params=same) for _ in range(length - 2)]
    calls += [call("scale", "t", "y", n, grain=grain, params=params)]
    buffers = (
        buffer("x", BufferKind.INPUT, spec),
        buffer("w", BufferKind.WEIGHT, spec),
        buffer("t", BufferKind.SCRATCH, spec),
        buffer("y", BufferKind.OUTPUT, spec),
    )
    plan = ExecutionPlan("cpu:test", 0, tuple(calls), buffers, 4 * n, batch)
    entry = EntryPoint("main", (f32("input", n),), (f32("output", n),), ("x",), ("y",), (plan,))
    return CompiledProgram(
        "chain",
        (entry,),
        weights=(WeightRef("w", f32("w", n), key="model.w"),),
        recipes=(WeightTransformRecipe("w", f32("w", n), "w"),),
        binaries=(binary(),),
    )


X = np.linspace(-1, 1, 64, dtype=np.float32)
W = np.arange(64, dtype=np.float32)
WANT = (X + W) * np.float32(0.5) + np.float32(3)
"""An input of ``chain()``, a weight, and what it makes of them."""
