"""Gradients of layer norms on the emulator: one pass over the rows and one sum, right beside the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.native import check, compile_native

from xpuruntime import ir
from xpuruntime.codegen.cuda.nvrtc import nvrtc_toolchain
from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import BuildError
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.cuda_host import cuda_host
from xpuruntime.types import DType

TARGET = cuda_host()
Array = np.ndarray[Any, Any]


def case(
    shape: tuple[int, ...], dims: int, dtype: str, *, weight: str = "", bias: bool = True, outputs: int = 3
) -> tuple[ir.Graph, dict[str, Array]]:
    """Return a graph of one op, and random operands with the statistics of x."""
    rng = np.random.default_rng(sum(shape))
    last = tuple(range(len(shape) - dims, len(shape)))
    x = rng.standard_normal(shape) * 3 + 1
    mean = x.mean(last, keepdims=True)
    rstd = 1 / np.sqrt(x.var(last, keepdims=True) + 1e-5)
    low, statistics = DType(dtype), DType("float64" if dtype == "float64" else "float32")
    feeds = {
        "grad": rng.standard_normal(shape).astype(low.numpy),
        "x": x.astype(low.numpy),
        "mean": mean.astype(statistics.numpy),
        "rstd": rstd.astype(statistics.numpy),
    }
    for name in ["weight"] * bool(weight) + ["bias"] * (bool(weight) and bias):
        feeds[name] = rng.standard_normal(shape[len(shape) - dims :]).astype(DType(weight).numpy)
    b = ir.GraphBuilder("g")
    values = {n: b.input(n, f"{DType.of(a.dtype).value}{list(a.shape)}") for n, a in feeds.items()}
    results = b.layer_norm_backward(
        *(values[n] for n in ("grad", "x", "mean", "rstd")),
        values.get("weight"),
        values.get("bias"),
        normalized_shape=list(shape[len(shape) - dims :]),
        outputs=outputs,
    )
    for i, value in enumerate([results] if isinstance(results, str) else results):
        b.output(f"y{i}", value)
    return b.build(), feeds


def kernels_of(graph: ir.Graph, feeds: dict[str, Array]) -> list[str]:
    return [c.symbol for c in compile_native(graph, feeds, target=TARGET).entries[0].plans[0].calls]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("shape", "dims", "dtype", "weight"),
    [
        ((5, 7, 64), 1, "float32", "float32"),
        ((37, 768), 1, "bfloat16", "bfloat16"),
        ((9, 768), 1, "bfloat16", "float32"),
        ((3, 33), 1, "float32", "float32"),
        ((130, 5, 6), 2, "float16", "float16"),
        ((6, 1100), 1, "float32", "float32"),
        ((3, 2050), 1, "bfloat16", "bfloat16"),
        ((11, 70), 1, "float64", "float64"),
        ((4, 9, 24), 1, "float32", ""),
        ((1, 8), 1, "float32", "float32"),
        ((17,), 1, "float32", "float32"),
    ],
)
def test_gradients_of_a_layer_norm(shape: tuple[int, ...], dims: int, dtype: str, weight: str) -> None:
    """Rows of a warp and of a block, odd sizes, operands of two types."""
    graph, feeds = case(shape, dims, dtype, weight=weight)
    check(graph, feeds, target=TARGET)
    symbols = kernels_of(graph, feeds)
    assert len(symbols) == 2
    assert "sums" in symbols[1]
    again = compile_native(graph, feeds, target=TARGET)
    with Executor(again) as executor:
        first, second = (executor.run_arrays(list(feeds.values())) for _ in range(2))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("shape", "dtype", "narrow"),
    [((9, 768), "bfloat16", "bfloat16"), ((5, 33), "float16", "bfloat16"), ((3, 1100), "float32", "float16")],
)
def test_a_residual_is_added_and_the_sum_is_converted(
    shape: tuple[int, ...], dtype: str, narrow: str
) -> None:
    """Gradients of 16 bits beside an operand of float32, as in a step under autocast."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(np.float32)
    feeds = {
        "grad": rng.standard_normal(shape).astype(DType(dtype).numpy),
        "x": x,
        "mean": x.mean(-1, keepdims=True),
        "rstd": 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
        "weight": rng.standard_normal(shape[1:]).astype(np.float32),
        "residual": rng.standard_normal(shape).astype(np.float32),
    }
    b = ir.GraphBuilder("g")
    values = [b.input(n, f"{DType.of(a.dtype).value}{list(a.shape)}") for n, a in feeds.items()]
    results = b.layer_norm_backward_add(*values, normalized_shape=[shape[1]], narrow=narrow)
    for i, value in enumerate(results):
        b.output(f"y{i}", value)
    graph = b.build()
    check(graph, feeds, target=TARGET)
    assert len(kernels_of(graph, feeds)) == 2
    check(graph, feeds)  # the host expands it


def test_gradients_that_nothing_reads_are_not_computed() -> None:
    graph, feeds = case((5, 40), 1, "float32", weight="float32", outputs=1)
    check(graph, feeds, target=TARGET)
    assert len(kernels_of(graph, feeds)) == 1
    graph, feeds = case((5, 40), 1, "float32", weight="float32", bias=False, outputs=2)
    check(graph, feeds, target=TARGET)
    assert len(kernels_of(graph, feeds)) == 2


def test_without_rows_sums_are_zero() -> None:
    graph, feeds = case((0, 40), 1, "float32", weight="float32")
    outputs = check(graph, feeds, target=TARGET)
    assert not outputs["y1"].any()


def test_no_number_spreads_within_its_row_only() -> None:
    graph, feeds = case((9, 64), 1, "float32", weight="float32")
    feeds["x"][4, 3] = np.nan
    feeds["grad"][7, 5] = np.inf
    outputs = check(graph, feeds, target=TARGET)
    assert np.isfinite(np.delete(outputs["y0"], (4, 7), 0)).all()
    assert np.isnan(outputs["y0"][4]).all()
    assert np.isfinite(np.delete(outputs["y2"], 5)).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("level", ["sm_80", "sm_90", "sm_100"])
def test_the_kernels_compile(level: str) -> None:
    """GPT-2's sizes, rows of a block, and 64 bits, by NVIDIA's compiler."""
    try:
        nvrtc_toolchain()
    except BuildError as error:
        pytest.skip(str(error))
    for shape, dtype, weight in (
        ((64, 768), "bfloat16", "float32"),
        ((3, 4096), "float16", "float16"),
        ((3, 33), "float64", "float64"),
        ((0, 40), "float32", "float32"),
    ):
        graph, _ = case(shape, 1, dtype, weight=weight)
        program = compile_graph(graph, target=cuda_target(f"cuda:{level}"))
        assert len(program.entries[0].plans[0].calls) == (2 if shape[0] else 1)
        assert program.binaries[0].data


@pytest.mark.parametrize(("dtype", "weight"), [("float32", "float32"), ("bfloat16", "float32")])
def test_the_host_expands_it(dtype: str, weight: str) -> None:
    graph, feeds = case((5, 7, 24), 1, dtype, weight=weight)
    check(graph, feeds)
