"""Logits of a decoder next to those of transformers."""

from __future__ import annotations

from typing import Any

import numpy as np

from xpuruntime.llm import Generator
from xpuruntime.testing.conformance.seeded.decoders import logits_of, prompt

from .device_under_test import device_name

__all__ = ["check_logits"]

_LIMIT = 1e-4
"""The largest accepted difference, as a share of the largest logit."""


def check_logits(source: Any, module: Any, count: int = 30) -> None:
    """Check the logits of a model that Generator opens: those of prefill, and of each step. ``module``: the same one in transformers."""
    tokens = prompt(count)
    want = logits_of(module, tokens)
    with Generator(source, capacity=64, buckets=(16,), device=device_name()) as ours:
        read = ours.read(tokens)[0].copy()
        steps = np.stack([ours.step(t, i)[0].copy() for i, t in enumerate(tokens)])
    for logits, expected in ((steps, want), (read, want[-1])):
        assert abs(logits - expected).max() < _LIMIT * abs(want).max()
