"""One small network for each module of timm."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["build", "names"]

_SMALL = re.compile(r"(tiny|nano|atto|femto|pico|xxs|_xs|small|_s\b|_s_|18|b0|_0|050|032|002|zero)")
_LARGEST = 256


def names() -> list[str]:
    """Return the shortest name of a small network in each module."""
    import timm  # type: ignore[import-not-found, unused-ignore]

    names = []
    for module in timm.list_modules():
        if models := timm.list_models(module=module):
            small = [n for n in models if _SMALL.search(n)] or models
            names.append(min(small, key=lambda n: (len(n), n)))
    return names


def build(name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Return the network, and images of its own size up to 256."""
    import timm
    import torch

    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False).eval()
    channels, height, width = model.default_cfg["input_size"]
    if height > _LARGEST and not model.default_cfg.get("fixed_input_size"):
        height = width = _LARGEST
    return model, (torch.randn(batch, channels, height, width),)
