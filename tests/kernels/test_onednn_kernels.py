"""oneDNN's kernels against the interpreter, chosen by policy; and what is said where they cannot be had."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.native import check

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.decisions import Reason
from xpuruntime.errors import BuildError, KernelUnavailable
from xpuruntime.ir import GraphBuilder
from xpuruntime.ir.ops.matmul import ACTIVATIONS
from xpuruntime.kernels.cpu import onednn
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor

rng = np.random.default_rng(2)
needs_library = pytest.mark.skipif(not onednn.installed(), reason="needs xpuruntime[onednn]")
ONEDNN = {"matmul": "onednn", "conv": "onednn"}


def array(shape: tuple[int, ...], dtype: str) -> Any:
    return rng.standard_normal(shape).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))


def graph(
    op: str, shapes: list[Any], dtype: str, weights: str, **attrs: Any
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    b = GraphBuilder("library")
    feeds: dict[str, Any] = {}
    known: dict[str, Any] = {}
    names: list[Any] = []
    for i, shape in enumerate(shapes):
        if shape is None:
            names.append(None)
            continue
        declare, held = (b.weight, known) if str(i) in weights else (b.input, feeds)
        names.append(declare(f"x{i}", f"{dtype}{list(shape)}"))
        held[f"x{i}"] = array(shape, dtype)
    b.output("y", b.call(op, *names, **attrs))
    return b.build(), feeds, known


def judge(
    op: str, shapes: list[Any], dtype: str = "float32", weights: str = "12", threads: int = 1, **attrs: Any
) -> None:
    made, feeds, known = graph(op, shapes, dtype, weights, **attrs)
    (call,) = compile_graph(made, policy=KernelPolicy(**ONEDNN), passes=0).entries[0].plans[0].calls
    assert (call.library, call.kernel.partition("/")[2]) == ("onednn", "onednn")
    check(made, feeds, weights=known, passes="none", kernels=ONEDNN, threads=threads)


@needs_library
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["12", ""])
def test_linear(dtype: str, weights: str) -> None:
    judge("linear", [(2, 9, 37), (70, 37), (70,)], dtype, weights)
    judge("linear", [(37,), (70, 37), None], dtype, weights)


@needs_library
@pytest.mark.parametrize("act", ACTIVATIONS.split("|"))
def test_what_is_fused(act: str) -> None:
    judge("fused_linear", [(2, 9, 37), (70, 37), (70,), (2, 9, 70)], act=act, threads=2)
    made, feeds, known = graph("fused_convolution", [(1, 16, 9, 9), (32, 16, 3, 3), (32,), (1, 32, 9, 9)], "float32", "12",
                               act=act, stride=[1, 1], padding=[1, 1], dilation=[1, 1])  # fmt: skip
    program = compile_graph(made, policy=KernelPolicy(**ONEDNN))
    assert "conv/onednn" in [c.kernel for c in program.entries[0].plans[0].calls]
    check(made, feeds, weights=known, kernels=ONEDNN, threads=2)


@needs_library
def test_a_reference_implementation_is_refused_by_name() -> None:
    """A residual over channels first: on AVX-512 machines the library has only reference code for it. Elsewhere it must be right."""
    made, feeds, known = graph("fused_convolution", [(1, 16, 9, 9), (32, 16, 3, 3), None, (1, 32, 9, 9)], "float32", "1",
                               stride=[1, 1], padding=[1, 1], dilation=[1, 1])  # fmt: skip
    said = ""
    try:
        check(made, feeds, weights=known, passes="none", kernels=ONEDNN)
    except BuildError as error:
        said = str(error)
    assert not said or "reference implementation (ref" in said
    assert not said or "Choose another kernel by policy" in said


@needs_library
def test_batches() -> None:
    judge("matmul", [(2, 3, 5, 7), (2, 3, 7, 4)], weights="")
    judge("matmul", [(2, 1, 5, 7), (1, 3, 7, 4)], weights="1")
    judge("bmm", [(3, 5, 7), (3, 7, 4)], weights="")
    judge("mm", [(5, 7), (7, 4)], weights="1")


@needs_library
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_convolutions(dtype: str) -> None:
    plain: dict[str, Any] = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1]}
    judge("convolution", [(2, 16, 9, 8), (32, 16, 1, 1), (32,)], dtype, **plain)
    judge(
        "convolution",
        [(1, 3, 17, 17), (16, 3, 7, 7), None],
        dtype,
        **plain | {"stride": [2, 2], "padding": [3, 3, 2, 3]},
    )
    judge(
        "convolution",
        [(1, 16, 9, 9), (16, 1, 3, 3), None],
        dtype,
        **plain | {"groups": 16, "dilation": [2, 2]},
    )
    judge("convolution", [(1, 16, 9, 9), (8, 4, 3, 3), None], dtype, **plain | {"groups": 4})
    judge("convolution", [(1, 8, 20), (4, 8, 3), None], dtype, stride=[2], padding=[1], dilation=[1])


@needs_library
def test_a_net_keeps_its_layout_and_its_results() -> None:
    """Channels last from end to end: the library reads and writes what the layout pass chose."""
    b = GraphBuilder("net")
    x = b.input("x", "float32[1, 3, 16, 16]")
    window: dict[str, Any] = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
    h = b.relu(b.convolution(x, b.weight("w0", "float32[32, 3, 3, 3]"), None, **window))
    b.output("y", b.relu(b.add(b.convolution(h, b.weight("w1", "float32[32, 32, 3, 3]"), None, **window), h)))
    known = {"w0": array((32, 3, 3, 3), "float32"), "w1": array((32, 32, 3, 3), "float32")}
    check(b.build(), {"x": array((1, 3, 16, 16), "float32")}, weights=known, kernels=ONEDNN, threads=2)


@needs_library
def test_one_program_in_several_threads_at_once() -> None:
    made, feeds, known = graph("linear", [(64, 128), (96, 128), (96,)], "float32", "12")
    program = compile_graph(made, policy=KernelPolicy(**ONEDNN), passes=0)
    executor = Executor(program, threads=1, contexts=3)
    executor.bind(known)
    inputs = [feeds["x0"] * i for i in range(1, 25)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda x: executor.run_arrays([x])[0], inputs))
    for x, y in zip(inputs, results, strict=True):
        np.testing.assert_allclose(y, x @ known["x1"].T + known["x2"], rtol=1e-3, atol=1e-3)


def test_without_the_library_the_reason_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "installed", lambda: False)
    made, _, _ = graph("mm", [(5, 7), (7, 4)], "float32", "1")
    with pytest.raises(KernelUnavailable) as caught:
        compile_graph(
            made, policy={"version": 1, "kernel": {"rules": [{"use": "onednn", "op": "matmul"}]}}, passes=0
        )
    assert "pip install 'xpuruntime[onednn]'" in str(caught.value) + str(caught.value.decision)


def test_other_types_are_refused() -> None:
    made, _, _ = graph("mm", [(5, 7), (7, 4)], "float64", "1")
    program = compile_graph(made, policy=KernelPolicy(**ONEDNN), passes=0)
    (decision,) = [d for d in program.decisions if d.question == "kernel matmul"]
    refused = next(c for c in decision.rejected if c.name.endswith("onednn"))
    assert refused.code is Reason.DTYPE_UNSUPPORTED
    assert "float64" in refused.reason
