"""align_products: padded products compute the same, share padded operands, and exist only where they pay off."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.built_graphs import Feeds, graph_of

from xpuruntime import ir
from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.compiler.demands import Demands
from xpuruntime.compiler.resolve import resolve_target
from xpuruntime.ir import interp
from xpuruntime.passes import PassContext, align_products, run_passes
from xpuruntime.policies import Policy
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType

CUDA = PassContext(product_multiple=8)


def operands(dtype: str = "bfloat16", **shapes: tuple[int, ...]) -> Feeds:
    """Return small whole numbers, whose products and sums are exact in every type."""
    rng = np.random.default_rng(5)
    return {n: rng.integers(-2, 3, s).astype(DType(dtype).numpy) for n, s in shapes.items()}


def counted(graph: ir.Graph, feeds: Feeds, context: PassContext = CUDA) -> Counter[str]:
    """Run the pass, compare results, and return how often each op is in the graph."""
    after = run_passes(graph, ["align_products", "clean_up"], context=context, check=True)
    expected, results = interp.run(graph, feeds), interp.run(after, feeds)
    for name, value in expected.items():
        assert value.dtype == results[name].dtype
        assert np.array_equal(value.astype(np.float64), results[name].astype(np.float64)), name
    return Counter(n.op for n in after.nodes)


def test_a_head_of_an_odd_number_of_words() -> None:
    feeds = operands(x=(2, 150, 264), w=(301, 264))
    ops = counted(graph_of(lambda b, x, w: [b.linear(x, w)], feeds), feeds)
    assert ops == {"pad": 1, "linear": 1, "slice": 1}
    feeds = operands(x=(260, 257), w=(301, 257), c=(301,))
    ops = counted(graph_of(lambda b, x, w, c: [b.linear(x, w, c)], feeds), feeds)
    assert ops == {"pad": 3, "linear": 1, "slice": 1}
    feeds = operands("float16", x=(260, 257), w=(304, 257))
    ops = counted(graph_of(lambda b, x, w: [b.linear(x, w)], feeds), feeds)
    assert ops == {"pad": 2, "linear": 1}


def test_gradients_share_a_padded_operand() -> None:
    feeds = operands(d=(264, 301), w=(301, 264), x=(264, 264))

    def build(b: Any, d: str, w: str, x: str) -> list[str]:
        return [b.matmul(d, w), b.matmul(b.permute(d, dims=[1, 0]), x)]

    ops = counted(graph_of(build, feeds), feeds)
    assert ops == {"pad": 2, "matmul": 2, "permute": 1, "slice": 1}  # d once, and w


@pytest.mark.parametrize(
    ("dtype", "x", "w", "context"),
    [
        ("float32", (260, 257), (301, 257), CUDA),
        ("bfloat16", (255, 257), (301, 257), CUDA),
        ("bfloat16", (260, 257), (33, 257), CUDA),
        ("bfloat16", (260, 264), (304, 264), CUDA),
        ("bfloat16", (260, 257), (301, 257), PassContext()),
    ],
)
def test_products_that_are_not_padded(
    dtype: str, x: tuple[int, ...], w: tuple[int, ...], context: PassContext
) -> None:
    feeds = operands(dtype, x=x, w=w)
    graph = graph_of(lambda b, x, w: [b.linear(x, w)], feeds)
    assert counted(graph, feeds, context) == {"linear": 1}


def test_only_training_on_cuda_pads() -> None:
    def multiple(*targets: CodegenTarget, phase: str = "train_backward") -> int:
        return Demands(Policy(), list(targets), phase).context().product_multiple

    cuda, cpu = cuda_host(), resolve_target("cpu")
    assert multiple(cuda) == multiple(cuda, phase="train_forward") == 8
    assert multiple(cuda, phase="inference") == multiple(cpu) == multiple(cuda, cpu) == 1


def test_a_padded_product_runs_on_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(align_products, "_LEAST", 16)
    feeds = operands(d=(24, 33), w=(33, 40), x=(24, 40))

    def build(b: Any, d: str, w: str, x: str) -> list[str]:
        return [b.matmul(d, w), b.matmul(b.permute(d, dims=[1, 0]), x), b.linear(x, w)]

    graph, expected, vectorized = graph_of(build, feeds), interp.run(graph_of(build, feeds), feeds), []
    for phase in ("train_backward", "inference"):
        program = compile_graph(graph, target=cuda_host(), phase=phase)
        with Executor(program) as executor:
            results = executor.run_arrays([feeds[s.name] for s in program.input_specs])
        for value, true in zip(results, expected.values(), strict=True):
            assert np.array_equal(value.astype(np.float64), true.astype(np.float64))
        # A kernel with vector loads also has the loop for operands at odd addresses.
        vectorized.append(str(program.binaries[0].source).count("_unaligned : "))
    # The product of d^T is a library's, where there is one: our kernel has no vector loads for a transposed left side.
    assert vectorized == [2, 1]
