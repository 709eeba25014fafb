"""Weights whose elements travel in the graph: text, JSON, interpreter, files; and data that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import xpuruntime as xrt
from xpuruntime.errors import FormatError, IrError
from xpuruntime.frontends.torch import save_ir
from xpuruntime.ir import Graph, GraphBuilder, Weight, interp, open_weights, parse, verify
from xpuruntime.types import DType, TensorSpec

W = np.array([1.5, -2.0, 3.0, 0.25], np.float32)


def graph(data: str) -> Graph:
    b = GraphBuilder("held")
    x, w = b.input("x", "float32[4]"), b.weight("w", "float32[4]", data=data)
    b.output("y", b.mul(x, w))
    return b.build()


@pytest.mark.parametrize(
    "array",
    [
        W,
        np.array([True, False, True]),
        np.arange(6, dtype=np.int64).reshape(2, 3).T,
        W.astype(ml_dtypes.bfloat16),
        np.array([1, -8, 7], ml_dtypes.int4),
        np.float64(2.5).reshape(()),
    ],
    ids=lambda a: str(a.dtype),
)
def test_data_round_trips(array: np.ndarray[Any, Any]) -> None:
    b = GraphBuilder("held")
    b.weight("w", TensorSpec(array.shape, DType.of(array.dtype)), data=Weight.encoded(array))
    b.output("y", "w")
    made = b.build()
    verify(made)
    for again in (made, parse(str(made)), Graph.from_json(made.to_json())):
        assert again == made
        np.testing.assert_array_equal(again.weights[0].array(), array)


def test_every_reader_takes_the_data(tmp_path: Path) -> None:
    made, feeds = graph(Weight.encoded(W)), {"x": np.full(4, 2, np.float32)}
    np.testing.assert_array_equal(interp.run(made, feeds)["y"], 2 * W)
    np.testing.assert_array_equal(interp.run(made, feeds, weights={"w": 3 * W})["y"], 6 * W)
    np.testing.assert_array_equal(open_weights(made)["w"], W)
    program = xrt.compile(made)
    np.testing.assert_array_equal(xrt.Executor(program).run(feeds)["y"].to_numpy(), 2 * W)
    dag = xrt.DAGExecutor(xrt.partition(made, xrt.is_op_supported), xrt.CpuBackend())
    dag.load_weights({})
    np.testing.assert_array_equal(dag.execute(feeds)["y"], 2 * W)
    dag.close()
    saved = save_ir(made, {}, tmp_path / "m.json")
    assert not saved.weights[0].data
    np.testing.assert_array_equal(open_weights(saved, tmp_path)["w"], W)


@pytest.mark.parametrize("data", ["AAAA", "no base64!", Weight.encoded(np.zeros(5, np.float32))])
def test_data_that_does_not_fit_is_refused(data: str) -> None:
    with pytest.raises(IrError, match=r"weight %w.*has data"):
        graph(data)
    lie = graph(Weight.encoded(W)).to_json()
    lie["weights"][0]["data"] = data
    with pytest.raises(IrError, match=r"weight %w.*has data"):
        Graph.from_json(lie)
    lie["weights"][0]["data"] = 3
    with pytest.raises(FormatError, match="a weight's data must be a str"):
        Graph.from_json(lie)
