"""Counting into bins, searches among boundaries and products by groups, against PyTorch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, opaque, same  # noqa: E402

from xpuruntime.frontends.torch import import_torch  # noqa: E402

nan, inf = float("nan"), float("inf")

CONTENTS = [
    [0.0, 1.0, 2.0, 3.0, 3.0, 0.5, 2.999999],
    [-1.0, 4.0, nan, inf, -inf, 3.0, 1.5],
    [],
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("content", CONTENTS, ids=["inside", "outside", "empty"])
@pytest.mark.parametrize(("bins", "low", "high"), [(4, 0, 3), (7, -0.5, 3), (1, 0, 1)])
def test_values_are_counted_as_pytorch_counts(
    content: list[float], bins: int, low: float, high: float
) -> None:
    same(lambda x: torch.histc(x, bins, low, high), torch.tensor(content))


def test_many_values_are_counted_as_pytorch_counts() -> None:
    """Values on the edges of bins among them."""
    x = torch.rand(5, 7, 31, generator=torch.Generator().manual_seed(2)) * 3 - 1
    same(lambda x: torch.histc(x, 10, -1.0, 1.0), (x * 10).round() / 10, others=[(x,)])


@pytest.mark.parametrize("function", [lambda x: torch.histc(x, 4), lambda x: torch.histc(x, 4, 2, 2)])
def test_a_range_that_depends_on_content(function: Any) -> None:
    same(function, torch.rand(9), others=[(torch.full((9,), -1.5),), (torch.arange(9.0),)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("right", [False, True])
def test_places_among_boundaries_are_pytorch_s(right: bool) -> None:
    bounds = torch.tensor([-1.0, 0.0, 0.0, 2.5])
    x = torch.tensor([[-inf, -1.0, 0.0], [2.5, inf, nan], [-0.0, 1.0, 3.0]])
    same(partial(torch.bucketize, right=right), x, bounds)
    same(partial(torch.bucketize, right=right, out_int32=True), x.double(), bounds)
    same(lambda b, v: torch.searchsorted(b, v, right=right), bounds, x)
    same(lambda b, v: torch.searchsorted(b, v, side="right" if right else "left"), bounds, x)
    same(partial(torch.bucketize, right=right), x[:0], bounds, others=[(x[:0], bounds)])
    same(partial(torch.bucketize, right=right), x, bounds[:0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("count", [65, 127, 128, 300])
def test_many_boundaries_are_bisected(count: int, right: bool) -> None:
    """Equal ones, infinite ones and NaN among them, and unsorted ones, whose places depend on the steps of PyTorch's search."""
    draw = torch.Generator().manual_seed(count)
    bounds = (torch.randn(count, generator=draw) * 8).round().sort().values
    bounds[0], bounds[-4:] = -inf, torch.tensor([inf, inf, nan, nan])
    x = torch.cat([bounds, bounds + 0.5, torch.randn(31, generator=draw)])
    search = partial(torch.searchsorted, right=right)
    same(search, bounds, x, others=[(torch.randn(count, generator=draw), x)])
    same(partial(torch.bucketize, right=right, out_int32=True), x.reshape(1, -1, 1), bounds)
    same(search, torch.arange(count) * 3, torch.randint(-9, 3 * count, (4, 9), generator=draw))
    rows = torch.stack([bounds, torch.randn(count, generator=draw)])
    same(search, rows, torch.randn(2, 40, generator=draw))
    same(
        lambda b, v: torch.searchsorted(b, v, sorter=b.argsort(-1), right=right),
        rows,
        torch.stack([x[:10], x[-10:]]),
    )


def test_every_row_has_boundaries_of_its_own() -> None:
    draw = torch.Generator().manual_seed(3)
    bounds = torch.randn(2, 3, 6, generator=draw).sort(-1).values
    same(torch.searchsorted, bounds, torch.randn(2, 3, 4, generator=draw))


@pytest.mark.parametrize("right", [False, True])
def test_boundaries_that_another_tensor_sorts(right: bool) -> None:
    def function(b: Any, v: Any) -> Any:
        return torch.searchsorted(b, v, sorter=b.argsort(-1), right=right)

    draw = torch.Generator().manual_seed(0)
    for shape in ((6,), (3, 6)):
        same(function, torch.randn(*shape, generator=draw), torch.randn(3, 4, generator=draw))


def test_a_number_among_boundaries() -> None:
    def function(f: Any, i: Any) -> Any:
        places = [torch.bucketize(v, f, right=right) for v in (0.3, 2, math.nan) for right in (False, True)]
        return [*places, torch.searchsorted(i, 2.5), torch.searchsorted(i, 2, right=True)]

    same(function, torch.tensor([-1.0, 0.25, 0.3, 2.0]), torch.tensor([-1, 2, 2, 3]))


ENDS = [[2, 5, 9], [0, 0, 9], [0, 4, 4], [9, 9, 9], [0, 0, 0]]


@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_a_product_by_groups_is_that_of_its_library(kind: Any) -> None:
    """Empty groups, and rows beyond the last group, which are 0."""
    pytest.importorskip("transformers.integrations.moe")
    draw = torch.Generator().manual_seed(4)
    rows, matrices = torch.randn(9, 5, generator=draw), torch.randn(3, 5, 4, generator=draw)
    first, *others = ((rows, matrices, torch.tensor(ends, dtype=kind)) for ends in ENDS)
    same(torch.ops.transformers.grouped_mm_fallback, *first, others=others)


def test_a_product_by_groups_has_no_intermediate_value_of_all_matrices() -> None:
    """Each row is multiplied by one of 64 matrices."""
    pytest.importorskip("transformers.integrations.moe")
    given = (torch.zeros(2**15, 1), torch.zeros(64, 1, 256), torch.zeros(64, dtype=torch.int32))
    graph, _ = import_torch(OfFunction(torch.ops.transformers.grouped_mm_fallback).eval(), given)
    assert opaque(graph) == []
    assert "expert_linear" in {n.op for n in graph.nodes}
    assert max(math.prod(v.spec.shape) for n in graph.nodes for v in n.outputs) <= 2**15 * 256
