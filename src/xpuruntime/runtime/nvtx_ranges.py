"""Ranges for NVIDIA's tools (NVTX): switched on by the environment, or by ``profiler.nvtx``. Off, a run pays one load and one branch."""

from __future__ import annotations

import functools

from .. import _core, env
from ..errors import PolicyError
from .device import LibraryStatus, libraries, search

__all__ = ["LEVELS", "by_environment", "enable"]

LEVELS = ("", "runs", "calls")
"""What ``XPU_NVTX`` may say: nothing, a range for each run, or one for each kernel call too (then launched one by one, in no graph)."""


def enable(*, calls: bool = False) -> LibraryStatus:
    """Load NVTX, if it is there, and switch ranges on for this process; ``calls``: one for each kernel call too. Says which file, or why not."""
    _core.nvtx_open(search("nvtx"))
    _core.nvtx_each_call(calls)
    return next(library for library in libraries(load=False) if library.name == "nvtx")


@functools.cache
def by_environment() -> None:
    """Do as ``XPU_NVTX`` says, once in a process. Raises PolicyError for a word that it does not know."""
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
