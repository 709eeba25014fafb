"""Generated CUDA kernels, run on a CPU: the very text that NVRTC compiles, under ``emulator.h`` instead of a GPU's instructions.

    judge(Generated(), "mm", x, w)          lower the node, run its stages block by block, compare with the interpreter

The results of other launches are visible only after the first thread has waited for the launch's turn; before, there are NaNs.
What it cannot show is speed, and whether the few instructions of ``tensor.cuh`` mean what the emulator takes them to mean; that is
what ``benchmarks/cuda/heavy_kernels.py`` is for.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from xpuruntime.codegen.cpp.target import ordered_parts
from xpuruntime.codegen.cuda.target import CudaTarget, cuda_part, cuda_target
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.kernels.kernel import Kernel, LoweredCall, NodeCall, Operand, Packed, Stage
from xpuruntime.numerics import compare, tolerance_for
from xpuruntime.passes.layout import channels_last
from xpuruntime.program.program import WeightTransformRecipe
from xpuruntime.runtime.memory.layouts import from_memory, memory_shape, to_memory
from xpuruntime.runtime.weights.recipes import run_recipe
from xpuruntime.types import DType, TensorSpec

FLAGS = (
    "-O1",
    "-std=c++17",
    "-w",
    "-fPIC",
    "-shared",
    "-ffp-contract=fast",
    "-fno-strict-aliasing",
    "-fno-gnu-unique",
)
_LIMITS = {DType.FLOAT64: 1e-12, DType.FLOAT32: 1e-5}


def one_node(
    op: str, operands: Sequence[Any], weights: str = "", **attrs: Any
) -> tuple[Graph, dict[str, Any], dict[str, Any]]:
    """A graph of one node, its inputs and its weights. An operand is an array, a number or None; digits in ``weights`` are positions."""
    b = GraphBuilder("one")
    feeds: dict[str, Any] = {}
    known: dict[str, Any] = {}
    names: list[Any] = []
    for i, x in enumerate(operands):
        if not isinstance(x, np.ndarray):
            names.append(x)
            continue
        declare, held = (b.weight, known) if str(i) in weights else (b.input, feeds)
        names.append(declare(f"x{i}", f"{x.dtype.name}{list(x.shape)}"))
        held[f"x{i}"] = x
    b.output("y", b.call(op, *names, **attrs))
    return b.build(), feeds, known


def call_of(graph: Graph, known: Mapping[str, Any], innermost: bool = False) -> NodeCall:
    """The node as kernels see it: dense, or with the channels of all values but weights innermost."""
    (node,) = graph.nodes

    def spec(name: str) -> TensorSpec:
        found = graph.spec(name)
        return (
            replace(found, layout=channels_last(found))
            if innermost and name not in known and found.rank > 2
            else found
        )

    inputs = tuple(Operand(i, spec(i), i in known) if isinstance(i, str) else i for i in node.inputs)
    return NodeCall(node, inputs, tuple(spec(v.name) for v in node.outputs))


def text_of(stages: Sequence[Stage], target: CudaTarget) -> str:
    """One C++ file: the emulator, the prelude but for ``tensor``, the kernels, and a function each that launches it."""
    parts = {p for s in stages for p in s.parts}
    names = ordered_parts(parts, lambda p: cuda_part(p)[1])
    texts = [cuda_part(p)[1] for p in names if p != "tensor"]
    functions = [s.source.replace("KERNEL", f"kernel{i}") for i, s in enumerate(stages)]
    launches = [
        f'extern "C" void launch{i}(void **a) {{ emulated_call(&kernel{i}, a); }}' for i in range(len(stages))
    ]
    head = Path(__file__).with_name("emulator.h").read_text()
    sm = f"#define SM {target.sm.number}"
    # What the texts define and call by its global name is in the namespace here.
    own = set(re.findall(r"INLINE \w+ (\w+)\(", "\n".join(texts)))
    inside = [
        re.sub(r"(?<![\w>:])::(\w+)", lambda m: f"xpu::{m[1]}" if m[1] in own else m[0], text)
        for text in (*texts, *functions)
    ]
    return "\n".join([sm, head, "namespace xpu {", *inside, *launches, "}"])


@cache
def _built(text: str) -> ctypes.CDLL:
    folder = (
        Path(tempfile.gettempdir())
        / f"xpu-emulated-{hashlib.sha256((text + str(FLAGS)).encode()).hexdigest()[:24]}"
    )
    folder.mkdir(exist_ok=True)
    library = folder / "kernels.so"
    if not library.exists():
        source = folder / "kernels.cpp"
        source.write_text(text)
        made = folder / "new.so"
        done = subprocess.run(
            ["g++", *FLAGS, "-o", made, source], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[:6000]
        made.rename(library)
    return ctypes.CDLL(str(library))


def _guarded(shape: Sequence[int], dtype: Any, fill: Any = None, shift: int = 0) -> np.ndarray[Any, Any]:
    """An array between NaNs, so that what is read next to it shows; ``shift`` elements off 256-byte alignment."""
    own = np.dtype(dtype)
    size, guard = int(np.prod(shape)), 256 // own.itemsize
    raw = np.full((size + 4 * guard) * own.itemsize, 0xFF, np.uint8)
    start = (-raw.ctypes.data % 256) + 256 + shift * own.itemsize
    found = raw[start : start + size * own.itemsize].view(own).reshape(shape)
    if fill is not None:
        found[...] = fill
    return found


def emulate(
    lowered: LoweredCall, call: NodeCall, target: CudaTarget, arrays: Mapping[str, Any], shift: int = 0
) -> list[Any]:
    """The results of a lowered node."""
    library = _built(text_of(lowered.stages, target)) if lowered.stages else None
    places: dict[str, Any] = {}
    for i, operand in enumerate(call.inputs):
        if isinstance(operand, Operand):
            value = arrays[operand.name]
            packed = lowered.weights.get(i)
            value = to_memory(value, operand.spec) if packed is None else pack(packed, value)
            places[f"in{i}"] = _guarded(value.shape, value.dtype, value, shift)
    for name, (i, packed) in lowered.extra_weights.items():
        value = pack(packed, arrays[call.tensor(i).name])
        places[name] = _guarded(value.shape, value.dtype, value)
    for i, size in enumerate(lowered.temps):
        places[f"temp{i}"] = _guarded((size,), np.uint8)
    places["counters"] = _guarded((lowered.counters,), np.uint8, 0)
    outputs = [_guarded(memory_shape(s), s.dtype.numpy, shift=shift) for s in call.outputs]
    places |= {f"out{i}": x for i, x in enumerate(outputs)}
    for i, stage in enumerate(lowered.stages):
        assert library is not None
        grid, (block, *_), shared = (stage.options[n] for n in ("grid", "block", "shared"))
        assert shared <= target.config.smem_per_block
        written = {
            f"in{at}" for at, o in enumerate(call.inputs) if isinstance(o, Operand) and not o.is_weight
        }
        late = {
            a: places[a].copy()
            for a in stage.args
            if (a in written or a.startswith("temp")) and a not in stage.options.get("prologue_reads", ())
        }
        for a, value in late.items():
            library.arrives_late(
                ctypes.c_void_p(places[a].ctypes.data),
                ctypes.c_void_p(value.ctypes.data),
                ctypes.c_long(value.nbytes),
            )
        pointers = (ctypes.c_void_p * len(stage.args))(*(places[a].ctypes.data for a in stage.args))
        blocks = stage.options.get("cluster", (1,))[0]
        library.emulate(
            getattr(library, f"launch{i}"), pointers, (ctypes.c_int * 3)(*grid), block, blocks, shared, 7 + i
        )
    assert not places["counters"].any()  # as they were
    return [from_memory(x, s) for x, s in zip(outputs, call.outputs, strict=True)]


def pack(packed: Packed, value: Any) -> Any:
    """A weight as the kernel reads it."""
    return np.ascontiguousarray(
        run_recipe(WeightTransformRecipe("packed", packed.spec, "x", packed.steps), {"x": value})
    )


def judge(
    kernel: Kernel, op: str, *operands: Any, weights: str = "", target: str = "cuda:sm_90", shift: int = 0, tolerance: float | None = None,
    innermost: bool = False, **attrs: Any,
) -> Any:  # fmt: skip
    """The kernel's result, after comparing it with the interpreter's; raises AssertionError."""
    graph, feeds, known = one_node(op, operands, weights, **attrs)
    call, to = call_of(graph, known, innermost), cuda_target(target)
    said = kernel.supports(call, to)
    assert said, said.reason
    (got,) = emulate(kernel.lower(call, to), call, to, feeds | known, shift)
    want = interp.run(graph, feeds, weights=known)["y"]
    dtype = DType.of(want.dtype)
    limit = _LIMITS.get(dtype, tolerance_for(dtype)) if tolerance is None else tolerance
    verdict = compare("y", got, want, limit)
    assert verdict.ok, f"{verdict.reason} (max|d|/max|ref| {verdict.max_rel:.3g}, limit {limit:.3g})\n{graph}"
    return got
