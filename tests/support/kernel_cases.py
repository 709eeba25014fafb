"""Checks of many kernels in one compiler run. Each case is one node with explicit layouts.

    check_cases([KernelCase(Movement(), "permute", (x,), {"dims": [1, 0]}), ...], target="cpu:x86-64-v3")

Every stage's tasks are split at random points and run in random order. Buffers have guard bytes, and kernels must not write to the padding
of a layout. The interpreter computes the expected outputs; if it raises, the kernel must report a status.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from xpuruntime.codegen.cpp.target import CppTarget, cpu_target
from xpuruntime.errors import IrError
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.kernels.kernel import Kernel, LoweredCall, NodeCall, Operand
from xpuruntime.protocols import Array
from xpuruntime.runtime.memory.layouts import from_memory, memory_shape, to_memory
from xpuruntime.targets import TargetConfig
from xpuruntime.testing.conformance.opinfo.judge import disagreement
from xpuruntime.testing.conformance.subject import DeviceUnderTest
from xpuruntime.types import DType, Layout, TensorSpec

from .device_under_test import named
from .kernel_graphs import OneNode, check_graphs

__all__ = ["KernelCase", "check_cases"]

_GUARD = 64
_NEAR_HALF = 1e-4
"""Distance from a half at which sums of products of bytes in float32 may round either way."""


@dataclass(frozen=True)
class KernelCase:
    """One node. ``operands``: arrays, numbers or None; ``layouts``, ``out_layouts``: by position; ``outputs``: number of results."""

    kernel: Kernel
    op: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    layouts: Mapping[int, Layout] = field(default_factory=dict)
    out_layouts: Mapping[int, Layout] = field(default_factory=dict)
    outputs: int | None = None

    def graph(self) -> Graph:
        """Return the node's graph, with its operands as inputs ``x0``, ``x1`` ..."""
        b = GraphBuilder(self.op)
        names = [
            b.input(f"x{i}", TensorSpec(o.shape, DType.of(o.dtype))) if isinstance(o, np.ndarray) else o
            for i, o in enumerate(self.operands)
        ]
        results = b.call(self.op, *names, outputs=self.outputs, **self.attrs)
        for i, value in enumerate([results] if isinstance(results, str) else results):
            b.output(f"y{i}", value)
        return b.build()

    def call(self) -> NodeCall:
        """Return the node as kernels receive it."""
        graph = self.graph()
        (node,) = graph.nodes
        inputs = tuple(
            Operand(v, replace(graph.spec(v), layout=self.layouts.get(i))) if isinstance(v, str) else v
            for i, v in enumerate(node.inputs)
        )
        specs = [graph.spec(v.name) for v in node.outputs]
        outputs = tuple(replace(s, layout=self.out_layouts.get(i)) for i, s in enumerate(specs))
        return NodeCall(node, inputs, outputs)

    def __str__(self) -> str:
        operands = [
            f"{o.dtype}{list(o.shape)}" if isinstance(o, np.ndarray) else repr(o) for o in self.operands
        ]
        layouts = (
            f" {dict(self.layouts)} -> {dict(self.out_layouts)}" if self.layouts or self.out_layouts else ""
        )
        return f"{self.op}({', '.join(operands)}) {dict(self.attrs)}{layouts}"


def check_cases(
    cases: Sequence[KernelCase], *, target: str = "cpu", seed: int = 0, config: TargetConfig | None = None
) -> list[tuple[KernelCase, str]]:
    """Compile, run and compare all cases. Return the refused ones with their reasons. Raises AssertionError with the first wrong ones."""
    if (device := named()) is not None:
        return _on_device(device, cases)
    where = cpu_target(target)
    where = where if config is None else CppTarget(where.isa, config)
    refused: list[tuple[KernelCase, str]] = []
    lowered: list[tuple[KernelCase, NodeCall, LoweredCall]] = []
    functions: dict[str, str] = {}
    parts: frozenset[str] = frozenset()
    for case in cases:
        call = case.call()
        support = case.kernel.supports(call, where)
        if not support:
            refused.append((case, support.reason))
            continue
        low = case.kernel.lower(call, where)
        lowered.append((case, call, low))
        for stage in low.stages:
            functions.setdefault(_symbol(stage.source), stage.source)
            parts |= stage.parts
    library = _load(where, functions, parts)
    rng = np.random.default_rng(seed)
    wrong = [
        f"{case}: {difference}"
        for case, call, low in lowered
        if (difference := _check_case(case, call, low, library, rng))
    ]
    assert not wrong, f"{len(wrong)} of {len(lowered)} wrong\n" + "\n".join(wrong[:5])
    return refused


def _on_device(device: DeviceUnderTest, cases: Sequence[KernelCase]) -> list[tuple[KernelCase, str]]:
    """Check the same nodes and values on a named device. Its compiler chooses layouts and kernels."""
    nodes: list[OneNode] = [
        (str(c), c.graph(), {f"x{i}": o for i, o in enumerate(c.operands) if isinstance(o, np.ndarray)}, {})
        for c in cases
    ]
    return [(cases[at], why) for at, why in check_graphs(device, nodes).items()]


