"""PyTorch models with sizes that only a run knows: parts that read no value and still need such a size."""

from __future__ import annotations

from typing import Any

import pytest

import xpuruntime as xrt
from xpuruntime.compiler.partition.partitioner import partition

torch = pytest.importorskip("torch")


class Ones(torch.nn.Module):
    """A result that is made of a size alone."""

    def forward(self, x: Any) -> Any:
        chosen = x[x > 0]
        return torch.ones(chosen.shape[0]), chosen.sum()


class OnlySize(torch.nn.Module):
    """A size is read, and never the values that it counts. The other part of the native work comes before the count is known."""

    def forward(self, x: Any) -> Any:
        count = x[x > 0].shape[0]
        return torch.full((count,), 2.0) * x.exp().sum(), x.exp(), count


class Borders(torch.nn.Module):
    """Outputs that are a constant, an input, and one value twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Any) -> Any:
        places = torch.nonzero(x > 0)
        marks = torch.zeros(1, places.shape[0]) + 1
        return places, places, x, torch.ones(3), self.scale, marks, torch.zeros(places.shape[0], 0)


class AfterTwoCounts(torch.nn.Module):
    """A size of a second count that depends on the first."""

    def forward(self, x: Any) -> Any:
        first = x[x > 0]
        second = first[first < 1]
        return torch.zeros(second.shape[0], 2), torch.ones(first.shape[0] + second.shape[0]), x * 2


@pytest.mark.parametrize("module", [Ones, OnlySize, Borders, AfterTwoCounts])
def test_parts_without_inputs_wait_for_their_sizes(module: Any) -> None:
    model = module().eval()
    inputs = [torch.tensor([0.5, -1.0, 2.0, 0.1]), -torch.ones(4), torch.ones(4)]
    inputs.append(torch.tensor([float("nan"), float("inf"), 0.25, -0.0]))
    with xrt.InferenceSession(model, example_inputs=inputs[0], engine="native") as session:
        for x in inputs:
            got, want = list(session.run([x]).values()), model(x)
            assert len(got) == len(want)
            for ours, theirs in zip(got, want, strict=True):
                theirs = torch.as_tensor(theirs).detach()
                assert ours.shape == theirs.shape
                torch.testing.assert_close(
                    torch.as_tensor(ours), theirs, rtol=1e-6, atol=0, equal_nan=True, check_dtype=False
                )


def test_regions_run_after_those_that_decide_their_sizes() -> None:
    graph = xrt.extract_ir(OnlySize().eval(), torch.ones(4))
    plan = partition(graph, others=["interpreter"], absorb=False)
    home = {name: region for region, names in plan.members.items() for name in names}
    order = [r.id for r in plan.regions]
    (counted,) = graph.deciding.values()
    counting, filling = home[graph.producer(counted).name], home[graph.node("full").name]
    assert order.index(counting) < order.index(filling)
    assert counted in plan.plan.region(counting).outputs
    assert plan.size_sources()[filling] == (counted,)


class Rounded(torch.nn.Module):
    """A mask that float32 and float64 decide differently."""

    def forward(self, x: Any) -> Any:
        return x[(x + 1e-9) == x]


def test_the_self_check_compares_sizes_that_rounding_decides_in_the_models_own_precision() -> None:
    x = torch.tensor([1.0, 2.0, 0.0, 4.0])
    policy = xrt.ExecutionPolicy(self_check="always")
    with xrt.InferenceSession(
        Rounded(), example_inputs=x, engine="native", device="cpu", exec_policy=policy
    ) as session:
        assert session.run([x])["output"].tolist() == [1.0, 2.0, 4.0]
        (decision,) = (d for d in session.plan.decisions if d.question == "self_check")
        assert "(checked: " in decision.explain()


class CountedRange(torch.nn.Module):
    """A count that PyTorch's own ``arange`` takes as a number."""

    def forward(self, x: Any) -> Any:
        count = (x > 0).sum().clamp(min=1).item()
        return torch.arange(count) * 2, torch.full((count, 2), 1.5), x * 2


def test_a_number_that_a_run_computes_is_an_argument_of_pytorchs_operator() -> None:
    x = torch.tensor([0.5, -1.0, 2.0, 0.1])
    model = CountedRange().eval()
    with xrt.InferenceSession(model, example_inputs=x, device="cpu") as session:
        for run in (x, torch.ones(4), -torch.ones(4)):
            for ours, theirs in zip(session.run([run]).values(), model(run), strict=True):
                torch.testing.assert_close(torch.as_tensor(ours), theirs)
