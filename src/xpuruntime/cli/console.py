"""Where text goes and what tables look like: results on stdout, everything else on stderr, progress only on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from .. import printable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["note", "out", "page", "progress", "say", "sentences", "table", "warn"]

_PIPE_WIDTH = 200  # a pipe has no width; tables there are not squeezed


def out() -> Console:
    """The console for results. In a pipe it has no colours and is wide."""
    from rich.console import Console

    class OwnConsole(Console):
        def on_broken_pipe(self) -> None:
            """Called where the error is handled: pass it on, since ``verb`` knows the exit code (Rich would exit with 1)."""
            raise

    console = OwnConsole(file=sys.stdout, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def say(text: str = "") -> None:
    """Print one plain line on stdout: no markup, no wrapping, no control characters."""
    sys.stdout.write(printable.line(text) + "\n")


def page(text: str) -> None:
    """Print lines that were made one by one, so that no name in them holds a line end."""
    sys.stdout.write(printable.text(text) + "\n")


def sentences(*parts: str) -> str:
    """Parts as sentences of one line: each ends with a full stop, empty ones are left out."""
    return " ".join(p if p.endswith((".", "!", "?", ")")) else f"{p}." for p in parts if p)


def note(text: str) -> None:
    """A remark on stderr."""
    sys.stderr.write(printable.text(text) + "\n")


def warn(text: str) -> None:
    """A warning on stderr, one line."""
    sys.stderr.write(f"warning: {printable.line(text)}\n")


def table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], *, right: Iterable[str] = ()
) -> None:
    """Print a table without frames; columns named in ``right`` are numbers. Cells are text, never markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    numbers = set(right)
    grid = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for column in columns:
        grid.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text("" if cell is None else printable.line(cell)) for cell in row))
    console = out()
    console.print(grid)
    console.print()


@contextlib.contextmanager
def progress(text: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done, on a terminal only; the yielded function changes its text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(printable.line(text))) as status:
        yield lambda now: status.update(Text(printable.line(now)))
