"""NVTX ranges for NVIDIA's tools, enabled by the environment or by ``profiler.nvtx``. If disabled, a run checks one flag."""

from __future__ import annotations

import functools

from .. import _core, env
from ..errors import PolicyError
from .device import LibraryStatus, libraries, search

__all__ = ["LEVELS", "by_environment", "enable"]

LEVELS = ("", "runs", "calls")
"""Values of ``XPU_NVTX``: no ranges, one per run, or also one per kernel call (which launches each kernel separately, without a graph)."""


def enable(*, calls: bool = False) -> LibraryStatus:
    """Load NVTX if it is installed and enable ranges for this process. Return the library's status."""
    _core.nvtx_open(search("nvtx"))
    _core.nvtx_each_call(calls)
    return next(library for library in libraries(load=False) if library.name == "nvtx")


@functools.cache
def by_environment() -> None:
    """Enable ranges as ``XPU_NVTX`` says, once per process. Raises PolicyError for an unknown value."""
    level = env.get("XPU_NVTX")
    if level not in LEVELS:
        raise PolicyError(
            "environment XPU_NVTX",
            "must be runs or calls",
            got=repr(level),
            do="Unset it or set it to one of these.",
        )
    if level:
        enable(calls=level == "calls")
