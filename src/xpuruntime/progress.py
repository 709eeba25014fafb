"""Progress of long work: the step that runs now, for a function of the caller, or as one line on the terminal.

    with shown("opening resnet", "resnet") as say:      # a line on stderr once it takes longer than 2 s, if that is a terminal
        say("exporting with PyTorch")
        compile(...)                                    # calls step("compiling 12 binaries")

Work inside other work changes the line of the outermost one. Without a terminal, or with ``XPU_PROGRESS=off``, nothing is written.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from . import env, printable
from .faults import foreign

__all__ = ["AFTER_S", "Say", "shown", "step"]

AFTER_S = 2.0
"""Seconds after which the work of a Python program has a line on the terminal."""
Say = Callable[[str], None]
"""Takes the text of a step. Any thread may call it."""
_terminal = threading.Lock()  # held by the work whose line is on the terminal
_reporter: ContextVar[Say | None] = ContextVar("xpuruntime progress", default=None)


def step(text: str) -> None:
    """Name the step that begins now, to whoever shows the progress of this thread's work."""
    reporter = _reporter.get()
    if reporter is not None:
        reporter(text)


@contextlib.contextmanager
def shown(
    text: str,
    subject: str = "",
    on_progress: Callable[[str], object] | None = None,
    after_s: float = AFTER_S,
    *,
    redirects: bool = False,
) -> Iterator[Say]:
    """Show the progress of the work inside the block, and yield a function that names its steps, as ``step`` does.

    text:        what the line says before the first step. subject: what it says before each step.
    on_progress: receives the text of each step instead. Its exceptions pass unchanged.
    redirects:   while there is a line, what is printed on stdout and stderr appears above it.
    """
    outer = _reporter.get()
    with contextlib.ExitStack() as stack:
        if on_progress is not None:
            say: Say = _users(on_progress)
        elif outer is not None:
            say = _with_subject(outer, subject)
        elif _shows() and _terminal.acquire(blocking=False):
            stack.callback(_terminal.release)
            line = _TerminalLine(text, after_s, redirects)
            stack.callback(line.close)
            say = _with_subject(line.set, subject)
        else:
            say = _ignored
        token = _reporter.set(say)
        stack.callback(_reporter.reset, token)
        if outer is not None and on_progress is None:
            outer(text)
        yield say


def _shows() -> bool:
    """Return whether stderr is a terminal. A replaced stream may lack ``isatty``, and a closed one raises ValueError."""
    if env.get("XPU_PROGRESS") == "off":
        return False
    try:
        return bool(sys.stderr.isatty())
    except (AttributeError, ValueError):
        return False


def _ignored(text: str) -> None:
    """Show nothing."""


def _with_subject(say: Say, subject: str) -> Say:
    return (lambda text: say(f"{subject}: {text}")) if subject else say


def _users(function: Callable[[str], object]) -> Say:
    """Return a user's function whose exceptions pass unchanged."""

    def call(text: str) -> None:
        with foreign():
            function(text)

    return call


class _TerminalLine:
    """A line on stderr that appears after some seconds and is removed at the end."""

    def __init__(self, text: str, after_s: float, redirects: bool) -> None:
        self._text, self._redirects = text, redirects
        self._lock = threading.Lock()
        self._closed = False
        self._live: Any = None
        self._spinner: Any = None
        self._timer = threading.Timer(after_s, self._show)
        self._timer.daemon = True
        if after_s > 0:
            with contextlib.suppress(RuntimeError):  # at the limit of threads, no line appears
                self._timer.start()
        else:
            self._show()

    def set(self, text: str) -> None:
        """Change the text."""
        with self._lock:
            self._text = text
            if self._spinner is not None:
                self._spinner.update(text=self._rendered())

    def close(self) -> None:
        """Remove the line."""
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._live is not None:
                self._live.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        with self._lock:
            if self._closed:
                return
            self._spinner = Spinner("dots", text=self._rendered(), style="status.spinner")
            self._live = Live(
                self._spinner,
                console=Console(stderr=True),
                refresh_per_second=12.5,
                transient=True,
                redirect_stdout=self._redirects,
                redirect_stderr=self._redirects,
            )
            self._live.start()

    def _rendered(self) -> Any:
        from rich.text import Text

        return Text(printable.line(self._text))
