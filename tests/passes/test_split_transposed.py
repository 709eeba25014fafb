"""split_transposed: transposed convolutions become convolutions with interleaved results that compute the same."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from support.built_graphs import graph_of

from xpuruntime import ir
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import interp
from xpuruntime.passes import PassContext, run_passes
from xpuruntime.runtime import Executor
from xpuruntime.testing.emulation.cuda_host import cuda_host

ON = PassContext(library_ops=True)
CASES: dict[str, dict[str, Any]] = {
    "stride 1": {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1)},
    "dilated": {"kernel": (3, 2), "stride": (1, 1), "dilation": (2, 3)},
    "doubling": {"kernel": (2, 2), "stride": (2, 2)},
    "overlapping": {"kernel": (4, 4), "stride": (2, 2), "padding": (1, 1)},
    "odd": {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1)},
    "uneven": {"kernel": (5, 3), "stride": (3, 2), "padding": (2, 0), "output_padding": (2, 0)},
    "both sides": {"kernel": (4, 5), "stride": (2, 3), "padding": (1, 0, 2, 1)},
    "groups": {"kernel": (4, 4), "stride": (2, 2), "padding": (1, 1), "groups": 3},
    "line": {"kernel": (4,), "stride": (2,), "padding": (1,)},
    "volume": {"kernel": (2, 3, 2), "stride": (2, 2, 1), "padding": (0, 1, 0)},
    "depthwise": {"kernel": (4, 4), "stride": (4, 4), "groups": 6, "filters": 6},
}


def graph_and_feeds(
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    output_padding: tuple[int, ...] = (),
    groups: int = 1,
    filters: int = 9,
    bias: bool = True,
    channels: int = 6,
) -> tuple[ir.Graph, dict[str, np.ndarray]]:
    rng, rank = np.random.default_rng(4), len(kernel)
    shapes = {
        "x": (2, channels, *(5, 4, 3)[:rank]),
        "w": (channels, filters // groups, *kernel),
        "b": (filters,),
    }
    feeds = {n: rng.integers(-3, 4, s).astype(np.float32) for n, s in shapes.items() if bias or n != "b"}
    how = {
        "stride": list(stride), "padding": list(padding or [0] * rank), "dilation": list(dilation or [1] * rank), "groups": groups,
        "transposed": True, "output_padding": list(output_padding),
    }  # fmt: skip
    return graph_of(lambda g, x, w, b=None: [g.convolution(x, w, b, **how)], feeds), feeds


def rewritten(graph: ir.Graph, feeds: dict[str, np.ndarray]) -> Counter[str]:
    """Run the pass, compare results, and return how often each op is in the graph."""
    after = run_passes(graph, ["split_transposed"], context=ON, check=True)
    for name, value in interp.run(graph, feeds).items():
        assert np.array_equal(value, interp.run(after, feeds)[name], equal_nan=True), name
    assert not any(n.attrs["transposed"] for n in after.nodes if n.op == "convolution")
    return Counter(n.op for n in after.nodes)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_convolutions_compute_the_same(name: str, bias: bool) -> None:
    case = CASES[name]
    ops = rewritten(*graph_and_feeds(**case, bias=bias))
    even = all(k % s == 0 for k, s in zip(case["kernel"], case["stride"], strict=True))
    assert ops["convolution"] == (1 if even else math.prod(case["stride"]))


@pytest.mark.parametrize("name", CASES)
def test_infinite_and_undefined_inputs_stay_where_they_are(name: str) -> None:
    graph, feeds = graph_and_feeds(**CASES[name])
    feeds["x"].reshape(-1)[[3, 17]] = np.inf, -np.inf
    feeds["x"].reshape(-1)[-1] = np.nan
    feeds["w"][feeds["w"] == 0] = 1  # a product of infinity and 0 is NaN in both
    rewritten(graph, feeds)


def test_what_stays() -> None:
    strided = graph_and_feeds((3, 3), (2, 2), dilation=(2, 2))[0]
    cut = graph_and_feeds((2, 2), (1, 1), padding=(2, 2))[0]  # more is cut off than the filter reaches over
    gaps = graph_and_feeds((1, 2), (2, 4), output_padding=(1, 1))[0]  # results that no tap reaches
    for graph in (strided, cut, gaps):
        assert run_passes(graph, ["split_transposed"], context=ON) == graph
    graph = graph_and_feeds((2, 2), (2, 2))[0]
    assert run_passes(graph, ["split_transposed"]) == graph


def test_a_program_for_cuda_computes_them() -> None:
    graph, feeds = graph_and_feeds((4, 4), (2, 2), padding=(1, 1), channels=8, filters=16)
    program = compile_graph(graph, target=cuda_host())
    assert {c.kernel for c in program.entries[0].plans[0].calls} & {"conv/implicit_gemm", "conv/cudnn"}
    y = Executor(program, "cpu").run_arrays([feeds[n] for n in ("x", "w", "b")])[0]
    (want,) = interp.run(graph, feeds).values()
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-4)
