"""Ops that read and write at places, written as ONNX: what runs on ONNX Runtime says what the interpreter says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")

from xpuruntime import ir  # noqa: E402
from xpuruntime.errors import IrError  # noqa: E402
from xpuruntime.frontends.onnx_writer import to_onnx  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402
from xpuruntime.types import dim  # noqa: E402

R = np.random.default_rng(3)
X = R.standard_normal((4, 5, 6)).astype(np.float32)
ROWS, COLUMNS = np.array([[1, -1], [0, 2]]), np.array([3, -5])


def values(*shape: int) -> Any:
    return R.standard_normal(shape).astype(np.float32)


CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("index", (X, ROWS), {}),
    ("index", (X, ROWS, COLUMNS), {}),
    ("index", (X, None, ROWS, COLUMNS), {}),
    ("index", (X, None, ROWS), {}),
    ("index", (X, None, None, COLUMNS.astype(np.int32)), {}),
    ("index", (X, ROWS, None, COLUMNS), {}),
    ("index", (X, ROWS, COLUMNS, np.array(2)), {}),
    ("index", (X, np.array(-1)), {}),
    ("index", (X, np.zeros((0, 2), np.int64)), {}),
    ("index_put", (X, values(2, 2, 5, 6), ROWS), {}),
    ("index_put", (X, values(5, 1), np.array([3, 1])), {}),
    ("index_put", (X, values(4, 2, 2), None, ROWS, COLUMNS), {}),
    ("index_put", (X, values(1), None, np.array([1, 1, 4])), {"accumulate": True}),
    ("index_put", (X, values(3, 5), np.array([0, 1, 2]), None, np.array([-1, 0, 2])), {}),
    ("index_put", (X, values(2, 2, 5), ROWS, None, COLUMNS), {"accumulate": True}),
    ("index_copy", (X, np.array([2, 0]), values(4, 2, 6)), {"dim": 1}),
    ("scatter", (X, R.integers(0, 5, (2, 3, 4)), values(3, 3, 6)), {"dim": 1}),
    ("scatter", (X, R.integers(0, 4, (3, 5, 1)), X), {"dim": 0, "reduce": "add"}),
    ("slice_scatter", (X, values(4, 2, 6)), {"dim": 1, "start": 2, "end": 4}),
    ("slice_scatter", (X, values(4, 5, 2)), {"dim": 2, "start": 1, "end": 5, "step": 3}),
    ("slice_scatter", (X, values(2, 5, 6)), {"dim": 0, "start": -2}),
    ("slice_scatter", (X, X * 2), {"dim": 0}),
    ("slice_scatter", (X, values(0, 5, 6)), {"dim": 0, "start": 2, "end": 2}),
    ("select_scatter", (X, values(4, 6)), {"dim": 1, "index": -2}),
    ("select_scatter", (X, values(5, 6)), {"dim": 0, "index": 0}),
    ("masked_scatter", (X, X > 0.3, values(200)), {}),
    ("masked_scatter", (X, X[0] > 0.3, values(10, 12)), {}),
    ("masked_scatter", (X, X > 99, values(0)), {}),
    ("diagonal", (X,), {"offset": 1, "dim1": 0, "dim2": 2}),
    ("diagonal", (X,), {"offset": -2, "dim1": 2, "dim2": 1}),
    (
        "im2col",
        (values(2, 3, 6, 7),),
        {"kernel_size": [2, 3], "stride": [2, 1], "padding": [0, 0], "dilation": [1, 2]},
    ),
    (
        "im2col",
        (values(2, 3, 6, 7),),
        {"kernel_size": [3, 3], "stride": [1, 2], "padding": [1, 2], "dilation": [1, 1]},
    ),
    ("as_strided", (X,), {"size": [4, 5, 3, 2], "stride": [30, 6, 2, 1]}),
    ("as_strided", (X,), {"size": [7, 3], "stride": [3, 40], "offset": 5}),
    ("as_strided", (X,), {"size": [], "stride": [], "offset": 7}),
    ("as_strided", (X,), {"size": [4, 0], "stride": [30, 1]}),
    ("masked_select", (X, X > 0), {"count": dim("c")}),
    ("masked_select", (X, X[0] > 0), {"count": dim("c")}),
    ("masked_select", (X, X > 99), {"count": dim("c")}),
    *(("cdist", (values(2, 5, 3), values(4, 3)), {"p": p}) for p in (1.0, 2.0, 3.0, float("inf"))),
]


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize(
    ("op", "operands", "attrs"), CASES, ids=[f"{op}-{i}" for i, (op, _, _) in enumerate(CASES)]
)
def test_onnx_runtime_says_the_same(op: str, operands: Any, attrs: Any, opset: int) -> None:
    graph = written(op, operands, attrs)
    feeds = {f"x{i}": v for i, v in enumerate(operands) if v is not None}
    if opset < 16 and (attrs.get("accumulate") or "reduce" in attrs):
        with pytest.raises(IrError, match="opsets below 16 cannot accumulate"):
            to_onnx(graph, opset=opset)
        return
    options = ort.SessionOptions()
    options.log_severity_level = 4
    proto = to_onnx(graph, opset=opset).SerializeToString()
    (got,) = ort.InferenceSession(proto, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    want = interp.run(graph, feeds)["y"]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6)


BAGS = [
    (mode, last, padding) for mode in ("sum", "mean", "max") for last in (False, True) for padding in (-1, 2)
]
SCATTERED = [
    (word, include_self) for word in ("add", "mul", "amax", "amin", "mean") for include_self in (True, False)
]


@pytest.mark.parametrize(("mode", "last", "padding"), BAGS)
def test_bags_of_embeddings(mode: str, last: bool, padding: int) -> None:
    rows = R.integers(0, 9, 11)
    rows[4:6] = 2
    operands = [values(9, 4), rows, np.array([0, 4, 4, 6, 9]), *([values(11)] if mode == "sum" else [])]
    attrs = {"mode": mode, "include_last_offset": last, "padding_idx": padding}
    on_both("embedding_bag", operands, attrs, outputs=3)


@pytest.mark.parametrize(("word", "include_self"), SCATTERED)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_scatters_that_reduce(word: str, include_self: bool, dtype: str) -> None:
    x, index, src = (X * 9).astype(dtype), R.integers(0, 3, (4, 4, 6)), (values(4, 5, 6) * 9).astype(dtype)
    attrs = {"dim": 1, "reduce": word, "include_self": include_self}
    if dtype == "int32" and word == "mean":
        with pytest.raises(IrError, match="has no ONNX equivalent: scattering integers with mean"):
            to_onnx(written("scatter", (x, index, src), attrs))
        return
    on_both("scatter", (x, index, src), attrs, rtol=2e-2 if dtype == "float16" else 1e-5)


def on_both(op: str, operands: Any, attrs: Any, outputs: int = 1, rtol: float = 2e-6) -> None:
    """Compare ONNX Runtime with the interpreter."""
    graph, feeds = written(op, operands, attrs, outputs), {f"x{i}": v for i, v in enumerate(operands)}
    proto = to_onnx(graph).SerializeToString()
    session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
    for got, want in zip(session.run(None, feeds), interp.run(graph, feeds).values(), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-6)


def written(op: str, operands: Any, attrs: Any, outputs: int = 1) -> ir.Graph:
    b = ir.GraphBuilder("g")
    names = [
        None if v is None else b.input(f"x{i}", f"{v.dtype}{[*v.shape]}") for i, v in enumerate(operands)
    ]
    results = b.call(op, *names, **attrs)
    for i, name in enumerate([results] if isinstance(results, str) else results[:outputs]):
        b.output(f"y{i}" if i else "y", name)
    return b.build()


def test_a_mask_without_true_elements_reads_no_source() -> None:
    """As ``x[mask] = y[mask]`` writes it, whose source is empty then."""
    b = ir.GraphBuilder("g")
    b.input("x", "float32[4, 3]"), b.input("mask", "bool[4, 3]"), b.input("source", "float32[n]")
    b.output("y", b.masked_scatter("x", "mask", "source"))
    session = ort.InferenceSession(to_onnx(b.build()).SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"x": X[:, :3, 0].copy(), "mask": np.zeros((4, 3), bool), "source": np.zeros(0, np.float32)}
    np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"])
    with pytest.raises(Exception, match="out of data bounds"):  # fewer source elements than true ones
        session.run(None, feeds | {"mask": np.ones((4, 3), bool), "source": np.ones(11, np.float32)})


def test_windows_of_a_symbolic_batch() -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[n, 30]")
    b.output("y", b.as_strided("x", size=[dim("n"), 6, 10], stride=[30, 4, 1]))
    graph = b.build()
    feeds = {"x": X.reshape(4, 30)}
    session = ort.InferenceSession(to_onnx(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, feeds)[0], interp.run(graph, feeds)["y"])


def test_symbolic_sizes() -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[n, 5, 6]"), b.input("i", "int64[m]")
    b.output("y", b.index("x", None, "i", "i"))
    b.output("z", b.index("x", "i"))
    graph = b.build()
    feeds = {"x": X, "i": np.array([1, 0, 2])}
    session = ort.InferenceSession(to_onnx(graph).SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(session.run(None, feeds), interp.run(graph, feeds).values(), strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_has_no_form_says_why() -> None:
    b = ir.GraphBuilder("g")
    b.input("x", "float32[n, 5]"), b.input("s", "float32[2, 5]")
    b.output("y", b.slice_scatter("x", "s", dim=0, start=0, end=2))
    with pytest.raises(IrError, match="has no ONNX equivalent: writing to a slice of symbolic size"):
        to_onnx(b.build())


def test_an_index_without_wrap_has_no_negative_value_there_either() -> None:
    for dtype in (np.int64, np.int32):
        rows = np.array([1, 3], dtype)
        graph = written("index_select", (X, rows), {"dim": 0, "wrap": False})
        session = ort.InferenceSession(to_onnx(graph).SerializeToString())
        assert np.array_equal(session.run(None, {"x0": X, "x1": rows})[0], X[rows])
        for outside in (-1, 4):
            with pytest.raises(Exception, match="out of data bounds"):
                session.run(None, {"x0": X, "x1": np.array([0, outside], dtype)})
