"""``dynamic_shapes`` by position, for nested and starred arguments, and such that do not fit the model."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import same  # noqa: E402

from xpuruntime.errors import ModelError  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402

nn = torch.nn
ROWS = {0: "rows"}


class Starred(nn.Module):
    def forward(self, *args: Any) -> Any:
        return args[0] + args[1]


class Nested(nn.Module):
    def forward(self, x: Any, others: Any) -> Any:
        return x + others[0] + others[1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    ("model", "arrange", "shapes"),
    [
        (Starred(), lambda x: (x, x), ((ROWS, ROWS),)),
        (Starred(), lambda x: (x, x), {"args": (ROWS, ROWS)}),
        (Nested(), lambda x: (x, [x, x]), (ROWS, [ROWS, ROWS])),
        (Nested(), lambda x: {"x": x, "others": [x, x]}, {"x": ROWS, "others": [ROWS, ROWS]}),
    ],
)
def test_a_dim_has_its_name_wherever_it_is(model: Any, arrange: Any, shapes: Any, rows: int) -> None:
    graph, _ = import_torch(model.eval(), arrange(torch.ones(rows, 3)), dynamic_shapes=shapes)
    assert all(str(v.spec.shape[0]) == "rows" for v in graph.inputs)
    assert not graph.metadata["specialized"]


@pytest.mark.parametrize(
    "shapes", ["rows", (ROWS,), ((ROWS,),), ({5: "rows"}, [ROWS, ROWS]), {"y": ROWS}, (ROWS, [ROWS])]
)
def test_shapes_that_do_not_fit_are_the_models_error(shapes: Any) -> None:
    x = torch.ones(4, 3)
    with pytest.raises(ModelError, match="cannot be exported") as caught:
        import_torch(Nested().eval(), (x, [x, x]), dynamic_shapes=shapes)
    assert "fault of xpuruntime" not in str(caught.value)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_range_in_steps_of_a_dim(mode: str) -> None:
    """Offsets of bags of any length, as EmbeddingBag computes them for rows of indices."""
    bags = nn.EmbeddingBag(20, 4, mode=mode).eval()

    def indices(*size: int) -> Any:
        return torch.randint(0, 20, size, generator=torch.Generator().manual_seed(0))

    shapes = {"input": {0: "bags", 1: "length"}}
    others = [(indices(2, 2),), (indices(6, 7),), (indices(1, 1),)]
    same(bags, indices(3, 5), dynamic_shapes=shapes, others=others)


def test_a_range_from_a_number_in_steps_of_a_dim() -> None:
    class Steps(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.arange(2, 2 + x.shape[0] * x.shape[1], x.shape[1])

    shapes = {"x": {0: "n", 1: "m"}}
    same(Steps(), torch.ones(3, 5), dynamic_shapes=shapes, others=[(torch.ones(4, 2),)])
