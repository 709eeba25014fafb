"""Filtered interpolation of PyTorch: sizes, scale factors and aligned corners, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, opaque, run_natively, same  # noqa: E402

from xpuruntime import InferenceSession  # noqa: E402
from xpuruntime.errors import ModelError  # noqa: E402
from xpuruntime.frontends.torch import import_torch  # noqa: E402
from xpuruntime.ir import interp  # noqa: E402

TO = [
    {"size": (8, 13)},
    {"size": (10, 20)},
    {"size": (1, 7)},
    {"scale_factor": (0.8, 1.0)},
    {"scale_factor": (0.55, 1.7)},
]


def resized(mode: str, aligned: bool, to: dict[str, Any]) -> Any:
    def function(x: Any) -> Any:
        return torch.nn.functional.interpolate(x, mode=mode, align_corners=aligned, antialias=True, **to)

    return function


@pytest.mark.sampled(4)
@pytest.mark.parametrize("to", TO, ids=str)
@pytest.mark.parametrize("aligned", [True, False], ids=["corners", "half pixels"])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_filters(mode: str, aligned: bool, to: dict[str, Any]) -> None:
    for size in ((2, 3, 10, 20), (1, 1, 12, 9), (1, 2, 1, 5)):
        one = to.get("size", (0,))[0] == 1 and aligned and size[2] > 1  # left to PyTorch
        if one or ("scale_factor" in to and size[2] == 1):
            continue
        x = torch.randn(*size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        same(resized(mode, aligned, to), x)


def test_aligned_corners_of_one_element_are_left_to_pytorch() -> None:
    graph, _ = import_torch(
        OfFunction(resized("bilinear", True, {"size": (1, 7)})).eval(), (torch.randn(1, 2, 6, 9),)
    )
    assert any("align_corners to one element" in text for text in opaque(graph))


INTERPOLATIONS: list[dict[str, Any]] = [
    {"scale_factor": 2, "mode": "bilinear"},
    {"scale_factor": 2, "mode": "bilinear", "align_corners": True},
    {"scale_factor": 2, "mode": "bicubic"},
    {"size": (5, 13), "mode": "bicubic", "align_corners": True},
    {"scale_factor": 0.5, "mode": "bilinear"},
    {"size": (3, 5), "mode": "bilinear", "antialias": True},
    {"size": (5, 4), "mode": "bicubic", "antialias": True},
    {"size": (13, 3), "mode": "bicubic", "antialias": True},
]


@pytest.mark.parametrize("place", [(0, 0), (5, 7), (2, 3), (0, 3)], ids=str)
def test_infinities_and_nan_reach_the_same_results(place: tuple[int, int]) -> None:
    """Taps of weight zero are read where PyTorch reads them, and only there."""

    def resizing(options: dict[str, Any]) -> Any:
        return lambda x: torch.nn.functional.interpolate(x, **options)

    functions = [resizing(options) for options in INTERPOLATIONS]
    for number in (torch.inf, torch.nan):
        x = torch.randn(1, 2, 6, 8, generator=torch.Generator().manual_seed(1))
        x[0, :, place[0], place[1]] = number
        native = run_natively(functions, x)
        for function, got in zip(functions, native, strict=True):
            want = function(x).numpy()
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
            graph, _ = import_torch(OfFunction(function).eval(), (x,))
            (exact,) = interp.run(graph, {graph.inputs[0].name: x.numpy()}).values()
            np.testing.assert_allclose(exact, want, rtol=1e-4, atol=1e-5)


class Resized(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A function of one tensor; ``dynamic_shapes`` name its dims."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("factor", [1.5, 2.0, 0.75])
@pytest.mark.parametrize("mode", ["nearest", "bicubic"])
def test_symbolic_sizes_times_an_exact_factor(mode: str, factor: float) -> None:
    """Only such sizes are dims. For others the ops of bicubic interpolation are opaque, and the outputs have no type."""

    def function(x: Any) -> Any:
        return torch.nn.functional.interpolate(x, scale_factor=factor, mode=mode)

    dim = torch.export.Dim
    dynamic = {"x": {2: dim("h", min=4), 3: dim("w", min=4)}}
    module = Resized(function).eval()
    graph, _ = import_torch(module, (torch.randn(1, 2, 7, 9),), dynamic_shapes=dynamic)
    assert [node.op for node in graph] == ["resize"]
    for size in ((7, 9), (4, 13), (10, 6)):
        x = torch.randn(1, 2, *size)
        y = interp.run(graph, {graph.inputs[0].name: x.numpy()})
        np.testing.assert_allclose(y["output"], function(x).numpy(), rtol=1e-4, atol=1e-5)


def test_symbolic_sizes_times_a_rounded_factor_are_refused_with_the_size() -> None:
    module = Resized(lambda x: torch.nn.functional.interpolate(x, scale_factor=1.7, mode="bicubic")).eval()
    dynamic = {"x": {2: torch.export.Dim("h", min=4)}}
    with pytest.raises(ModelError, match=r"output 'output'\] has a shape .* got .*the size TruncToInt\(1\.7"):
        InferenceSession(module, example_inputs=torch.randn(1, 2, 7, 9), dynamic_shapes=dynamic)
