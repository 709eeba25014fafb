"""Sizes and numbers that a model reads from tensors of its own making, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from support.torch_oracle import OfFunction, feeds_of, opaque, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.errors import RunError  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402

nn = torch.nn


def draw(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def repeated(x: Any) -> Any:
    """As V-JEPA 2 makes as many mask tokens as its largest place asks for."""
    places = torch.arange(5).unsqueeze(0).repeat(2, 1)
    return x.repeat(2, places[0].max() + 1, 1)


def grid(x: Any) -> Any:
    """As SAM 3 makes coordinates of a map's sizes."""
    sizes = torch.tensor([[4, 3]])
    rows = torch.arange(0, sizes[0, 0], dtype=torch.float32) / sizes[0, 0]
    columns = torch.arange(0, sizes[0, 1], dtype=torch.float32) / sizes[0, 1]
    return x * rows[:, None] + columns


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (repeated, (1, 1, 3)),
        (grid, (4, 3)),
        (lambda x: x * torch.tensor([0.1, 0.7])[1].item(), (2, 3)),
        (lambda x: x[: torch.tensor([2, 3]).sum().item() - 1] + 1, (6, 2)),
        (lambda x: x.new_zeros(torch.tensor([3, 5]).max().item(), 2) + x, (5, 2)),
        (lambda x: x.narrow(0, 0, torch.tensor([0, 3]).min().item()).relu(), (6, 2)),
    ],
)
def test_contents_that_the_program_decides(function: Any, shape: tuple[int, ...]) -> None:
    graph = same(function, draw(*shape))
    assert not graph.symbols


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[i],
        lambda x, i: x[:, i, 1:],
        lambda x, i: x[i, i, i] * x[i - 1],
        lambda x, i: x[x[:, 0, 0].argmax()],
        lambda x, i: x[..., i.item()],
    ],
)
def test_a_scalar_tensor_is_a_position(function: Any) -> None:
    same(function, draw(3, 4, 5), torch.tensor(1), others=[(draw(3, 4, 5), torch.tensor(k)) for k in (-1, 2)])


def test_a_position_outside_of_a_dim_fails_the_run() -> None:
    model = OfFunction(lambda x, i: x[:, i]).eval()
    session = xrt.InferenceSession(model, example_inputs=(draw(3, 4), torch.tensor(1)), engine="native")
    for i in (-4, 3):
        (y,) = session.run([draw(3, 4), torch.tensor(i)]).values()
        assert torch.equal(y, draw(3, 4)[:, i])
    for i in (-5, 4):
        with pytest.raises(RunError, match=f"index {i} is outside a dim of 4"):
            session.run([draw(3, 4), torch.tensor(i)])


class Cuts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: Any) -> Any:
        return x.new_zeros(self.count.item(), 2)


def test_contents_of_weights_are_not_taken_for_constants() -> None:
    """A checkpoint may bring others."""
    (reason,) = opaque(xrt.extract_ir(Cuts().eval(), draw(6, 2)))
    assert "content of a tensor" in reason


def test_contents_of_inputs_and_draws_are_not_taken_for_constants() -> None:
    def by_input(x: Any, count: Any) -> Any:
        return x.new_zeros(count.item(), 2)

    def by_chance(x: Any) -> Any:
        return x.new_zeros(torch.randint(1, 5, ()).item(), 2)

    assert opaque(xrt.extract_ir(OfFunction(by_input).eval(), (draw(6, 2), torch.tensor(3))))
    assert opaque(xrt.extract_ir(OfFunction(by_chance).eval(), draw(6, 2)))


def written(part: Any) -> Any:
    """``x[mask] = part``, as T5Gemma 2 puts one vector in the place of a token's."""

    def function(x: Any, mask: Any) -> Any:
        x = x.clone()
        x[mask] = part.to(x.dtype)
        return x

    return function


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_mask_that_takes_one_part_is_a_choice(rank: int) -> None:
    x = draw(3, 4, 5)
    x[0, 0, 0] = float("nan")
    masks = [torch.arange(3 * 4 * 5).reshape(3, 4, 5)[(..., *[0] * (3 - rank))] % 3 == k for k in range(3)]
    others = [(x, m) for m in (*masks, torch.zeros_like(masks[0]), torch.ones_like(masks[0]))]
    behind = x.shape[rank:]
    for part in (
        torch.tensor(2.0),
        torch.tensor([7]),
        draw(1, *behind),
        draw(1, *behind)[0],
        draw(1, *behind[1:]),
    ):
        graph, weights = import_torch(OfFunction(written(part)).eval(), others[0])
        assert not opaque(graph)
        for given in others:
            (got,) = interp.run(graph, feeds_of(graph, given), weights=weights).values()
            np.testing.assert_array_equal(got, written(part)(*given).numpy())


def test_a_mask_takes_as_many_parts_as_it_names() -> None:
    x, mask, part = draw(3, 4), torch.tensor([True, False, True]), draw(2, 4)
    graph, weights = import_torch(OfFunction(written(part)).eval(), (x, mask))
    assert not opaque(graph)
    (got,) = interp.run(graph, feeds_of(graph, (x, mask)), weights=weights).values()
    np.testing.assert_array_equal(got, written(part)(x, mask).numpy())
