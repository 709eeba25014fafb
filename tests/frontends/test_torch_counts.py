"""Counts of numbers, runs of equal elements, places of a fixed number, and writes to diagonals, against PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402

nan = float("nan")


def open_session(function: Any, *tensors: Any, **kwargs: Any) -> Any:
    return xrt.InferenceSession(OfFunction(function).eval(), example_inputs=tensors, **kwargs)


def compare(function: Any, *cases: tuple[Any, ...]) -> Any:
    """Import with the first case, compare the interpreter's results with PyTorch's in all; NaN and infinities included. Return the graph."""
    graph, _ = import_torch(OfFunction(function).eval(), cases[0])
    assert "opaque" not in [n.op for n in graph]
    for tensors in cases:
        want = function(*tensors)
        want = [want] if isinstance(want, torch.Tensor) else list(want)
        feeds = {v.name: t.numpy() for v, t in zip(graph.inputs, tensors, strict=True)}
        for mine, theirs in zip(interp.run(graph, feeds).values(), want, strict=True):
            assert mine.dtype == theirs.numpy().dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)
    return graph


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
@pytest.mark.parametrize("least", [0, 3, 9])
def test_counts_of_numbers(dtype: str, least: int) -> None:
    x = torch.tensor([4, 0, 0, 7, 1, 4, 4], dtype=getattr(torch, dtype))
    w = torch.tensor([0.5, nan, 1.0, -2.0, float("inf"), 3.0, 1e-3])
    counted = compare(
        lambda x: torch.bincount(x, minlength=least), (x,), (torch.zeros_like(x),), (x.flip(0) + 5,)
    )
    assert [n.op for n in counted] == ["bincount"]
    compare(lambda x: torch.bincount(x, minlength=least), (x[:0],))
    compare(lambda x: torch.bincount(x[::2], minlength=least), (x,))
    for weights in (w, w.double(), torch.arange(7)):
        compare(lambda x, w: torch.bincount(x, w, least), (x, weights), (x + 1, weights))


def test_counts_of_a_size_that_the_model_needs() -> None:
    """A confusion matrix: its size is that of the view, and equals minlength."""

    def matrix(labels: Any, guesses: Any) -> Any:
        return torch.bincount(labels * 3 + guesses, minlength=9).reshape(3, 3)

    labels = torch.tensor([0, 2, 2, 1, 1])
    graph = compare(matrix, (labels, labels.flip(0)))
    assert "scatter" in [n.op for n in graph]
    with open_session(matrix, labels, labels, engine="native") as session:
        assert [r.engine for r in session.plan.regions] == ["native"]
        (got,) = session.run([labels, labels.flip(0)]).values()
        assert torch.equal(got, matrix(labels, labels.flip(0)))
        for wrong in (labels - 1, labels + 1):  # PyTorch refuses both, too
            with pytest.raises(xrt.XpuError, match="outside a dim of 9"):
                session.run([wrong, labels])


def test_a_size_that_the_model_needs_and_content_decides() -> None:
    x = torch.tensor([0, 3, 1])
    with pytest.raises(xrt.XpuError, match=r"needs 4 counts.*use minlength=4"):
        open_session(lambda x: torch.bincount(x).reshape(2, 2), x, engine="native")
    with open_session(lambda x: torch.bincount(x, minlength=2).reshape(2, 2), x) as session:
        (got,) = session.run([x]).values()  # PyTorch counts
        assert got.tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_sessions_count_numbers(engine: str) -> None:
    if engine != "native":
        pytest.importorskip(engine)

    def shares(x: Any, w: Any) -> Any:
        counts = torch.bincount(x.flatten(), minlength=4)
        sums = torch.bincount(x.flatten(), w.flatten())
        return counts / counts.sum(), sums * 2, counts.shape[0]

    x = torch.tensor([[1, 5, 1], [0, 0, 1]])
    w = torch.rand(2, 3)
    with open_session(shares, x, w, engine=engine) as session:
        for ids in (x, x * 3, x * 0):
            want = shares(ids, w)
            got = list(session.run([ids, w]).values())
            for mine, theirs in zip(got, want, strict=True):
                torch.testing.assert_close(mine, torch.as_tensor(theirs), check_dtype=False)
        with pytest.raises(xrt.XpuError):
            session.run([x - 1, w])


@pytest.mark.parametrize(
    "content", [[1.0, 1.0, 2.0, nan, nan, 2.0, 2.0], [3.0], [0.0, -0.0, 0.0, 1.0, 2.0, 3.0, 3.0]]
)
def test_runs_of_equal_elements(content: list[float]) -> None:
    x = torch.tensor(content)
    for kwargs in ({}, {"return_inverse": True}, {"return_counts": True}, {"dim": 0, "return_counts": True}):
        function = partial(torch.unique_consecutive, **kwargs)
        compare(function, (x,), (x.flip(0),), (torch.zeros_like(x),))
    rows = torch.tensor([[2, 2, 1], [1, 1, 3]], dtype=torch.int32)
    compare(partial(torch.unique_consecutive, return_inverse=True, return_counts=True), (rows,))
    compare(partial(torch.unique_consecutive, return_inverse=True, return_counts=True), (rows.T,))


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 1, 5), (0, 3), ()])
def test_a_fixed_number_of_places(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).relu()
    for size, fill in ((4, -1), (0, 0), (20, 7)):
        function = partial(torch.nonzero_static, size=size, fill_value=fill)
        compare(function, (x,), (x * nan,), (torch.zeros(shape),), (torch.ones(shape),))
    compare(lambda x: torch.nonzero_static(x > 0, size=5), (x,))


@pytest.mark.parametrize(
    ("offset", "dims"),
    [
        (0, (0, 1)),
        (2, (0, 1)),
        (-3, (0, 1)),
        (1, (2, 0)),
        (-1, (-1, 1)),
        (0, (1, 2)),
        (9, (0, 1)),
        (-4, (0, 1)),
    ],
)
def test_writes_to_diagonals(offset: int, dims: tuple[int, int]) -> None:
    x = torch.randn(4, 5, 6)
    x[0] = nan

    def written(x: Any, y: Any) -> Any:
        z = x.clone()
        z.diagonal(offset, *dims).copy_(y)
        return z

    source = torch.randn(x.diagonal(offset, *dims).shape)
    compare(written, (x, source))


def test_filled_diagonals_on_the_native_engine() -> None:
    def filled(x: Any) -> Any:
        z = x * 2
        z.diagonal(dim1=-2, dim2=-1).fill_(float("-inf"))
        return z.softmax(-1)

    x = torch.randn(3, 5, 5)
    with open_session(filled, x, engine="native") as session:
        (got,) = session.run([x]).values()
        torch.testing.assert_close(got, filled(x))


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_repeats_that_a_tensor_counts(dtype: str) -> None:
    x, repeats = torch.randn(3, 2), torch.tensor([2, 0, 3], dtype=getattr(torch, dtype))

    def of_unknown_number(x: Any, r: Any) -> Any:
        return x.repeat_interleave(r, 0)

    def of_known_number(x: Any, r: Any) -> Any:
        return x.repeat_interleave(r, 0, output_size=5)

    unknown = compare(of_unknown_number, (x, repeats), (x, repeats.flip(0) * 2), (x, repeats * 0))
    assert "repeat_interleave" in [n.op for n in unknown]
    known = compare(of_known_number, (x, repeats), (x, repeats.flip(0)))
    assert "repeat_interleave" not in [n.op for n in known]
    compare(lambda r: torch.repeat_interleave(r), (repeats,))
    compare(lambda r: torch.repeat_interleave(r), (repeats[:0],))
    compare(lambda x, r: x.repeat_interleave(r, 1), (x, repeats[:1]))
    with open_session(of_known_number, x, repeats, engine="native") as session:
        assert [r.engine for r in session.plan.regions] == ["native"]
        assert torch.equal(next(iter(session.run([x, repeats]).values())), of_known_number(x, repeats))
        # PyTorch refuses these, too.
        for wrong in (repeats + 1, repeats * 0, repeats - 1, repeats.clamp(max=2), repeats + repeats % 2):
            with pytest.raises(xrt.XpuError, match="outside a dim of"):
                session.run([x, wrong])


@pytest.mark.parametrize("accumulate", [False, True])
def test_put(accumulate: bool) -> None:
    x, source = torch.randn(3, 5), torch.tensor([[9.0, nan], [8.0, -1.0]])
    place = torch.tensor([[1, -1], [7, 0]])
    compare(lambda x, i, s: x.put(i, s, accumulate), (x, place, source), (x, place.flip(0), source))
    compare(lambda x, i, s: x.put(i, s, accumulate), (x, place[:0], source[:0]))
    if accumulate:
        compare(lambda x, i, s: x.put(i, s, True), (x, place * 0, source.nan_to_num()))


def test_writes_through_a_mask_behind_other_dims() -> None:
    x = torch.randn(2, 3, 4, 5)
    one, two = torch.tensor([True, False, True]), torch.rand(3, 4) > 0.5

    def write(x: Any, mask: Any, value: Any) -> Any:
        y = x.clone()
        y[:, mask] = value
        return y

    def add(x: Any, mask: Any, value: Any) -> Any:
        return torch.ops.aten.index_put(x, [None, mask], value, True)

    count = int(two.sum())
    for function in (write, add):
        for mask, shapes in (
            (one, [(), (5,), (4, 5), (2, 4, 5), (4, 1), (1, 4, 5), (2, 1, 4, 5), (1, 2, 4, 5), (2, 2, 4, 5)]),
            (two, [(), (5,), (count, 5), (2, count, 5), (1, count, 1), (2, 1, 5)]),
        ):
            for shape in shapes:
                compare(function, (x, mask, torch.randn(shape)))
