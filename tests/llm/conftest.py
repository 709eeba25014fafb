"""Fixtures: a reference by transformers, and ours over the same memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from xpuruntime.llm import Generator
from xpuruntime.testing.conformance.seeded.decoders import reference


@pytest.fixture(scope="session", params=["qwen2", "llama"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Generator]]:
    """A reference and ours."""
    model = reference(request.param)
    with Generator(model, capacity=256, buckets=(8, 32)) as ours:
        yield model, ours
