"""Writes that reduce, against PyTorch: means, 16-bit floats, one index for a whole slice."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.ir import OPS, interp  # noqa: E402
from xpuruntime.passes import run_passes  # noqa: E402
from xpuruntime.policies import ExecutionPolicy  # noqa: E402

nn = torch.nn


class Scatter(nn.Module):
    def __init__(self, how: str, include_self: bool) -> None:
        super().__init__()
        self.how, self.include_self = how, include_self

    def forward(self, x: Any, index: Any, source: Any) -> Any:
        rows = x.index_reduce(0, index[:, 0], source, self.how, include_self=self.include_self)
        return x.scatter_reduce(0, index, source, self.how, include_self=self.include_self), rows


class Added(nn.Module):
    def forward(self, x: Any, index: Any, source: Any) -> Any:
        y = x.clone()
        y.index_put_((index[:, 0],), source, accumulate=True)
        return x.scatter_add(0, index, source), y


def operands(dtype: Any) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(3)
    index = torch.tensor([[0, 4, 2], [0, 0, 2], [3, 0, 2], [0, 1, 4]])
    if not dtype.is_floating_point:
        return torch.randint(-9, 9, (5, 3), generator=generator), index, torch.arange(12).view(4, 3) - 5
    return (
        torch.randn(5, 3, generator=generator).to(dtype),
        index,
        torch.randn(4, 3, generator=generator).to(dtype),
    )


def compared(model: Any, args: tuple[Any, ...], tolerance: float) -> None:
    session = xrt.InferenceSession(model, example_inputs=args, engine="native")
    outputs = session.run(dict(zip([i.name for i in session.get_inputs()], args, strict=True)))
    with torch.no_grad():
        want = model(*args)
    for mine, theirs in zip(outputs.values(), want, strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.allclose(mine.double(), theirs.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_means_of_elements_that_meet(dtype: Any, include_self: bool) -> None:
    compared(Scatter("mean", include_self).eval(), operands(dtype), 2e-3 if dtype is torch.float16 else 1e-6)


@pytest.mark.parametrize("how", ["prod", "amax", "amin"])
def test_slices_that_meet(how: str) -> None:
    compared(Scatter(how, include_self=True).eval(), operands(torch.float32), 1e-6)


def test_sums_of_16_bits() -> None:
    compared(Added().eval(), operands(torch.bfloat16), 2e-2)


def test_a_sum_keeps_float32_where_a_policy_stores_16_bits() -> None:
    args = operands(torch.float32)
    session = xrt.InferenceSession(
        Added().eval(),
        example_inputs=args,
        engine="native",
        exec_policy=ExecutionPolicy(precision="float16"),
    )
    outputs = session.run(dict(zip([i.name for i in session.get_inputs()], args, strict=True)))
    for mine, theirs in zip(outputs.values(), Added()(*args), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-2)


def test_the_expansion_of_a_mean_is_exact_for_many_equal_indices() -> None:
    """2,100 halves: float16 counts to 2,048 only."""
    args = (torch.zeros(1, 1).half(), torch.zeros(2100, 1, dtype=torch.int64), torch.ones(2100, 1).half())
    graph, weights = import_torch(Scatter("mean", include_self=False).eval(), args)
    small = run_passes(graph, ["decompose"])
    assert not any(n.attrs.get("reduce") == "mean" for n in small.nodes if n.op in OPS)
    feeds = dict(zip([v.name for v in small.inputs], (a.numpy() for a in args), strict=True))
    for y in interp.run(small, feeds, weights=weights).values():
        np.testing.assert_array_equal(y, np.ones((1, 1), np.float16))
