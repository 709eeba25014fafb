"""Elements by their rank in a line: medians and the k-th smallest, against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from support.torch_oracle import OfFunction, opaque, same  # noqa: E402

import xpuruntime as xrt  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402

nan, inf = float("nan"), float("inf")
LINES = torch.tensor(
    [
        [3.0, 1.0, 2.0, 5.0, -4.0],
        [1.0, nan, 2.0, nan, 0.0],
        [nan, nan, nan, nan, nan],
        [inf, -inf, inf, 0.0, nan],
        [1.0, 0.0, inf, -inf, 7.0],
        [-0.0, 2.0, nan, 3.0, 9.0],
    ]
)
RANKED: tuple[tuple[int, Any], ...] = (
    (1, lambda x: x.median(-1)),
    (0, lambda x: x.median(0)),
    (0, lambda x: x.median(-2, keepdim=True)),
    (1, lambda x: x.nanmedian(-1)),
    (0, lambda x: x.nanmedian(0, keepdim=True)),
    (1, lambda x: x.kthvalue(1)),
    (1, lambda x: x.kthvalue(4, -1, keepdim=True)),
    (0, lambda x: x.kthvalue(3, 0)),
)


def computed(function: Any, x: Any) -> list[Any]:
    graph, weights = import_torch(OfFunction(function).eval(), x)
    assert not opaque(graph)
    return list(interp.run(graph, {v.name: x.numpy() for v in graph.inputs}, weights=weights).values())


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("dim", "function"), RANKED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64])
def test_values_are_pytorch_s_and_places_hold_them(dim: int, function: Any, dtype: Any) -> None:
    """Which of equal elements is named is open in PyTorch, too: NaN apart, the first of them."""
    x = LINES.to(dtype) if dtype.is_floating_point else (LINES.nan_to_num(0, 9, -9)).to(dtype)
    want = function(x)
    values, places = computed(function, x)
    np.testing.assert_array_equal(values, want.values.numpy())
    assert places.shape == tuple(want.indices.shape)
    lines = [1 if d == dim else size for d, size in enumerate(x.shape)]
    held = np.take_along_axis(x.numpy(), places.reshape(lines), dim)
    np.testing.assert_array_equal(held, values.reshape(lines))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dim", "function"), RANKED)
def test_places_of_lines_without_equals(dim: int, function: Any) -> None:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    same(function, x, others=[(-x,)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("shape", [(7,), (6,), (3, 4), (2, 3, 5), (1,), ()])
def test_of_all_elements(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    same(lambda x: (x.median(), x.nanmedian()), x)
    same(lambda x: tuple(x.median(0)), x)


def test_the_first_nan_is_named() -> None:
    x = torch.tensor([[1.0, nan, 2.0, nan], [nan, 0.0, nan, 1.0]])
    _, places = computed(lambda x: x.median(-1), x)
    assert places.tolist() == x.median(-1).indices.tolist() == [1, 0]


def test_lines_without_elements_are_refused() -> None:
    graph = xrt.extract_ir(OfFunction(lambda x: x.median()).eval(), torch.randn(0, 3))
    assert opaque(graph) == ["median: a dim of 0 elements is not supported"]
    same(lambda x: tuple(x.median(-1)), torch.randn(0, 3))


def test_on_native() -> None:
    module = OfFunction(lambda x: (*x.median(-1), *x.kthvalue(2, 0), x.nanmedian())).eval()
    x = torch.randn(9, 33, generator=torch.Generator().manual_seed(0))
    x[2, 3] = nan
    session = xrt.InferenceSession(module, engine="native", example_inputs=x)
    for mine, theirs in zip(session.run({"x": x.numpy()}).values(), module(x), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())
