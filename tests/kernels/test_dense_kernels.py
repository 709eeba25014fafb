"""Factorizations and systems on CPUs and in CUDA's text, against the interpreter, NumPy and ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from support.native import check

from xpuruntime import ir
from xpuruntime.errors import IrError
from xpuruntime.frontends.onnx_writer import to_onnx
from xpuruntime.ir import interp
from xpuruntime.testing.emulation.cuda_host import cuda_host

SHAPES: list[tuple[int, ...]] = [(1, 1), (2, 2), (5, 5), (3, 4, 4), (2, 1, 17, 17), (3, 0, 0), (0, 4, 4)]
TARGETS = ["cpu", "cuda"]


def matrices(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return matrices that need pivoting: their diagonal is small."""
    x = np.random.default_rng(sum(shape)).standard_normal(shape)
    return (x * (1 - 0.99 * np.eye(shape[-1]))).astype(dtype)


def definite(shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """Return positive definite matrices."""
    x = matrices(shape, "float64")
    return (x @ np.swapaxes(x, -1, -2) + 0.5 * np.eye(shape[-1])).astype(dtype)


def graph(op: str, cases: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> tuple[ir.Graph, dict[str, Any]]:
    b, feeds = ir.GraphBuilder(op), dict[str, Any]()
    for k, (operands, attrs) in enumerate(cases):
        names = []
        for x in operands:
            names.append(b.input(f"x{len(feeds)}", f"{x.dtype.name}{list(x.shape)}"))
            feeds[names[-1]] = x
        for i, result in enumerate(b.call(op, *names, outputs=2, **attrs)):
            b.output(f"y{k}_{i}", result)
    return b.build(), feeds


def cases_of(op: str, dtype: str = "float32") -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    if op == "cholesky":
        return [((definite(s, dtype),), {"upper": upper}) for s in SHAPES for upper in (False, True)]
    if op == "slogdet":
        return [((matrices(s, dtype),), {}) for s in SHAPES]
    right = [((*s[:-1], c), s) for s in SHAPES for c in (1, 3)]
    pairs = [
        (matrices(s, dtype), matrices((*r[:-1], r[-1]), dtype) if r[-2] == r[-1] else _wide(r, dtype))
        for r, s in right
    ]
    pairs += [
        (matrices((4, 4), dtype), _wide((2, 4, 5), dtype)),
        (matrices((2, 1, 3, 3), dtype), _wide((3, 3, 2), dtype)),
    ]
    return [(pair, {}) for pair in pairs]


def _wide(shape: tuple[int, ...], dtype: str) -> Any:
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["cholesky", "slogdet", "solve"])
def test_kernels(op: str, dtype: str, target: str) -> None:
    made, feeds = graph(op, cases_of(op, dtype))
    on = "cpu" if target == "cpu" else cuda_host()
    check(made, feeds, passes="none", split=3, target=on, tolerance=1e-5 if dtype == "float32" else 1e-11)


def test_the_interpreter_factorizes() -> None:
    for shape in SHAPES:
        x = definite(shape, "float64")
        (lower, info), (upper, _) = (interp.apply("cholesky", x, upper=u, outputs=2) for u in (False, True))
        np.testing.assert_allclose(lower @ np.swapaxes(lower, -1, -2), x, atol=1e-9)
        np.testing.assert_allclose(np.swapaxes(upper, -1, -2) @ upper, x, atol=1e-9)
        assert not np.triu(lower, 1).any()
        assert not np.tril(upper, -1).any()
        assert not info.any()
        a = matrices(shape, "float64")
        y, info = interp.apply("solve", a, _wide((*shape[:-1], 3), "float64"), outputs=2)
        np.testing.assert_allclose(a @ y, _wide((*shape[:-1], 3), "float64"), atol=1e-8)
        assert not info.any()
        sign, logarithm = interp.apply("slogdet", a)
        np.testing.assert_allclose(sign * np.exp(logarithm), np.linalg.det(a), rtol=1e-9)


@pytest.mark.parametrize("target", TARGETS)
def test_matrices_without_a_factor_and_numbers_that_are_none(target: str) -> None:
    on = "cpu" if target == "cpu" else cuda_host()
    good, bad, unread = definite((4, 4)), definite((4, 4)), definite((4, 4))
    bad[2, 2] = -1
    unread[np.triu_indices(4, 1)] = np.nan
    holed = good.copy()
    holed[1, 1] = np.nan
    made, feeds = graph("cholesky", [((np.stack([good, bad, holed]),), {}), ((unread,), {})])
    outputs = check(made, feeds, passes="none", target=on)
    assert outputs["y0_1"].tolist() == [0, 3, 2]
    assert np.isfinite(outputs["y0_0"][0]).all()
    assert np.isnan(outputs["y0_0"][1, 2, 2])
    assert np.isfinite(outputs["y1_0"]).all()
    singular = np.array([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float32)
    infinite = np.array([[1, 2], [np.inf, 4]], np.float32)
    odd = [singular, singular * 0, np.full((2, 2), np.nan, np.float32), infinite]
    made, feeds = graph("slogdet", [((x,), {}) for x in odd])
    outputs = check(made, feeds, passes="none", target=on)
    assert [float(outputs[f"y{k}_0"]) for k in range(4)] == [0, 0, 0, -1]  # as in PyTorch
    np.testing.assert_equal([outputs[f"y{k}_1"] for k in range(4)], [-np.inf, -np.inf, np.nan, np.inf])
    systems = [
        ((np.zeros((2, 3, 3), np.float32), _wide((3, 2), "float32")), {}),
        ((singular, np.eye(3, dtype=np.float32)), {}),
    ]
    made, feeds = graph("solve", systems)
    outputs = check(made, feeds, passes="none", target=on)
    assert outputs["y0_1"].tolist() == [1, 1]
    assert outputs["y1_1"] == 3
    assert not np.isfinite(outputs["y0_0"]).any()


def test_types_and_shapes_that_do_not_fit() -> None:
    b = ir.GraphBuilder("g")
    x, wide = b.input("x", "float32[3, 3]"), b.input("wide", "float32[3, 4]")
    with pytest.raises(IrError, match="rows and columns"):
        b.cholesky(wide)
    with pytest.raises(IrError, match="rows and columns"):
        b.slogdet(wide)
    with pytest.raises(IrError, match="the rows of both sides"):
        b.solve(x, b.input("right", "float32[4, 3]"))
    with pytest.raises(IrError, match="one dtype"):
        b.solve(x, b.input("double", "float64[3, 3]"))


def on_onnx_runtime(made: ir.Graph, feeds: dict[str, Any]) -> dict[str, Any]:
    proto = to_onnx(made, opset=17).SerializeToString()
    session = ort.InferenceSession(proto, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in made.outputs], session.run(None, feeds), strict=True))


