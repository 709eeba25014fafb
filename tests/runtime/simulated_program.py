"""A program for the simulated driver, and what a case needs to run it. The second argument of the process is the file of its kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from handmade import buffer, f32

from xpuruntime.program.program import (
    Binary,
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    KernelCall,
    KernelParam,
    WeightRef,
    WeightTransformRecipe,
)
from xpuruntime.runtime import Executor

N = 1000
KERNELS = Path(sys.argv[2])


def program(arena: int = 4 * N, requires: str = "cuda:sm_90") -> CompiledProgram:
    """y = (x + w) * 0.5 + 3."""
    launch = {"grid": [N, 1, 1], "block": [1, 1, 1], "shared": 0}
    params = (KernelParam("factor", "f64", 0.5), KernelParam("shift", "i64", 3))
    calls = (
        KernelCall("test/add", "add", ("x", "w"), ("t",), tasks=N, options=launch),
        KernelCall("test/scale", "scale", ("t",), ("y",), params, tasks=N, options=launch),
    )
    kinds = {"x": BufferKind.INPUT, "w": BufferKind.WEIGHT, "t": BufferKind.SCRATCH, "y": BufferKind.OUTPUT}
    buffers = tuple(buffer(name, kind, f32(name, N)) for name, kind in kinds.items())
    plan = ExecutionPlan("cuda:sm_90", 0, calls, buffers, arena, 1000)
    return CompiledProgram(
        "chain",
        (EntryPoint("main", (f32("input", N),), (f32("output", N),), ("x",), ("y",), (plan,)),),
        weights=(WeightRef("w", f32("w", N), key="w"),),
        recipes=(WeightTransformRecipe("w", f32("w", N), "w"),),
        binaries=(Binary("cuda:sm_90", "cubin", (requires,), ("add", "scale"), KERNELS.read_bytes()),),
    )


W = np.arange(N, dtype=np.float32)


def executor(**options: int) -> Executor:
    made = Executor(program(**options), "cuda:0")
    made.bind({"w": W})
    return made


def x_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(N).astype(np.float32)


def right(x: np.ndarray, y: np.ndarray) -> bool:
    return np.array_equal(y, (x + W) * np.float32(0.5) + 3)
