"""Judging one CUDA kernel by itself: one node, its generated text on the emulator (``xpuruntime.testing.emulation``), and the interpreter.

    judge(Generated(), "mm", x, w)          lower the node, run its stages block by block, compare with the interpreter

Whether the few instructions that the emulator replaces mean what it takes them to mean is shown on a GPU, by benchmarks/cuda/heavy_kernels.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xpuruntime.codegen.cuda.target import CudaTarget, cuda_target
from xpuruntime.ir import Graph, GraphBuilder, interp
from xpuruntime.kernels.kernel import Kernel, NodeCall, Operand
from xpuruntime.numerics import compare, tolerance_for
from xpuruntime.passes.layout import channels_last
from xpuruntime.testing.emulation.launches import emulate
from xpuruntime.types import DType, TensorSpec

__all__ = ["call_of", "judge", "one_node"]

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


def judge(
    kernel: Kernel, op: str, *operands: Any, weights: str = "", target: str | CudaTarget = "cuda:sm_90", shift: int = 0, tolerance: float | None = None,
    innermost: bool = False, **attrs: Any,
) -> Any:  # fmt: skip
    """The kernel's result, after comparing it with the interpreter's; raises AssertionError."""
    graph, feeds, known = one_node(op, operands, weights, **attrs)
    call, to = call_of(graph, known, innermost), cuda_target(target) if isinstance(target, str) else target
    said = kernel.supports(call, to)
    assert said, said.reason
    (got,) = emulate(kernel.lower(call, to), call, to, feeds | known, shift)
    want = interp.run(graph, feeds, weights=known)["y"]
    dtype = DType.of(want.dtype)
    limit = _LIMITS.get(dtype, tolerance_for(dtype)) if tolerance is None else tolerance
    verdict = compare("y", got, want, limit)
    assert verdict.ok, f"{verdict.reason} (max|d|/max|ref| {verdict.max_rel:.3g}, limit {limit:.3g})\n{graph}"
    return got
