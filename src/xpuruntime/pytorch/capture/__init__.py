"""CUDA graphs of training steps.

graph.py       capture_graph: a block, or a function whose calls become one graph launch
step.py        CapturedStep: warm-up, capture and replay per signature
signature.py   what a graph was captured for: shapes, numbers, gradients and optimizer settings
obstacles.py   what cannot be captured: synchronizing calls and optimizers, with source line and remedy
"""

from __future__ import annotations

from .graph import capture_graph

__all__ = ["capture_graph"]
