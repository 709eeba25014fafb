"""One network of each builder module of torchvision: classification, segmentation, video and detection."""

from __future__ import annotations

from typing import Any

__all__ = ["build", "names"]


def names() -> list[str]:
    """Return the shortest name in each module."""
    import torchvision  # type: ignore[import-not-found, unused-ignore]

    first: dict[str, str] = {}
    for name in sorted(torchvision.models.list_models(), key=lambda n: (len(n), n)):
        first.setdefault(torchvision.models.get_model_builder(name).__module__, name)
    return sorted(first.values())


def build(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Return the network, and images of 224 (clips of 8 small images for video)."""
    import torch
    import torchvision

    torch.manual_seed(0)
    builder = torchvision.models.get_model_builder(name)
    options = (
        {"weights_backbone": None}
        if "segmentation" in builder.__module__ or "detection" in builder.__module__
        else {}
    )
    model = builder(weights=None, **options).eval()
    if "video" in builder.__module__:
        return model, (torch.randn(batch, 3, 16, 112, 112),)
    if "optical_flow" in builder.__module__:
        return model, (torch.randn(batch, 3, 128, 128), torch.randn(batch, 3, 128, 128))
    size = 299 if "inception" in name else 224
    return model, (torch.randn(batch, 3, size, size),)
