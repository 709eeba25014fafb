"""cast_precision: what is computed of integers keeps its precision, what is computed of the model's numbers does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.inference import InferenceSession  # noqa: E402
from xpuruntime.passes.cast_precision import run  # noqa: E402
from xpuruntime.passes.context import PassContext  # noqa: E402
from xpuruntime.policies import ExecutionPolicy  # noqa: E402
from xpuruntime.types import DType  # noqa: E402

nn = torch.nn


class Routed(nn.Module):
    """Counts of ids, places in a table by their logarithm, and rows of that table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(64, 8)

    def forward(self, ids: Any, x: Any) -> Any:
        wide = ids.float()
        turned = (wide + 1).log() * 7.3
        places = turned.long() % 64
        counts = torch.histc(wide, 128, 0, 127)
        ends = counts.cumsum(0).to(torch.int32)
        return self.table(places) + x * (turned - turned.floor()).unsqueeze(-1), places, ends, wide * 3


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_places_and_counts_are_those_of_float32(precision: str) -> None:
    model = Routed().eval()
    ids = torch.cat([torch.arange(5000), torch.full((3001,), 77)])
    x = torch.randn(len(ids), 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        rows, *exact = model(ids, x)
    policy = ExecutionPolicy(precision=precision)
    with InferenceSession(model, example_inputs=(ids, x), engine="native", exec_policy=policy) as session:
        got = list(session.run([ids.numpy(), x.numpy()]).values())
    for mine, theirs in zip(got[1:], exact, strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())
    assert np.abs(np.asarray(got[0], np.float64) - rows.numpy()).max() < (
        0.01 if precision == "float16" else 0.1
    )


def test_only_what_is_computed_of_integers_stays() -> None:
    class Scaled(nn.Module):
        def forward(self, ids: Any, x: Any, images: Any) -> Any:
            weights = ids.float().softmax(-1)
            return (weights @ x).relu().sum(-1), images.float() / 255 - 0.5, torch.ones(3) * x[0, :3]

    given = torch.arange(12).view(3, 4), torch.randn(4, 5), torch.zeros(2, 2, dtype=torch.uint8)
    graph, _ = import_torch(Scaled().eval(), given)
    narrow = run(graph, PassContext(storage=lambda node: DType.FLOAT16))
    kinds = {
        n.op: n.outputs[0].spec.dtype for n in narrow if n.outputs[0].spec is not None and n.op != "cast"
    }
    assert {op: kinds[op] for op in ("softmax", "matmul", "sum")} == dict.fromkeys(
        ("softmax", "matmul", "sum"), DType.FLOAT16
    )
    casts = [n for n in narrow if n.op == "cast" and n.attrs["dtype"] is DType.FLOAT16]
    subtraction = next(n.name for n in graph if n.op == "sub")
    assert subtraction not in {value for cast in casts for value in cast.values}


class Choosing(nn.Module):
    """A residual stream, a router over it, and scores of a vocabulary."""

    def __init__(self, experts: int, words: int) -> None:
        super().__init__()
        self.layer, self.norm, self.router = nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, experts)
        self.experts = nn.Parameter(torch.randn(experts, 32))
        self.head = nn.Linear(32, words)

    def forward(self, x: Any) -> Any:
        x = x + self.layer(x).relu()
        scores = self.router(self.norm(x)).softmax(-1)
        weights, chosen = scores.topk(2)
        x = x + (self.experts[chosen] * weights.unsqueeze(-1)).sum(-2)
        return x, self.head(x).argmax(-1), chosen


def test_scores_that_are_chosen_among_stay_back_to_their_product() -> None:
    graph, _ = import_torch(Choosing(8, 2000).eval(), (torch.randn(5, 32),))
    narrow = run(graph, PassContext(storage=lambda node: DType.FLOAT16))
    products = [n.outputs[0].spec.dtype for n in narrow if n.op == "linear" and n.outputs[0].spec is not None]
    assert products == [DType.FLOAT16, DType.FLOAT32, DType.FLOAT16]  # the layer, the router, the vocabulary
    kinds = {n.op: n.outputs[0].spec.dtype for n in narrow if n.outputs[0].spec is not None}
    assert (kinds["softmax"], kinds["topk"], kinds["layer_norm"]) == (
        DType.FLOAT32,
        DType.FLOAT32,
        DType.FLOAT16,
    )


def test_choices_between_scores_that_a_narrow_type_makes_equal() -> None:
    """Scores that differ by less than a step of bfloat16: a rounded product would choose the first."""

    class Close(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Linear(16, 64, bias=True)
            with torch.no_grad():
                self.router.weight.zero_()
                self.router.bias.copy_(
                    1 + torch.randperm(64, generator=torch.Generator().manual_seed(0)) / 65536
                )

        def forward(self, x: Any) -> Any:
            return self.router(x).sigmoid().topk(5).indices

    x = torch.zeros(3, 16)
    model = Close().eval()
    policy = ExecutionPolicy(precision="bfloat16")
    with InferenceSession(model, example_inputs=(x,), engine="native", exec_policy=policy) as session:
        (got,) = session.run([x.numpy()]).values()
    np.testing.assert_array_equal(got, model(x).detach().numpy())
