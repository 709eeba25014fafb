"""Whole foreign suites run where they are asked for by marker (``-m conformance``); their stratified tenth always runs."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "conformance" in (config.option.markexpr or ""):
        return
    whole = [item for item in items if item.get_closest_marker("conformance")]
    if whole:
        config.hook.pytest_deselected(items=whole)
        items[:] = [item for item in items if item not in whole]
