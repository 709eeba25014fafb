"""Filtered interpolation of PyTorch: sizes, scale factors and aligned corners, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.torch_oracle import OfFunction, opaque, same  # noqa: E402

from xpuruntime.frontends.torch import import_torch  # noqa: E402

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
