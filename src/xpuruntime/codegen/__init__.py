"""Code generation: targets, and the writers of C++ and CUDA C++. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .target import CodegenTarget

__all__ = ["CodegenTarget"]

__getattr__, __dir__ = lazy_names(__name__, {"CodegenTarget": "xpuruntime.codegen.target"})
