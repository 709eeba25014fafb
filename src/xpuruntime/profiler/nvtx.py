"""NVTX ranges and marks: names on the timeline of Nsight Systems and other tools that listen.

Nothing is loaded until :func:`enable`. Before it, and on machines without the library, each call costs a branch::

    nvtx.enable()
    with nvtx.range("prefill"):
        ...
"""

from __future__ import annotations

from types import TracebackType

from .. import _core
from ..runtime import device

__all__ = ["active", "enable", "mark", "range"]


def enable() -> device.LibraryStatus:
    """Load NVTX, if it is there, and switch ranges on for this process. Says which file, or why not."""
    _core.nvtx_open(device.search("nvtx"))
    return next(library for library in device.libraries(load=False) if library.name == "nvtx")


def active() -> bool:
    """Whether ranges go to a library."""
    return _core.nvtx_active()


def mark(name: str) -> None:
    """Set a mark at this moment."""
    _core.nvtx_mark(name)


class range:  # noqa: A001, N801 - the word that NVTX's users know
    """Name the enclosed block. ``depth`` is its nesting level from 0, negative when no tool listens."""

    __slots__ = ("_pushed", "depth", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.depth = -1
        self._pushed = False

    def __enter__(self) -> range:
        self._pushed = _core.nvtx_active()
        if self._pushed:
            self.depth = _core.nvtx_push(self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A range that began before enable() was never pushed; to pop it would end somebody else's.
        if self._pushed:
            _core.nvtx_pop()
