"""Distances of pairs of rows on native, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, feeds_of, run_natively, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402

inf, nan = float("inf"), float("nan")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [4, 40], ids=["differences", "products"])
@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.5, inf])
def test_on_native(p: float, rows: int) -> None:
    """With more than 25 rows PyTorch takes products for p = 2, and so does the graph."""
    module = OfFunction(lambda a, b: torch.cdist(a, b, p=p)).eval()
    draw = torch.Generator().manual_seed(0)
    given: tuple[Any, ...] = torch.randn(2, 3, 5, generator=draw), torch.randn(rows, 5, generator=draw)
    graph = same(module, *given)
    session = xrt.InferenceSession(module, engine="native", example_inputs=given)
    (got,) = session.run(feeds_of(graph, given)).values()
    exact = module(*(t.double() for t in given))
    assert float((torch.from_numpy(got).double() - exact).abs().max()) <= 2e-6 * float(exact.max())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0])
def test_nan_and_infinity(p: float) -> None:
    """For p = inf PyTorch passes over NaN; here it stays NaN."""
    import numpy as np

    from xpuruntime.ir import interp

    a = torch.tensor([[0.0, nan, 1.0], [inf, 0.0, 0.0], [1.0, 2.0, 3.0]])
    (got,) = interp.apply("cdist", a.numpy(), a.flip(0).numpy(), p=p)
    np.testing.assert_array_equal(got, torch.cdist(a, a.flip(0), p=p).numpy())


def test_no_rows_and_no_columns() -> None:
    same(torch.cdist, torch.randn(0, 5), torch.randn(3, 5))
    same(torch.cdist, torch.randn(4, 0), torch.randn(3, 0))


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, inf])
def test_distances_within_a_set_of_rows(p: float) -> None:
    x = torch.randn(37, 5, generator=torch.Generator().manual_seed(0))
    x[3, 1], x[8, 0], x[9, 0] = nan, inf, inf
    for rows in (x, x.double(), x[:2], x[:1], x[:0], x[:, :0]):
        want = torch.pdist(rows, p)
        (got,) = run_natively([lambda x: torch.pdist(x, p)], rows)
        torch.testing.assert_close(got, want, rtol=2e-6, atol=0, equal_nan=True)
    same(lambda x: torch.pdist(x, p), x[:3])


def test_distances_of_any_number_of_rows() -> None:
    first, others = torch.randn(5, 3), [(torch.randn(9, 3),), (torch.randn(3, 3),)]
    same(torch.pdist, first, dynamic_shapes=({0: torch.export.Dim("n", min=3)},), others=others)
