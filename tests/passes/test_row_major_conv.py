"""layout: convolutions of one input channel store row-major results where nothing reads channels-last ones, and those with few filters
read row-major operands.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime import ir
from xpuruntime.passes.layout import assign_layouts
from xpuruntime.types import DType, TensorSpec


def graph_of(
    x: tuple[int, ...], w: tuple[int, ...], *, then: str = "", keep: bool = False, dtype: DType = DType.FLOAT32,
    known: bool = True, **attrs: Any,
) -> ir.Graph:  # fmt: skip
    """A convolution, and an op on its result: ``cumsum`` reads row-major, ``max_pool`` channels-last. known: whether its filters are constant."""
    b = ir.GraphBuilder("one")
    rank = len(w) - 2
    attrs = {"stride": [1] * rank, "padding": [0] * rank, "dilation": [1] * rank, "groups": 1} | attrs
    filters = (b.weight if known else b.input)("w", TensorSpec(w, dtype))
    y = b.call("convolution", b.input("x", TensorSpec(x, dtype)), filters, None, **attrs)
    if then == "cumsum":
        b.output("z", b.call("cumsum", y, dim=-1))
    elif then == "max_pool":
        pool = {
            "kernel_size": [2] * rank,
            "stride": [2] * rank,
            "padding": [0] * rank,
            "dilation": [1] * rank,
        }
        b.output("z", b.call("max_pool", y, **pool))
    if not then or keep:
        b.output("y", y)
    return b.build()


def conversions(graph: ir.Graph, row_major_taps: int = 128, row_major_filters: int = 0) -> list[str]:
    """The values that conversions read."""
    laid, layouts = assign_layouts(graph, row_major_taps=row_major_taps, row_major_filters=row_major_filters)
    laid.check()
    assert {o.name for o in laid.outputs} == {o.name for o in graph.outputs}
    assert layouts.keys() <= laid.values.keys()
    return [str(n.inputs[0]) for n in laid.nodes if n.op == "clone"]


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((2, 1, 90, 9), (8, 1, 64, 1), {}),
        ((2, 1, 300), (8, 1, 251), {}),
        ((2, 1, 300), (8, 1, 10), {"stride": [5]}),
        ((1, 1, 9, 4, 5), (8, 1, 1, 3, 1), {}),
    ],
)
def test_results_of_one_channel_are_row_major(x, w, attrs):
    for options in ({}, {"then": "cumsum"}, {"then": "cumsum", "keep": True}):
        graph = graph_of(x, w, **attrs, **options)
        assert not conversions(graph)
        assert len(conversions(graph, row_major_taps=0)) == 1


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((2, 2, 300), (8, 2, 10), {}),
        ((2, 1, 900), (8, 1, 400), {"stride": [160]}),
        ((2, 1, 9, 9), (8, 1, 3, 3), {}),
        ((2, 4, 300), (8, 1, 10), {"groups": 4}),
        ((2, 1, 30), (1, 8, 10), {"transposed": True}),
    ],
)
def test_other_results_are_converted(x, w, attrs):
    graph = graph_of(x, w, **attrs)
    assert conversions(graph) == conversions(graph, row_major_taps=0) != []


def test_results_that_are_read_channels_last_stay_so():
    graph = graph_of((2, 1, 90, 9), (8, 1, 64, 1), then="max_pool", keep=True)
    assert conversions(graph) == conversions(graph, row_major_taps=0)
    assert len(conversions(graph)) == 2


FEW = [
    ((1, 32, 90), (1, 32, 7), {"padding": [3]}),
    ((2, 6, 9, 40), (8, 6, 3, 3), {"stride": [2, 1], "dilation": [1, 2]}),
    ((1, 3, 4, 5, 35), (2, 3, 1, 3, 3), {"dtype": DType.FLOAT64}),
    ((1, 32, 90), (1, 32, 7), {"known": False}),
    ((1, 32, 90), (4, 32, 7), {"dtype": DType.BFLOAT16}),
    ((1, 40, 90), (40, 1, 16), {"transposed": True, "stride": [8]}),
    ((1, 40, 6, 39), (40, 2, 2, 4), {"transposed": True, "stride": [2, 4]}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), FEW)
def test_few_filters_read_row_major_operands(x, w, attrs):
    graph = graph_of(x, w, **attrs)
    assert conversions(graph)[0] == "x"
    assert "x" not in conversions(graph, row_major_filters=8)
    assert conversions(graph, row_major_filters=0) == conversions(graph)
    if not attrs.get("transposed"):
        assert conversions(graph, row_major_filters=8) == []
        assert conversions(graph_of(x, w, then="cumsum", **attrs), row_major_filters=8) == []


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((1, 32, 90), (9, 32, 7), {}),
        ((1, 32, 90), (1, 32, 7), {"stride": [2]}),
        ((1, 32, 90), (5, 32, 7), {"dtype": DType.BFLOAT16}),
        ((1, 32, 90), (1, 32, 7), {"dtype": DType.INT32}),
        ((1, 32, 37), (1, 32, 7), {}),
        ((1, 32, 90), (2, 16, 7), {"groups": 2}),
        ((1, 40, 90), (40, 1, 32), {"transposed": True, "stride": [16]}),
        ((1, 40, 90), (40, 1, 16), {"transposed": True, "stride": [8], "known": False}),
        ((1, 40, 90), (40, 1, 16), {"transposed": True, "stride": [8], "dilation": [2]}),
        ((2, 1, 9, 9), (8, 1, 3, 3), {}),
    ],
)
def test_other_operands_are_converted(x, w, attrs):
    graph = graph_of(x, w, **attrs)
    assert conversions(graph, row_major_filters=8) == conversions(graph) != []


def test_operands_that_others_read_channels_last_are_converted_once():
    b = ir.GraphBuilder("two")
    x = b.input("x", TensorSpec((1, 32, 90), DType.FLOAT32))
    for i, filters in enumerate((1, 64)):
        w = b.weight(f"w{i}", TensorSpec((filters, 32, 7), DType.FLOAT32))
        b.output(f"y{i}", b.call("convolution", x, w, None, stride=[1], padding=[3], dilation=[1], groups=1))
    graph = b.build()
    assert conversions(graph, row_major_filters=8) == conversions(graph)
    assert conversions(graph).count("x") == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_sessions_compute_what_pytorch_does(precision):
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    for conv, size in (
        (torch.nn.Conv2d(1, 12, (65, 1)), (2, 1, 97, 13)),
        (torch.nn.Conv2d(1, 12, (9, 1), stride=(2, 1), padding=(4, 0), dilation=(3, 1)), (1, 1, 40, 11)),
        (torch.nn.Conv1d(1, 40, 400, stride=160), (2, 1, 2100)),
        (torch.nn.Conv1d(1, 40, 10, stride=5), (3, 1, 211)),
        (torch.nn.ConvTranspose1d(34, 1, 32, stride=8), (1, 34, 9)),
        (torch.nn.ConvTranspose1d(34, 1, 16, stride=8), (1, 34, 90)),
        (torch.nn.Conv1d(32, 1, 7, padding=3), (2, 32, 301)),
        (torch.nn.Conv2d(7, 3, 3, padding=1, stride=(2, 1)), (2, 7, 9, 50)),
    ):
        for module in (conv, torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.Flatten(2))):
            x = torch.randn(size)
            with torch.no_grad():
                want = copy.deepcopy(module).double()(x.double()).numpy()
            policy = xrt.ExecutionPolicy(precision=precision)
            session = xrt.InferenceSession(
                module.eval(), engine="native", device="cpu", exec_policy=policy, example_inputs=(x,)
            )
            feeds = {session.get_inputs()[0].name: x.numpy()}
            output = np.asarray(next(iter(session.run(feeds).values())), np.float64)
            limit = 1e-5 if precision == "float32" else 2e-2
            assert output.shape == want.shape
            assert np.abs(output - want).max() <= limit * np.abs(want).max()
