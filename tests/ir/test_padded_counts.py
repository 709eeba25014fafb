"""Results of sizes that only a run knows, in their largest size: cut, they are what the ops themselves return."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import IrError
from xpuruntime.ir import Graph, GraphBuilder, interp, pad_counts
from xpuruntime.runtime import Executor
from xpuruntime.types import DType, TensorSpec, dim

Array = np.ndarray[Any, Any]
draw = np.random.default_rng(11)
ELEMENTS = ("float32", "float64", "bfloat16", "int64", "int8", "bool")


def array(dtype: str, *shape: int) -> Array:
    """Few different values, so that many are equal or zero; floats with NaN, infinities and both zeros."""
    values = draw.integers(-2, 3, shape).astype(DType(dtype).numpy)
    if DType(dtype).is_float and values.size > 4:
        flat = values.reshape(-1)
        flat[draw.permutation(flat.size)[:5]] = [np.nan, np.inf, -np.inf, -0.0, np.nan]
    return values


def one(op: str, *operands: Array | None, outputs: int = 1, **attrs: Any) -> tuple[Graph, dict[str, Array]]:
    b = GraphBuilder(op)
    feeds = {f"x{i}": o for i, o in enumerate(operands) if o is not None}
    names = [
        None if o is None else b.input(f"x{i}", TensorSpec(o.shape, DType.of(o.dtype)))
        for i, o in enumerate(operands)
    ]
    results = b.call(op, *names, outputs=outputs, count=dim("u0"), **attrs)
    for i, value in enumerate([results] if isinstance(results, str) else results):
        b.output(f"y{i}", value)
    return b.build(), feeds


def agree(graph: Graph, feeds: dict[str, Array], *, native: bool = False) -> None:
    expected, padded = interp.run(graph, feeds), pad_counts(graph)
    assert not padded.graph.symbols
    padded.graph.check()
    outputs = interp.run(padded.graph, feeds)
    runs = [padded.cut(outputs)]
    if native:
        with Executor(compile_graph(padded.graph, target="cpu"), "cpu", threads=1) as executor:
            results = executor.run_arrays([feeds[s.name] for s in padded.graph.input_specs])
        runs.append(padded.cut(dict(zip(executor.output_names, results, strict=True))))
    for got in runs:
        assert list(got) == list(expected)
        for name, want in expected.items():
            assert got[name].dtype == want.dtype
            exact = (
                np.float64 if want.dtype.kind == "V" else want.dtype
            )  # NumPy does not find bfloat16's NaN equal
            np.testing.assert_array_equal(got[name].astype(exact), want.astype(exact))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_elements_that_are_selected(dtype: str) -> None:
    for shape in ((3, 5), (7,), (1,), (0, 4), (2, 3, 4)):
        x = array(dtype, *shape)
        for mask in (array("bool", *shape), np.zeros(shape, bool), np.ones(shape, bool)):
            agree(*one("masked_select", x, mask))
        agree(*one("masked_select", x, array("bool", shape[-1])))
        agree(*one("nonzero", x))
        agree(*one("compress", x, array("bool", max(x.size - 1, 0))))
        for axis, size in enumerate(shape):
            agree(*one("compress", x, array("bool", size), dim=axis))
            agree(*one("compress", x, array("bool", max(size - 2, 0)), dim=axis))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("sorted_", [True, False])
@pytest.mark.parametrize("dtype", ELEMENTS)
def test_unique(dtype: str, sorted_: bool) -> None:
    for shape in ((3, 5), (9,), (1,), (0,), (2, 3, 2)):
        x = array(dtype, *shape)
        agree(*one("unique", x, outputs=4, sorted=sorted_))
        agree(*one("unique", x, outputs=1, sorted=sorted_))
        for axis in range(len(shape)) if x.size else ():
            rows = np.nan_to_num(x.astype(np.float32)).astype(
                x.dtype
            )  # NumPy does not compare slices with NaN
            agree(*one("unique", rows, outputs=4, sorted=sorted_, dim=axis))


@pytest.mark.parametrize("center", [False, True])
def test_boxes(center: bool) -> None:
    for (batches, classes, boxes), most in zip(
        [(2, 3, 9), (1, 1, 1), (1, 2, 0), (1, 1, 40)], (3, 1, 2, 40), strict=True
    ):
        corners = draw.integers(0, 6, (batches, boxes, 4)).astype(np.float32)
        scores = (draw.integers(0, 6, (batches, classes, boxes)) / 5).astype(np.float32)
        if boxes > 5:
            scores[0, 0, :2] = [np.nan, -np.inf]
            corners[0, 3] = np.nan
        limits = np.array([most]), np.array([0.3], np.float32), np.array([0.2], np.float32)
        for given in (limits, (limits[0], None, None), (limits[0], limits[1], None), (None, None, None)):
            agree(*one("non_max_suppression", corners, scores, *given, center_point_box=center))


def test_programs_return_the_counts() -> None:
    """Every op in one program of native kernels, with results that are permuted and computed on."""
    b = GraphBuilder("counted")
    x = b.input("x", "float32[5, 7]")
    c = b.input("c", "bool[5]")
    b.output("at", b.permute(b.nonzero(x, count=dim("u0")), dims=[1, 0]))
    b.output("rows", b.mul(b.relu(b.compress(x, c, count=dim("u1"), dim=0)), 2.0))
    b.output("big", b.masked_select(x, b.gt(x, 0.0), count=dim("u2")))
    for name, value in zip(
        ("y", "first", "inverse", "counts"), b.unique(x, count=dim("u3"), outputs=4), strict=True
    ):
        b.output(name, value)
    boxes, scores = b.input("boxes", "float32[1, 6, 4]"), b.input("scores", "float32[1, 2, 6]")
    most = b.constant(np.array([3]))
    b.output(
        "kept", b.call("non_max_suppression", boxes, scores, most, None, None, count=dim("u4"), outputs=1)
    )
    feeds = {
        "x": array("float32", 5, 7), "c": np.array([True, False, True, True, False]),
        "boxes": draw.integers(0, 6, (1, 6, 4)).astype(np.float32), "scores": draw.random((1, 2, 6)).astype(np.float32),
    }  # fmt: skip
    graph = b.build()
    agree(graph, feeds, native=True)
    counts = pad_counts(graph).counts
    assert {n: (c.axis, c.output) for n, c in counts.items() if n in ("at", "rows")} == {
        "at": (1, "at.count"),
        "rows": (0, "rows.count"),
    }


def test_a_count_that_is_a_size_is_refused() -> None:
    b = GraphBuilder("sum")
    b.output("y", b.sum(b.nonzero(b.input("x", "float32[5]"), count=dim("u0")), dim=[0], keepdim=False))
    with pytest.raises(IrError, match="computes with a size that only a run knows, which cannot be padded"):
        pad_counts(b.build())
    graph, _ = one("unique", np.zeros((3, 65), ml_dtypes.bfloat16), dim=0)
    with pytest.raises(IrError, match="slices of more than 64 elements"):
        pad_counts(graph)
    b = GraphBuilder("open")
    b.output("y", b.nonzero(b.input("x", "float32[n]"), count=dim("u0")))
    with pytest.raises(IrError, match="has operands of symbolic sizes"):
        pad_counts(b.build())


def test_another_output_may_have_the_name_of_a_count() -> None:
    b = GraphBuilder("names")
    x = b.input("x", "float32[7]")
    b.output("y", b.call("nonzero", x, count=dim("u0")))
    b.output("y.count", b.exp(x))
    x0 = draw.integers(0, 2, 7).astype(np.float32)
    padded = pad_counts(b.build())
    assert padded.counts["y"].output == "y.count_"
    agree(b.build(), {"x": x0}, native=True)
