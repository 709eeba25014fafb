"""Matrices that a model fills row by row, triangular systems, and solvers that transformers avoids in exports."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, feeds_of, same  # noqa: E402

from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.frontends.torch.triangular_solves import solves_as_in_eval  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402

nn = torch.nn


def rows(a: Any, n: int, first: int = 1) -> Any:
    for i in range(first, n):
        row, above = a[..., i, :i].clone(), a[..., :i, :i].clone()
        a[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
    return a


def masked(x: Any) -> Any:
    n = x.shape[-1]
    mask = torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=0)
    return rows(-x.masked_fill(mask, 0), n) + torch.eye(n)


def other_order(x: Any) -> Any:
    a = (-x).tril(-1).to(torch.float32)
    for i in range(1, 6):
        a[..., i, :i] = (a[..., :i, :i] * a[..., i, :i].unsqueeze(-1)).sum(dim=-2) + a[..., i, :i]
    return a.sum(-1), a


def twice(x: Any) -> Any:
    return rows(rows(x.tril(-1), 6).tril(-2) * 0.5 + x * 0, 6), rows(x.tril(-1) * 1, 6)


def with_a_diagonal(x: Any) -> Any:
    return rows(x.tril(0), 6)


def with_a_half_above(x: Any) -> Any:
    return rows(x.masked_fill(torch.eye(6, dtype=torch.bool), 0), 6)


def written_before(x: Any) -> Any:
    a = x.tril(-1)
    a[..., 0, 3] = 2.0
    return rows(a, 6)


def a_mask_that_is_written(x: Any) -> Any:
    mask = torch.triu(torch.ones(6, 6, dtype=torch.bool))
    mask[0] = False
    return rows(x.masked_fill(mask, 0), 6)


def a_row_is_read(x: Any) -> Any:
    a, seen = x.tril(-1), []
    for i in range(1, 6):
        row, above = a[..., i, :i].clone(), a[..., :i, :i].clone()
        a[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
        seen.append(a.sum())
    return a, torch.stack(seen)


def another_sum(x: Any) -> Any:
    a = x.tril(-1)
    for i in range(1, 6):
        row, above = a[..., i, :i].clone(), a[..., :i, :i].clone()
        a[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-1)
    return a


def the_last_rows_only(x: Any) -> Any:
    return rows(x.tril(-1), 6, first=3)


def all_but_the_last_row(x: Any) -> Any:
    return rows(x.tril(-1), 5)


def rows_of_the_beginning(x: Any) -> Any:
    a = x.tril(-1)
    new = [a[..., i, :i] + (a[..., i, :i].unsqueeze(-1) * a[..., :i, :i]).sum(-2) for i in range(1, 6)]
    for i in range(1, 6):
        a[..., i, :i] = new[i - 1]
    return a


def sums_over_a_copy(x: Any) -> Any:
    a = x.tril(-1)
    s = a.clone()
    for i in range(1, 6):
        a[..., i, :i] = a[..., i, :i] + (a[..., i, :i].unsqueeze(-1) * s[..., :i, :i]).sum(-2)
    return a


def written_to_a_copy(x: Any) -> Any:
    a = x.tril(-1)
    rows(a.clone(), 6)
    return a


def parts_written_before(x: Any) -> Any:
    a = x.tril(-1)
    for m in a.unbind(0):
        m.fill_(0.5)
    a.split(3, -1)[1].fill_(0.25)
    return rows(a, 6)


def given_as_out(x: Any) -> Any:
    a = x.tril(-1)
    torch.mul(x[0], 2.0, out=a[0])
    return rows(a, 6)


LOOPS = [
    masked, other_order, twice, with_a_diagonal, with_a_half_above, written_before, a_mask_that_is_written, a_row_is_read, another_sum,
    the_last_rows_only, all_but_the_last_row, rows_of_the_beginning, sums_over_a_copy, written_to_a_copy, parts_written_before, given_as_out,
]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("function", LOOPS, ids=lambda f: f.__name__)
def test_loops_over_rows(function: Any) -> None:
    same(function, torch.randn(2, 6, 6) * 0.5, others=[(torch.randn(2, 6, 6),), (torch.zeros(2, 6, 6),)])


def test_a_batch_of_any_size() -> None:
    same(masked, torch.randn(2, 5, 5), dynamic_shapes=({0: "batch"},), others=[(torch.randn(7, 5, 5),)])


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("unitriangular", [True, False])
def test_solve_triangular(left: bool, upper: bool, unitriangular: bool) -> None:
    def solve(a: Any, b: Any) -> Any:
        return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unitriangular)

    a = torch.randn(2, 1, 5, 5) * 0.3 + 2 * torch.eye(5)
    graph = same(solve, a, torch.randn(3, 5, 4) if left else torch.randn(3, 4, 5))
    assert sum(n.op == "solve_triangular" for n in graph) == 1
    same(solve, a.double(), torch.randn(1, 5, 0).double() if left else torch.randn(1, 0, 5).double())


# ── solvers that an export avoids ──

SOURCE = """
import torch

def is_torchdynamo_exporting():
    return torch.compiler.is_exporting()

def solved(a, b):
    if not is_torchdynamo_exporting():
        return torch.linalg.solve_triangular(a, b, upper=False, unitriangular=True)
    return b * 1000

def other(b):
    return b + 1 if is_torchdynamo_exporting() else b - 1

class Layer(torch.nn.Module):
    def forward(self, a, b):
        return solved(a, b), other(b)
"""


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType("modeling_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(SOURCE, vars(module))
    return module


def test_functions_that_solve_do_so_in_an_export(file: types.ModuleType) -> None:
    asks = file.is_torchdynamo_exporting
    a, b = torch.randn(4, 4), torch.randn(4, 3)
    model = nn.Sequential(file.Layer())
    graph, _ = import_torch(OfFunction(lambda x, y: model[0](x, y)).eval(), (a, b))
    assert all(n.op != "solve_triangular" for n in graph)  # no layer of the model is of that file
    layer = file.Layer().eval()
    graph, _ = import_torch(layer, (a, b))
    got = interp.run(graph, feeds_of(graph, (a, b)))
    np.testing.assert_allclose(got["output_0"], layer(a, b)[0].numpy(), atol=1e-5)
    np.testing.assert_array_equal(got["output_1"], (b + 1).numpy())  # others see the export
    assert file.is_torchdynamo_exporting is asks


def test_other_threads_and_errors_see_the_original(file: types.ModuleType) -> None:
    asks, layer = file.is_torchdynamo_exporting, file.Layer()
    seen: list[Any] = []
    file.is_torchdynamo_exporting = lambda: True
    original = file.is_torchdynamo_exporting
    a, thousand = torch.eye(2), torch.full((2, 2), 1000.0)

    def within() -> None:
        with solves_as_in_eval(layer):
            assert not torch.equal(file.solved(a, torch.ones(2, 2)), thousand)
            thread = threading.Thread(target=lambda: seen.append(file.solved(a, torch.ones(2, 2))))
            thread.start()
            thread.join()
            raise KeyError

    with pytest.raises(KeyError):
        within()
    assert torch.equal(seen[0], thousand)
    assert file.is_torchdynamo_exporting is original
    file.is_torchdynamo_exporting = asks
