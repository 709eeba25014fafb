"""NVTX ranges and marks: names on the timeline of Nsight Systems and other tools that listen.

Nothing is loaded before :func:`enable`. Before it, and on machines without the library, each call only checks a flag::

    nvtx.enable()
    with nvtx.range("prefill"):
        ...

While they are on, every run of a compiled program has one, under the program's name; with ``calls=True`` every kernel call too, under the
kernel's and its node's. ``XPU_NVTX=runs`` and ``XPU_NVTX=calls`` enable them from the environment.
"""

from __future__ import annotations

from types import TracebackType

from .. import _core
from ..runtime.nvtx_ranges import enable

__all__ = ["active", "enable", "mark", "range"]


def active() -> bool:
    """Return True if ranges are sent to a library."""
    return _core.nvtx_active()


def mark(name: str) -> None:
    """Set a mark at this moment."""
    _core.nvtx_mark(name)


class range:  # noqa: A001, N801 - the word that NVTX's users know
    """A named range around the enclosed block. ``depth`` is its nesting level from 0, negative if no tool listens."""

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
        # A range that began before enable() was never pushed; popping it would end another range.
        if self._pushed:
            _core.nvtx_pop()
