"""Writes to tensors and to views of them, which become ops without side effects, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, same  # noqa: E402

from xpuruntime.errors import ModelError  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402


def through_a_view(x: Any) -> Any:
    y = x * 2
    y[:, 1:3].relu_()
    return y


def under_two_names(x: Any) -> Any:
    y = x.neg()
    rows = y.view(-1)
    y.mul_(3)
    return rows + 1


def under_the_name_of_no_copy(x: Any) -> Any:
    y = x.neg()
    rows, again, kept = y.reshape(2, 6), y.contiguous(), y.to(torch.float32)
    y.masked_fill_(y > 0, 3.0)
    return rows, again, kept


def a_view_returned(x: Any) -> Any:
    y = x.exp()
    first = y.detach()
    y.sub_(1)
    return first, y


def rows_in_a_loop(x: Any) -> Any:
    y = x.exp()
    for i in range(1, 4):
        row, above = y[..., i, :i].clone(), y[..., :i, :i]
        y[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
    return y


def read_between_writes(x: Any) -> Any:
    y = torch.zeros_like(x.transpose(0, 1).contiguous().transpose(0, 1))
    first = y[0]
    y[0] = x[1]
    before = first + 1
    y[0, 1:] = 5
    first.mul_(2)
    return before, first, y.sum(0)


def through_every_kind_of_view(x: Any) -> Any:
    y = x + 1
    y.transpose(0, 1)[1:, None].copy_(x.t()[1:, None] * 3)
    y.permute(1, 0)[0].fill_(-2)
    y.view(-1)[::5].zero_()
    y.unsqueeze(0).squeeze(0).detach()[-1, -2:].add_(x[0, :2])
    return y


def swapped(x: Any) -> Any:
    y = x * 1
    y[0], y[1] = y[1].clone(), y[0].clone()
    return y


def shifted_onto_itself(x: Any) -> Any:
    y = x * 1
    y[1:] = y[:-1].clone() + y[1:]
    y[:] = y.flip(0)
    return y


def other_types_and_shapes(x: Any) -> Any:
    y = torch.zeros(3, 4, 2, dtype=torch.float64)
    y[..., 0] = x
    y[1:, 2] = x[0, :2]
    counts = torch.zeros(5, dtype=torch.int64)
    counts[2] = 7
    counts[3:] += 2
    flags = torch.zeros(3, dtype=torch.bool)
    flags[1] = True
    return y, counts, flags


def nothing(x: Any) -> Any:
    y = x * 1
    y[2:2] = 4.0
    y[:0].mul_(2)
    return y


def by_indices(x: Any) -> Any:
    i = x.argsort(1)
    y = x.clone().index_fill_(1, torch.tensor([0, 2]), 7.0).masked_fill_(x > 0, 1.0)
    y.index_put_((torch.tensor([2, 0]), torch.tensor([1, 1])), x[0, :2])
    y[torch.tensor([1, 1])] += 2
    y.scatter_(1, i[:, :1], x).scatter_add_(0, i[:2].clamp(max=2), x[1:])
    y[1:].index_add_(0, torch.tensor([1, 0]), x[:2], alpha=2).index_copy_(1, torch.tensor([3]), x[1:, :1])
    inverse = torch.empty_like(i[0])
    inverse[i[0]] = torch.arange(4)
    return y, inverse, y.masked_scatter_(x < 0, x.t())


ONCE = {
    "by indices": by_indices,
    "a write through a view": through_a_view,
    "a write that an earlier view shows": under_two_names,
    "a write that ops which may copy show": under_the_name_of_no_copy,
    "a view of what is written is returned": a_view_returned,
    "a fill through a view": lambda x: (y := x * 2, y[:, 1:3].masked_fill_(x[:, 1:3] > 0, 5.0))[0],
    "reads between writes": read_between_writes,
    "every kind of view": through_every_kind_of_view,
    "swapped rows": swapped,
    "shifted onto itself": shifted_onto_itself,
    "other types and shapes": other_types_and_shapes,
    "nothing is written": nothing,
}


@pytest.mark.parametrize("name", ONCE)
def test_writes_are_computed_as_pytorch_does(name: str, taken: list[bool]) -> None:
    same(ONCE[name], torch.randn(3, 4), others=[(torch.randn(3, 4),)])
    assert all(taken)


def test_a_loop_over_rows_is_a_chain(taken: list[bool]) -> None:
    graph = same(rows_in_a_loop, torch.randn(2, 4, 4), others=[(torch.randn(2, 4, 4),)])
    assert all(taken)
    assert sum(n.op == "select_scatter" for n in graph) == 3


def test_memory_of_inputs_is_left_to_pytorch() -> None:
    def written(x: Any) -> Any:
        x[0] = 1
        return x * 2

    with pytest.raises(ModelError, match="changes an input in place"):
        import_torch(OfFunction(written).eval(), (torch.randn(3, 4),))


def test_long_chains_of_writes(taken: list[bool]) -> None:
    def chain(x: Any) -> Any:
        y, rows = x * 1, []
        for i in range(400):
            y = y.add_(1) if i % 2 else y.mul_(0.5)
            y[i % 3].sub_(0.25)
            rows.append(y[0] if i % 50 == 0 else None)
        return y + 0, sum(r for r in rows if r is not None)

    same(chain, torch.randn(3, 4))
    assert all(taken)


def test_views_of_views_of_views() -> None:
    def nested(x: Any) -> Any:
        y = z = x * 1
        for _ in range(60):
            z = z[:, :]
            z.add_(1)
        return y

    same(nested, torch.randn(3, 4))


def in_the_order_of_its_memory(x: Any) -> Any:
    y = torch.zeros_like(x.t())
    y.copy_(x.reshape(4, 3))
    return y.as_strided((12,), (1,)) * 1


def in_the_order_of_other_memory(x: Any) -> Any:
    y = torch.zeros(4, 3)
    y[:] = x.t()
    return y.as_strided((12,), (1,)) + 0


def of_a_list(x: Any) -> Any:
    a, b = x * 1, x * 2
    torch._foreach_add_([a[0], b], 1.0)
    return a, b


def of_an_argument_out(x: Any) -> Any:
    y = torch.empty(6, 4)
    torch.cat([x, x], out=y)
    return y + 1


def of_an_argument_out_without_operands(x: Any) -> Any:
    y = torch.empty(4)
    torch.arange(4, out=y)
    return y + x


@pytest.mark.parametrize(
    "function",
    [in_the_order_of_its_memory, in_the_order_of_other_memory, of_a_list, of_an_argument_out, of_an_argument_out_without_operands],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_other_writes_are_right_or_left_to_pytorch(function: Any) -> None:
    x = torch.randn(3, 4)
    graph, _ = import_torch(OfFunction(function).eval(), (x,))
    if all(n.op != "opaque" for n in graph.nodes):
        same(function, x)


@pytest.mark.parametrize("shape", [(3, 4), (7, 3), (3, 3, 3)])
def test_filled_diagonals(shape: tuple[int, ...]) -> None:
    def function(x: Any) -> Any:
        filled = [x.clone().fill_diagonal_(2.5, wrap=wrap) for wrap in (False, True)]
        strided = x * 2
        strided.as_strided((2, 2), (3, 1), 1).mul_(3)
        return [*filled, strided]

    same(function, torch.randn(shape, generator=torch.Generator().manual_seed(0)))