@pytest.mark.parametrize("op", ["cholesky", "slogdet", "solve"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_onnx_runtime_says_the_same(op: str, dtype: str) -> None:
    cases = [c for c in cases_of(op, dtype) if c[0][0].size]
    made, feeds = graph(op, cases)
    got, want = on_onnx_runtime(made, feeds), interp.run(made, feeds)
    tolerance = 2e-4 if dtype == "float32" else 1e-10
    for name, value in want.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_allclose(got[name], value, rtol=tolerance, atol=tolerance)


def test_onnx_runtime_on_matrices_without_a_factor() -> None:
    good, bad = definite((4, 4)), definite((4, 4))
    bad[2, 2] = -1
    good[np.triu_indices(4, 1)] = np.nan  # not read
    singular = np.array([[1, 2, 3], [2, 4, 6], [1, 0, 1]], np.float32)
    made, feeds = graph("cholesky", [((np.stack([good, bad]),), {})])
    got, want = on_onnx_runtime(made, feeds), interp.run(made, feeds)
    assert got["y0_1"].tolist() == want["y0_1"].tolist() == [0, 3]
    np.testing.assert_allclose(got["y0_0"], want["y0_0"], rtol=1e-5)
    made, feeds = graph("slogdet", [((singular * 0,), {}), ((np.full((2, 2), np.nan, np.float32),), {})])
    got = on_onnx_runtime(made, feeds)
    np.testing.assert_equal([got[n] for n in ("y0_0", "y0_1", "y1_0", "y1_1")], [0, -np.inf, 0, np.nan])
    made, feeds = graph("solve", [((np.zeros((2, 3, 3), np.float32), _wide((3, 2), "float32")), {})])
    got = on_onnx_runtime(made, feeds)
    assert got["y0_1"].tolist() == [1, 1]
    assert not np.isfinite(got["y0_0"]).any()


def test_onnx_with_an_open_batch_and_an_open_size() -> None:
    b = ir.GraphBuilder("g")
    a, right = b.input("a", "float32[n, 3, 3]"), b.input("right", "float32[n, 3, 2]")
    b.output("x", b.solve(a, right))
    b.output("y", b.cholesky(a))
    sign, logarithm = b.slogdet(a)
    b.output("s", sign)
    b.output("l", logarithm)
    made = b.build()
    for count in (1, 3):
        feeds = {"a": definite((count, 3, 3)), "right": _wide((count, 3, 2), "float32")}
        for name, value in on_onnx_runtime(made, feeds).items():
            np.testing.assert_allclose(value, interp.run(made, feeds)[name], rtol=1e-4, atol=1e-5)
    b = ir.GraphBuilder("g")
    b.output("y", b.cholesky(b.input("a", "float32[n, n]")))
    with pytest.raises(IrError, match="a symbolic number of rows"):
        to_onnx(b.build(), opset=17)
