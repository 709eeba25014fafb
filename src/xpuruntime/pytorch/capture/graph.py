"""capture_graph: one entry for the block form and the fast form, a function whose calls become one graph launch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, overload

import torch

from ...printable import logger
from .obstacles import Obstacle, watched
from .step import CapturedStep

__all__ = ["CaptureRegion", "capture_graph"]

_Result = TypeVar("_Result")
_log = logger("xpuruntime.pytorch")
_CHECKED_ENTRIES = 2
"""The first entries of a block allocate optimizer state and compile programs; the second shows what every later one does."""


class CaptureRegion:
    """A block whose work could be one CUDA graph.

    Python cannot skip the body of a ``with``, so the body runs as it is, each time, and launches its kernels one by one. The block costs
    nothing but a check of its second entry: ``obstacles`` lists what keeps it from being captured, with source lines and remedies.
    ``capture_graph(step)`` captures the same work as a function.
    """

    _entries: dict[tuple[str, int], int] = {}  # noqa: RUF012  - of the process: each place in the source is checked once
    _obstacles: dict[tuple[str, int], tuple[Obstacle, ...]] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self._place = ("", 0)
        self._watch: Any = None

    @property
    def obstacles(self) -> tuple[Obstacle, ...]:
        """Return what keeps this block from being captured; empty before its second entry has ended."""
        return self._obstacles.get(self._place, ())

    def __enter__(self) -> CaptureRegion:
        frame = sys._getframe(1)
        self._place = (frame.f_code.co_filename, frame.f_lineno)
        entries = self._entries[self._place] = self._entries.get(self._place, 0) + 1
        if entries == _CHECKED_ENTRIES and torch.cuda.is_available():
            self._watch = watched()
            self._found = self._watch.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watch is None:
            return
        self._watch.__exit__(kind, error, trace)
        self._watch = None
        self._obstacles[self._place] = tuple(self._found)
        for obstacle in self._found:
            _log.warning("capture_graph at %s:%d: %s", *self._place, obstacle)


@overload
def capture_graph() -> CaptureRegion: ...
@overload
def capture_graph(
    step: Callable[..., _Result], *, warmup: int = ..., max_graphs: int = ...
) -> CapturedStep: ...
def capture_graph(
    step: Callable[..., Any] | None = None, *, warmup: int = 3, max_graphs: int = 8
) -> CaptureRegion | CapturedStep:
    """Capture a training step as a CUDA graph.

    ``step = capture_graph(step_fn)`` returns a function. Its first ``warmup`` calls of a signature run eagerly, the next one captures, and
    every later one is one graph launch. Each call is one training step, whichever way it runs. The tensors that it returns and the
    gradients that it leaves are the same objects each time, overwritten by the next call. New shapes, numbers or optimizer settings are
    captured again, at most ``max_graphs`` at a time: the graph that was not used for the longest is dropped. A step that cannot be
    captured runs eagerly; ``step.report`` says why, with the source line and the remedy.

    ``with capture_graph():`` runs its block eagerly and reports what would keep it from being captured: see ``CaptureRegion``.
    """
    if step is None:
        return CaptureRegion()
    captured = CapturedStep(step, warmup=warmup, max_graphs=max_graphs)
    functools.update_wrapper(captured, step)
    return captured
