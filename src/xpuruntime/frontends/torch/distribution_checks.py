"""Distributions of ``torch.distributions``, exported without the checks of their arguments.

By default each distribution checks its parameters and the values that it is asked for, and raises if they are out of range. ``torch.export`` cannot trace
a branch on the content of a tensor. A program does not raise where the module would, as with other assertions.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["distributions_unchecked"]

_ATTRIBUTE = "_validate_args"
"""The attribute of the class that says if distributions check their arguments."""


class _Checks:
    """The attribute's value during an export: as it was, except in the thread that exports."""

    def __init__(self, before: Any, thread: int) -> None:
        self.before, self.thread = before, thread

    def __bool__(self) -> bool:
        return threading.get_ident() != self.thread and bool(self.before)


@contextlib.contextmanager
def distributions_unchecked(torch: Any) -> Iterator[None]:
    """Have distributions check nothing in calls of this thread, unless they are created with ``validate_args=True``. The caller holds ``TRACING``."""
    base = getattr(getattr(torch, "distributions", None), "Distribution", None)
    if not hasattr(base, _ATTRIBUTE):
        yield
        return
    before = getattr(base, _ATTRIBUTE)
    checks = _Checks(before, threading.get_ident())
    setattr(base, _ATTRIBUTE, checks)
    try:
        yield
    finally:
        if getattr(base, _ATTRIBUTE) is checks:  # not set by somebody else meanwhile
            setattr(base, _ATTRIBUTE, before)
