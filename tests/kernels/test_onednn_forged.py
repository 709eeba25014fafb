"""Programs without native code whose oneDNN calls contradict their buffers: each is refused before the library is asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

from xpuruntime.kernels.cpu import onednn

needs_library = pytest.mark.skipif(not onednn.installed(), reason="needs xpuruntime[onednn]")

# Forged calls may end the process that makes them, so it is not pytest's.
PREAMBLE = """
import numpy as np
from xpuruntime.errors import KernelRefused
from xpuruntime.program.program import (
    BufferAllocation, BufferKind, CompiledProgram, EntryPoint, ExecutionPlan, KernelCall, WeightRef, WeightTransformRecipe)
from xpuruntime.runtime import Device, Executor
from xpuruntime.types import TensorSpec

def program(symbol, specs, options, weight=True):
    # The specs of x, weight, then of bias and residual where there are any, then of y. Valid by every rule of docs/reference/program-file.md.
    names = ["x", "w", *(n for n in ("bias", "residual") if options.get(n)), "y"]
    kinds = {"x": BufferKind.INPUT, "y": BufferKind.OUTPUT, "w": BufferKind.WEIGHT if weight else BufferKind.INPUT}
    specs = {n: TensorSpec.parse(s, n) for n, s in zip(names, specs, strict=True)}
    buffers = tuple(BufferAllocation(n, kinds.get(n, BufferKind.INPUT), s, s.size_bytes, n, 0, -1, 1) for n, s in specs.items())
    inputs = tuple(n for n in names[:-1] if kinds.get(n) is not BufferKind.WEIGHT)
    call = KernelCall("test/onednn", symbol, tuple(names[:-1]), ("y",), library="onednn", options=options)
    plan = ExecutionPlan("cpu:x86-64", -1, (call,), buffers, 0, 1)
    entry = EntryPoint("main", tuple(specs[n] for n in inputs), (specs["y"],), inputs, ("y",), (plan,))
    data = np.ones([int(d) for d in specs["w"].shape], specs["w"].dtype.numpy)
    weights = (WeightRef("w", specs["w"], data=data.tobytes()),) if weight else ()
    recipes = (WeightTransformRecipe("w", specs["w"], "w"),) if weight else ()
    made = CompiledProgram("forged", (entry,), weights, recipes)
    return CompiledProgram.from_bytes(made.to_bytes())  # a program that loads

def run(*args, **more):
    made = program(*args, **more)
    inputs = [np.ones([int(d) for d in s.shape], s.dtype.numpy) for s in made.input_specs]
    return Executor(made, Device("cpu")).run_arrays(inputs)[0]

def refuses(text, *args, **more):
    try:
        run(*args, **more)
    except KernelRefused as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"not refused: {args}")
"""

CALLS = """
CONV = {"stride": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0), "groups": 1, "weight_known": True}
F = "float32"
x, w, y = "float32[1, 8, 6, 6]", "float32[8, 8, 3, 3]", "float32[1, 8, 4, 4]"
assert (run("convolution", [x, w, y], CONV) == 72).all()
a, b, c = "float32[16, 32]", "float32[32, 8]", "float32[16, 8]"
assert (run("matmul", [a, b, c], {}) == 32).all()

wrong = "contradicts its buffers"
for dtype in ("uint8", "bfloat16", "bool", "float64"):
    refuses("its arguments are float32 and " + dtype, "convolution", [x, w, dtype + "[1, 8, 4, 4]"], CONV)
    refuses("its arguments are float32 and " + dtype, "matmul", [a, b, dtype + "[16, 8]"], {})
refuses("no type for int8", "matmul", [s.replace("float32", "int8") for s in (a, b, c)], {})
for small in ("float32[1]", "float32[]", "float32[1, 8, 4, 3]"):
    refuses("its residual does not", "convolution", [x, w, small, y], {**CONV, "residual": True})
    refuses("its residual does not", "matmul", [a, b, small, c], {"residual": True})
for small in ("float32[1]", "float32[]", "float32[2, 4]"):
    refuses("its bias is not [8]", "convolution", [x, w, small, y], {**CONV, "bias": True})
    refuses("its bias is not [8]", "matmul", [a, b, small, c], {"bias": True})
for groups in (0, -1, 3, 8, 2**63 - 1, -(2**63)):
    refuses(wrong, "convolution", [x, w, y], {**CONV, "groups": groups})
for odd in ("float32[]", "float32[8]", "float32[8, 8]", "float32[2, 2, 2, 2, 2, 2, 2]"):
    for at in range(3):
        refuses(wrong, "convolution", [odd if i == at else s for i, s in enumerate((x, w, y))], CONV)
        for transposed in (True, False):
            if odd != "float32[8, 8]":
                specs = [odd if i == at else s for i, s in enumerate((a, b, c))]
                refuses(wrong, "matmul", specs, {"transposed": transposed})
refuses("oneDNN computes no softmax here", "softmax", [a, b, c], {})
refuses(wrong, "matmul", [a, b, "float32[16, 9]"], {})
refuses(wrong, "matmul", [a, "float32[31, 8]", c], {})
refuses(wrong, "matmul", ["float32[3, 4, 5]", "float32[2, 5, 6]", "float32[3, 4, 6]"], {})
refuses(wrong, "matmul", ["float32[0, 32]", b, "float32[0, 8]"], {})
refuses(wrong, "matmul", ["float32[2, 8, 32]", "float32[9, 32]", "float32[16, 8]"], {"transposed": True})
for key, value in [("stride", (0, 1)), ("stride", (1,)), ("stride", ()), ("dilation", (0, 1)), ("dilation", (2, 2)), ("padding", (0, 0, 0)),
                   ("padding", (-1, 0, 1, 0)), ("padding", (1, 1, 1, 1)), ("padding", (2**62, 0, 2**62, 0)), ("stride", (2**63 - 1, 1)),
                   ("dilation", (2**63 - 1, 1)), ("stride", "x")]:
    refuses(wrong, "convolution", [x, w, y], {**CONV, key: value})
print("all refused")
"""


@needs_library
def test_calls_that_contradict_their_buffers_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + CALLS], capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all refused\n"), done.stderr[-3000:]
