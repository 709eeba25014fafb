"""Fixtures of the tests of frontends."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each decomposition of a PyTorch program was done call by call."""
    from xpuruntime.frontends.torch import decompose

    outcomes: list[bool] = []
    once = decompose.decomposed_once

    def recorded(*args: Any) -> Any:
        result = once(*args)
        outcomes.append(result is not None)
        return result

    monkeypatch.setattr(decompose, "decomposed_once", recorded)
    return outcomes
