"""Triangular systems on CPUs and in CUDA's text, against the interpreter and ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from support.native import check

from xpuruntime import ir
from xpuruntime.errors import IrError
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.testing.emulation.cuda_host import cuda_host

SHAPES = [
    ((5, 5), (5, 3)),
    ((2, 3, 64, 64), (2, 3, 64, 40)),
    ((2, 1, 7, 7), (3, 7, 1)),
    ((4, 4), (2, 4, 33)),
    ((1, 1), (1, 1)),
    ((3, 0, 0), (3, 0, 4)),
    ((0, 5, 5), (0, 5, 4)),
    ((5, 5), (5, 0)),
]


def system(a: tuple[int, ...], b: tuple[int, ...], dtype: str = "float32") -> tuple[Any, Any]:
    """Return a matrix whose halves and diagonal all matter, and a right side."""
    rng = np.random.default_rng(len(a) + a[-1])
    left = rng.standard_normal(a) / max(a[-1], 1) ** 0.5
    left = left + np.sign(left + 0.01) * np.eye(a[-1])
    return left.astype(dtype), rng.standard_normal(b).astype(dtype)


def graph(calls: Any) -> tuple[ir.Graph, dict[str, Any]]:
    b = GraphBuilder("systems")
    feeds: dict[str, Any] = {}
    for (left, right), attrs in calls:
        names = []
        for x in (left, right):
            names.append(b.input(f"x{len(feeds)}", f"{x.dtype.name}{list(x.shape)}"))
            feeds[f"x{len(feeds)}"] = x
        b.output(f"y{len(b.outputs)}", b.solve_triangular(*names, **attrs))
    return b.build(), feeds


FORMS = [{"upper": u, "unitriangular": one} for u, one in itertools.product((False, True), repeat=2)]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels(target: str, dtype: str) -> None:
    made, feeds = graph([(system(a, b, dtype), form) for a, b in SHAPES for form in FORMS])
    check(made, feeds, passes="none", split=3, target="cpu" if target == "cpu" else cuda_host())


def test_the_interpreter_solves() -> None:
    for a, b in SHAPES:
        left, right = system(a, b, "float64")
        for form in FORMS:
            (x,) = interp.apply("solve_triangular", left, right, **form)
            half = np.triu(left) if form["upper"] else np.tril(left)
            if form["unitriangular"]:
                half = half * (1 - np.eye(a[-1])) + np.eye(a[-1])
            np.testing.assert_allclose(half @ x, np.broadcast_to(right, x.shape), atol=1e-9)


def test_nan_and_infinity_of_the_half_that_is_read_only() -> None:
    left, right = system((6, 6), (6, 4))
    unread = left + np.triu(np.full((6, 6), np.nan, np.float32))
    pivot, column = left.copy(), right.copy()
    pivot[2, 2] = 0
    column[3, 1], column[1, 2] = np.nan, -np.inf
    unit = {"unitriangular": True}
    made, feeds = graph([((unread, right), unit), ((pivot, right), {}), ((left, column), unit)])
    outputs = check(made, feeds, passes="none", split=3)
    assert np.isfinite(outputs["y0"]).all()
    assert np.isnan(outputs["y2"][3:, 1]).all()
    assert np.isfinite(outputs["y2"][:, 0]).all()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_onnx_runtime_says_the_same(form: dict[str, bool]) -> None:
    for a, b in [s for s in SHAPES if s[0][-1]]:
        left, right = system(a, b)
        unread = np.tril(np.ones(a, bool), -1) if form["upper"] else np.triu(np.ones(a, bool), 1)
        left[unread] = np.nan
        made, feeds = graph([((left, right), form)])
        proto = to_onnx(made, opset=17).SerializeToString()
        (y,) = ort.InferenceSession(proto, providers=["CPUExecutionProvider"]).run(None, feeds)
        np.testing.assert_allclose(y, interp.run(made, feeds)["y0"], rtol=2e-4, atol=2e-4)


def test_matrices_of_no_rows_and_of_too_many_for_onnx() -> None:
    made, feeds = graph([(system((3, 0, 0), (3, 0, 4)), {})])
    proto = to_onnx(made, opset=17).SerializeToString()
    (y,) = ort.InferenceSession(proto, providers=["CPUExecutionProvider"]).run(None, feeds)
    assert y.shape == (3, 0, 4)
    made, _ = graph([(system((1025, 1025), (1025, 1)), {})])
    with pytest.raises(IrError, match="more than 1024 rows"):
        to_onnx(made, opset=17)
