"""C++ for CPUs: the target, instruction-set levels, and compilers of this machine. Public names load on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import lazy_names

if TYPE_CHECKING:
    from .target import CppTarget, cpu_target

__all__ = ["CppTarget", "cpu_target"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CppTarget": "xpuruntime.codegen.cpp.target",
        "cpu_target": "xpuruntime.codegen.cpp.target",
    },
)
