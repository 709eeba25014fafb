"""Model libraries as modules with ``names()`` and ``build(name)``, imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

__all__ = ["SOURCES", "build", "installed", "names_of"]

_HERE = __name__.rpartition(".")[0]
SOURCES: Mapping[str, str] = {
    "timm": f"{_HERE}.from_timm",
    "torchvision": f"{_HERE}.from_torchvision",
    "transformers": f"{_HERE}.from_transformers",
}
"""Modules by library."""


def installed(source: str) -> str:
    """Return why a library is unavailable, or an empty text."""
    package = source if source in SOURCES else source.partition(".")[0]
    return "" if find_spec(package) is not None else f"needs the Python package {package}"


def names_of(source: str) -> list[str]:
    """Return one network of each architecture family."""
    return list(_module(source).names())


def build(source: str, name: str, batch: int) -> tuple[Any, tuple[Any, ...]]:
    """Return a module in evaluation mode with seeded weights, and seeded example inputs. Raises the library's errors."""
    module, inputs = _module(source).build(name, batch)
    return module, inputs


def _module(source: str) -> Any:
    return import_module(SOURCES.get(source, source))
