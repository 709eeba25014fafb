"""Every bridge by name: an OpInfo's name, or a new one if one OpInfo serves several ops."""

from __future__ import annotations

from . import gradients, movement, norms, places, pointwise, products, reductions, sampling, windows
from .bridge import Bridge

__all__ = ["BRIDGES"]

_FILES = (pointwise, reductions, products, windows, norms, movement, places, sampling, gradients)

BRIDGES: dict[str, Bridge] = {name: bridge for file in _FILES for name, bridge in file.BRIDGES.items()}
