"""Lazy package exports: a name is imported when it is first read.

    __getattr__, __dir__ = lazy_names(__name__, {"InferenceSession": "xpuruntime.inference.session"})

A package may also export a name that is defined in a higher package, for the user's convenience. Code inside xpuruntime imports from
the defining module.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package.

    names: the dotted module that defines each public name. A name of a submodule maps to that submodule.
    """

    def load(name: str) -> Any:
        module = names.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        loaded = importlib.import_module(module)
        value = loaded if module == f"{package}.{name}" else getattr(loaded, name)
        vars(sys.modules[package])[name] = value
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return load, listed
