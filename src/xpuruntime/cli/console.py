"""Output of the commands: results on stdout, notes and warnings on stderr, a progress line on stderr if that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import printable
from ..progress import Say, shown

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "join_sentences",
    "print_line",
    "print_note",
    "print_table",
    "print_text",
    "print_warning",
    "progress",
    "result_console",
    "save_json",
    "write_generated",
]

_PIPE_WIDTH = 200  # A pipe reports no width.


def result_console() -> Console:
    """Return the console for results. In a pipe it prints no colors and has a fixed width."""
    from rich.console import Console

    class ResultConsole(Console):
        def on_broken_pipe(self) -> None:
            """Raise the BrokenPipeError again: ``command`` knows the exit code, while Rich would exit with 1."""
            raise

    # Names of models may look like markup or like an emoji (``:name:``).
    console = ResultConsole(file=sys.stdout, highlight=False, soft_wrap=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def print_line(text: str = "") -> None:
    """Print one line on stdout, without markup, wrapping or control characters."""
    sys.stdout.write(printable.line(text) + "\n")


def print_text(text: str) -> None:
    """Print text of several lines on stdout. The caller escapes line ends in names."""
    sys.stdout.write(printable.text(text) + "\n")


def join_sentences(*parts: str) -> str:
    """Join parts into one line. A full stop is added to parts that end in none; empty parts are dropped."""
    return " ".join(p if p.endswith((".", "!", "?", ")")) else f"{p}." for p in parts if p)


def save_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document as a JSON file, atomically. Raises StoreError."""
    import json

    from ..storage.store import write_atomic

    write_atomic(path, json.dumps(document, indent=2).encode() + b"\n")


def write_generated(text: str) -> None:
    """Write generated text on stdout as it is; on a terminal, escape control characters."""
    sys.stdout.write(printable.text(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_note(text: str) -> None:
    """Print a note on stderr."""
    sys.stderr.write(printable.text(text) + "\n")


def print_warning(text: str) -> None:
    """Print a warning on stderr as one line."""
    sys.stderr.write(f"warning: {printable.line(text)}\n")


def print_table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[object]], *, right: Iterable[str] = ()
) -> None:
    """Print a table without a frame. Columns in ``right`` are right-aligned. Titles and cells are plain text, not markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    right_aligned = set(right)
    grid = Table(
        title=printable.line(title) or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        grid.add_column(column, justify="right" if column in right_aligned else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text("" if cell is None else printable.line(cell)) for cell in row))
    console = result_console()
    console.print(grid)
    console.print()


def progress(text: str) -> contextlib.AbstractContextManager[Say]:
    """Show a progress line on stderr at once if that is a terminal. The context is a function that changes its text."""
    return shown(text, after_s=0, redirects=True)