def _symbol(source: str) -> str:
    return f"k{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def _load(target: CppTarget, functions: Mapping[str, str], parts: frozenset[str]) -> ctypes.CDLL:
    binary = target.assemble(functions, parts)
    with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
        file.write(binary.data)
    try:
        return ctypes.CDLL(file.name)
    finally:
        Path(file.name).unlink()


def _check_case(
    case: KernelCase, call: NodeCall, low: LoweredCall, library: ctypes.CDLL, rng: np.random.Generator
) -> str:
    feeds = {f"x{i}": o for i, o in enumerate(case.operands) if isinstance(o, np.ndarray)}
    try:
        want: Mapping[str, Array] | None = interp.run(case.graph(), feeds)
    except IrError as error:
        want, refusal = None, str(error)
    buffers: dict[str, Array] = {}
    for i, operand in enumerate(call.inputs):
        if isinstance(operand, Operand):
            buffers[f"in{i}"] = _buffer(to_memory(feeds[operand.name], operand.spec))
    for i, spec in enumerate(call.outputs):
        buffers[f"out{i}"] = _room(spec.size_bytes or 0)
    for i, size in enumerate(low.temps):
        buffers[f"temp{i}"] = _room(size)
    status = 0
    for stage in low.stages:
        args = (ctypes.c_void_p * max(len(stage.args), 1))(*[buffers[a].ctypes.data for a in stage.args])
        scratch = _room(stage.scratch_bytes + 64)
        cuts = sorted({0, stage.tasks, *rng.integers(0, stage.tasks + 1, 2).tolist()})
        spans = list(itertools.pairwise(cuts))
        for at in rng.permutation(len(spans)).tolist():
            begin, end = spans[at]
            scratch[:64] = 0  # the 64 bytes before the scratch hold the status
            function = getattr(library, _symbol(stage.source))
            function(
                args,
                None,
                ctypes.c_int64(begin),
                ctypes.c_int64(end),
                ctypes.c_void_p(scratch.ctypes.data + 64),
            )
            status = status or int(scratch[56:64].view(np.int64)[0])
        _guarded(scratch, "scratch")
    for name, buffer in buffers.items():
        _guarded(buffer, name)
    if want is None:
        return "" if status else f"reports nothing, the interpreter says: {refusal}"
    if status:
        return f"reports status {status}, the interpreter has an answer"
    for i, spec in enumerate(call.outputs):
        difference = _differs(buffers[f"out{i}"], spec, want[f"y{i}"], _before_rounding(case, feeds))
        if difference:
            return f"result {i} {difference}"
    return ""


def _before_rounding(case: KernelCase, feeds: Mapping[str, Array]) -> Array | None:
    """Return the result of a resize of integers in float64: rounding a half hangs on the last bit of a sum."""
    if case.op != "resize" or feeds["x0"].dtype.kind not in "iu":
        return None
    wide = {**feeds, "x0": feeds["x0"].astype(np.float64)}
    return interp.run(replace(case, operands=(wide["x0"], *case.operands[1:])).graph(), wide)["y0"]


def _differs(buffer: Array, spec: TensorSpec, expected: Array, unrounded: Array | None = None) -> str:
    """Return how a result differs from what is expected, or nothing. unrounded: the values that were rounded; a half may go either way."""
    flat = buffer[: spec.size_bytes]
    if spec.layout is not None:
        memory = flat.view(f"u{spec.dtype.bits // 8}").reshape(memory_shape(spec))
        untouched = memory == int.from_bytes(b"\xcc" * memory.itemsize, "little")
        untouched[tuple(slice(spec.shape[d]) for d in spec.layout.order)] = True
        if not untouched.all():
            return "was written outside its value, where another value may be stored"
    actual = from_memory(flat, spec)
    if spec.dtype.is_float and spec.dtype.bits == 8:  # the bits of NaNs may differ
        is_equal = np.array_equal(actual.astype(np.float32), expected.astype(np.float32), equal_nan=True)
        return "" if is_equal else "differs"
    if unrounded is not None:
        half = np.abs(np.abs(unrounded - np.rint(unrounded)) - 0.5) < _NEAR_HALF
        expected = np.where(half & (np.abs(actual - unrounded) < 0.5 + _NEAR_HALF), actual, expected)
    return disagreement(actual, expected)


def _room(size: int) -> Array:
    """Return ``size`` bytes, 64-byte aligned, followed by guard bytes."""
    raw = np.full(size + _GUARD + 64, 0xCC, np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + size + _GUARD]


def _buffer(array: Array) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    room = _room(flat.size)
    room[: flat.size] = flat
    return room


def _guarded(buffer: Array, name: str) -> None:
    assert (buffer[-_GUARD:] == 0xCC).all(), f"a kernel wrote beyond {name}"
