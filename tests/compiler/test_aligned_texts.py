"""A function has code for unaligned memory only where it may get such memory: from the caller, or inside a larger value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.codegen.cuda.sm import LEVELS
from xpuruntime.codegen.cuda.target import CudaTarget
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.compiler.emit import _aligned
from xpuruntime.ir import interp
from xpuruntime.program.program import Binary, BufferAllocation, BufferKind, KernelCall
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType, TensorSpec

RNG = np.random.default_rng(0)
TEST = "% 16 == 0)"


class _Texts(CudaTarget):
    """A target that keeps the text of each function and compiles nothing."""

    def __init__(self) -> None:
        super().__init__(LEVELS["sm_90"])
        self.texts: dict[str, str] = {}

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        self.texts |= functions
        return Binary(self.name, "cubin", (self.name,), tuple(functions), b"no compiler", "")


def _layers(dtype: str = "float32") -> ir.Graph:
    b = ir.GraphBuilder("layers")
    x = b.input("x", f"{dtype}[48, 64]")
    for i in range(4):
        w = b.constant(RNG.standard_normal((64, 64), dtype=np.float32).astype(dtype), name=f"w{i}")
        x = b.relu(b.matmul(x, w))
    b.output("y", x)
    return b.build()


def _products(graph: ir.Graph) -> list[tuple[set[BufferKind], str]]:
    """Return the kinds of the buffers of each product, and its text."""
    target = _Texts()
    (plan,) = compile_graph(graph, target=target).entries[0].plans
    kinds = {b.name: b.kind for b in plan.buffers}
    calls: list[KernelCall] = [c for c in plan.calls if c.kernel.startswith("matmul")]
    return [({kinds[n] for n in (*c.inputs, *c.outputs)}, target.texts[c.symbol]) for c in calls]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_only_products_of_the_caller_s_memory_test_addresses(dtype: str) -> None:
    first, *between, last = _products(_layers(dtype))
    assert BufferKind.INPUT in first[0]
    assert TEST in first[1]
    assert BufferKind.OUTPUT in last[0]
    assert (TEST in last[1]) is (dtype == "float16")  # FMA kernels store results one by one
    for kinds, text in between:
        assert kinds == {BufferKind.SCRATCH, BufferKind.WEIGHT}
        assert TEST not in text


def test_a_value_inside_a_larger_one_is_aligned_by_its_place() -> None:
    spec = TensorSpec((64,), DType.FLOAT32)

    def buffer(name: str, kind: BufferKind, root: str, offset: int) -> BufferAllocation:
        return BufferAllocation(name, kind, spec, 256, root, offset, 0, 1)

    found = _aligned(
        [
            buffer("own", BufferKind.SCRATCH, "own", 512),
            buffer("part", BufferKind.SCRATCH, "own", 528),
            buffer("odd", BufferKind.SCRATCH, "own", 520),
            buffer("state", BufferKind.STATE, "state", 0),
            buffer("weight", BufferKind.WEIGHT, "weight", 0),
            buffer("x", BufferKind.INPUT, "x", 0),
            buffer("view of x", BufferKind.INPUT, "x", 0),
            buffer("y", BufferKind.OUTPUT, "y", 0),
            buffer("part of y", BufferKind.OUTPUT, "y", 16),
        ]
    )
    assert found == {"own", "part", "state", "weight"}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_arrays_at_any_address_give_the_same(dtype: str) -> None:
    graph = _layers(dtype)

    def array() -> Any:
        return np.empty(48 * 64 + 1, dtype)[1:].reshape(48, 64)

    x, y = array(), array()
    x[...] = RNG.standard_normal((48, 64))
    with Executor(compile_graph(graph, target=cuda_host())) as executor:
        (aligned,) = executor.run_arrays([x.copy()])
        executor.run_arrays([x], [y])
    np.testing.assert_array_equal(aligned, y)
    want = interp.run(graph, {"x": x})["y"]
    bound = 1e-5 if dtype == "float32" else 1e-2
    assert abs(y.astype(np.float64) - want).max() / abs(want.astype(np.float64)).max() <= bound
