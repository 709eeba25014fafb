"""Checks of one kernel: one node with any layouts of operands and results, and any split of its tasks.

    check_kernel(Generated(), "convolution", [x, Weight(w), None], layouts={0: NHWC}, stride=[1, 1], ...)

``support.native`` checks whole graphs, where passes choose the layouts; here the caller chooses them.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np

from xpuruntime import _core
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.kernels.kernel import Kernel, LoweredCall, NodeCall, Operand, Packed
from xpuruntime.numerics import compare, tolerance_for
from xpuruntime.program.program import WeightTransformRecipe
from xpuruntime.protocols import Array
from xpuruntime.runtime.memory.layouts import from_memory, memory_shape, to_memory
from xpuruntime.runtime.weights.recipes import run_recipe
from xpuruntime.testing.conformance.subject import DeviceUnderTest
from xpuruntime.types import DType, Layout, TensorSpec

from .device_under_test import named
from .kernel_graphs import check_graphs

__all__ = [
    "Job",
    "Prepared",
    "Weight",
    "build_kernel",
    "channels_last",
    "check_kernel",
    "prepare",
    "run_kernel",
]

_LIMITS: Mapping[DType, float] = {DType.FLOAT64: 1e-12, DType.FLOAT32: 1e-5}


@dataclass(frozen=True)
class Weight:
    """An operand that is known before the run."""

    array: Array


def channels_last(shape: Sequence[int], pad_to: int = 1) -> Layout:
    """Return the NHWC layout of any rank, with channels padded to a multiple."""
    rank = len(shape)
    alloc = (shape[0], -(-shape[1] // pad_to) * pad_to, *shape[2:])
    return Layout((0, *range(2, rank), 1), alloc)


@dataclass(frozen=True)
class _Built:
    call: NodeCall
    lowered: LoweredCall
    symbols: tuple[str, ...]
    library: ctypes.CDLL


def build_kernel(
    kernel: Kernel,
    op: str,
    operands: Sequence[Any],
    target: CodegenTarget,
    layouts: Mapping[int, Layout],
    out_layouts: Mapping[int, Layout],
    **attrs: Any,
) -> _Built:
    """Lower and compile a node. ``operands``: arrays, ``Weight``s, numbers or None. Raises AssertionError if the kernel refuses it."""
    b = GraphBuilder("one")
    names = [_declare(b, i, v) for i, v in enumerate(operands)]
    b.call(op, *names, **attrs)
    node = b.nodes[0]
    inputs = tuple(
        _operand(b, n, v, layouts.get(i)) for i, (n, v) in enumerate(zip(names, operands, strict=True))
    )
    outputs = tuple(replace(b.spec(v.name), layout=out_layouts.get(i)) for i, v in enumerate(node.outputs))
    call = NodeCall(node, inputs, outputs)
    support = kernel.supports(call, target)
    assert support.ok, support.reason
    lowered = kernel.lower(call, target)
    symbols = tuple(f"k{i}_{s.stem}" for i, s in enumerate(lowered.stages))
    parts = frozenset().union(*(s.parts for s in lowered.stages))
    binary = target.assemble({n: s.source for n, s in zip(symbols, lowered.stages, strict=True)}, parts)
    # This call also requests permission to use the AMX tile registers.
    missing = _core.missing_requirements(list(binary.requires))
    assert not missing, f"this machine lacks {', '.join(missing)}"
    with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
        file.write(binary.data)
    try:
        return _Built(call, lowered, symbols, ctypes.CDLL(file.name))
    finally:
        Path(file.name).unlink()


def _declare(b: GraphBuilder, at: int, value: Any) -> Any:
    array = value.array if isinstance(value, Weight) else value
    if not isinstance(array, np.ndarray):
        return value
    return b.input(f"in{at}", TensorSpec(array.shape, DType.of(array.dtype)))


def _operand(b: GraphBuilder, name: Any, value: Any, layout: Layout | None) -> Any:
    if not isinstance(name, str):
        return name
    return Operand(name, replace(b.spec(name), layout=layout), isinstance(value, Weight))


@dataclass(frozen=True)
class Job:
    """A stage that is ready to run: the function, its arguments, and scratch for each thread."""

    function: Any
    args: Any
    tasks: int
    scratch: tuple[Array, ...]
    scratch_bytes: int

    def run(self, begin: int, end: int) -> None:
        """Run the tasks from ``begin`` to ``end``."""
        scratch = ctypes.c_void_p(self.scratch[0].ctypes.data)
        self.function(self.args, None, ctypes.c_int64(begin), ctypes.c_int64(end), scratch)


@dataclass(frozen=True)
class Prepared:
    """A kernel with its operands in buffers. ``jobs`` are in order; ``buffers`` keeps the memory alive."""

    jobs: tuple[Job, ...]
    buffers: Mapping[str, Array]


def _packed(packed: Packed, array: Array) -> Array:
    return run_recipe(WeightTransformRecipe("w", packed.spec, "in", packed.steps), {"in": array})


def prepare(compiled: _Built, operands: Sequence[Any], threads: int = 1) -> Prepared:
    """Return a buffer for every argument: packed weights, other operands in their layout, results and temporaries filled with a pattern."""
    buffers: dict[str, Array] = {}
    for i, value in enumerate(operands):
        if isinstance(value, Weight):
            packed, array = compiled.lowered.weights.get(i), value.array
            buffers[f"in{i}"] = array if packed is None else _packed(packed, array)
        elif isinstance(value, np.ndarray):
            operand = compiled.call.inputs[i]
            assert isinstance(operand, Operand)
            buffers[f"in{i}"] = np.array(to_memory(value, operand.spec), order="C")
    for name, (i, packed) in compiled.lowered.extra_weights.items():
        buffers[name] = _packed(packed, operands[i].array)
    for i, spec in enumerate(compiled.call.outputs):
        buffers[f"out{i}"] = np.full(spec.size_bytes or 0, 0xCC, np.uint8)
    for i, size in enumerate(compiled.lowered.temps):
        buffers[f"temp{i}"] = np.full(size, 0xCC, np.uint8)
    buffers["counters"] = np.zeros(compiled.lowered.counters, np.uint8)
    aligned = {n: _aligned(np.array(a, order="C")) for n, a in buffers.items()}
    jobs = []
    for symbol, stage in zip(compiled.symbols, compiled.lowered.stages, strict=True):
        args = (ctypes.c_void_p * len(stage.args))(*[aligned[a].ctypes.data for a in stage.args])
        scratch = tuple(_aligned(np.full(stage.scratch_bytes, 0xCC, np.uint8)) for _ in range(threads))
        jobs.append(Job(getattr(compiled.library, symbol), args, stage.tasks, scratch, stage.scratch_bytes))
    return Prepared(tuple(jobs), aligned)


def run_kernel(compiled: _Built, operands: Sequence[Any], split: int | None = None) -> tuple[Array, ...]:
    """Run a kernel and return its outputs. ``split``: seed of random splits of every stage's tasks.

    Raises AssertionError if a stage writes outside its buffers.
    """
    ready = prepare(compiled, operands)
    rng = np.random.default_rng(split)
    for job in ready.jobs:
        cuts = [0, job.tasks]
        if split is not None:
            cuts = sorted({*cuts, *rng.integers(0, job.tasks + 1, 3).tolist()})
        for begin, end in itertools.pairwise(cuts):
            job.run(begin, end)
        assert (job.scratch[0][job.scratch_bytes :][:64] == 0xCC).all(), "a stage wrote beyond its scratch"
    results = []
    for i, spec in enumerate(compiled.call.outputs):
        size = spec.size_bytes or 0
        flat = ready.buffers[f"out{i}"][:size]
        assert (ready.buffers[f"out{i}"][size:][:64] == 0xCC).all(), "a stage wrote beyond its result"
        results.append(from_memory(flat, spec).copy())
        if spec.layout is not None:
            memory = flat.reshape(*memory_shape(spec), spec.dtype.numpy.itemsize)
            inside = np.zeros(memory_shape(spec), bool)
            inside[tuple(slice(results[-1].shape[d]) for d in spec.layout.order)] = True
            assert (memory[~inside] == 0xCC).all(), "a stage wrote into the padding of a layout"
    return tuple(results)


def _aligned(array: Array) -> Array:
    """Return a copy that starts at a multiple of 64, followed by guard bytes."""
    raw = np.full(array.nbytes + 128, 0xCC, np.uint8)
    at = -raw.ctypes.data % 64
    flat = raw[at : at + array.nbytes]
    flat[:] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return raw[at:].view(np.uint8)


def check_kernel(
    kernel: Kernel,
    op: str,
    operands: Sequence[Any],
    *,
    target: str | CodegenTarget = "cpu",
    layouts: Mapping[int, Layout] | None = None,
    out_layouts: Mapping[int, Layout] | None = None,
    split: int | None = None,
    tolerance: float | None = None,
    config: Any = None,
    **attrs: Any,
) -> tuple[Array, ...]:
    """Run a kernel, compare it with the interpreter, and return the outputs. Raises AssertionError."""
    if (device := named()) is not None:
        return _on_device(device, op, operands, attrs)
    where = _target(target) if isinstance(target, str) else target
    if config is not None:
        where = type(where)(where.isa, config)  # type: ignore[attr-defined, call-arg]
    compiled = build_kernel(kernel, op, operands, where, layouts or {}, out_layouts or {}, **attrs)
    outputs = run_kernel(compiled, operands, split)
    b = GraphBuilder("one")
    names = [_declare(b, i, v) for i, v in enumerate(operands)]
    results = b.call(op, *names, **attrs)
    results = results if isinstance(results, tuple) else (results,)
    for name in results:
        b.output(name)
    feeds = {
        n: (v.array if isinstance(v, Weight) else v)
        for n, v in zip(names, operands, strict=True)
        if isinstance(n, str)
    }
    want = interp.run(b.build(), feeds)
    for name, actual in zip(results, outputs, strict=True):
        expected = want[name]
        dtype = DType.of(expected.dtype)
        limit = _LIMITS.get(dtype, tolerance_for(dtype)) if tolerance is None else tolerance
        verdict = compare(name, actual, expected, limit)
        assert verdict.ok, f"{op} {attrs}: {verdict.reason} ({verdict.max_rel:.3g}, limit {limit:.3g})"
    return outputs


def _on_device(
    device: DeviceUnderTest, op: str, operands: Sequence[Any], attrs: Mapping[str, Any]
) -> tuple[Array, ...]:
    """Check the same node and values on a named device. Its compiler chooses layouts and kernels."""
    b = GraphBuilder("one")
    feeds: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    names: list[Any] = []
    for i, value in enumerate(operands):
        array = value.array if isinstance(value, Weight) else value
        if not isinstance(array, np.ndarray):
            names.append(value)
            continue
        spec = TensorSpec(array.shape, DType.of(array.dtype))
        names.append((b.weight if isinstance(value, Weight) else b.input)(f"in{i}", spec))
        (weights if isinstance(value, Weight) else feeds)[f"in{i}"] = array
    results = b.call(op, *names, **attrs)
    for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
        b.output(f"y{i}", value)
    graph = b.build()
    refused = check_graphs(device, [(f"{op} {attrs}", graph, feeds, weights)])
    if refused:
        raise SkipTest(f"no kernel there: {refused[0]}")
    return tuple(interp.run(graph, feeds, weights=weights).values())


@functools.cache
def _target(text: str) -> CodegenTarget:
    return cpu_target(text)
