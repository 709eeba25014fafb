"""Foreign text files: bounded reading, and errors that name line and column."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import PolicyError
from ...storage.files import read_regular

__all__ = ["MAX_ITEMS", "SourceText", "read_text"]

MAX_BYTES = 1 << 20
MAX_ITEMS = 10_000
"""Items of one file. A policy holds at most 1000 rules."""


@dataclass(frozen=True, slots=True)
class SourceText:
    """A text with its name and the offsets of its line ends."""

    name: str
    text: str
    breaks: list[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "breaks", [m.start() for m in re.finditer("\n", self.text)])

    def at(self, offset: int) -> tuple[int, int]:
        """Return line and column, from 1, of an offset."""
        line = bisect.bisect_left(self.breaks, offset)
        return line + 1, offset - (self.breaks[line - 1] if line else -1)

    def error(self, offset: int, what: str, *, got: object = None, do: str = "") -> PolicyError:
        """Return the error for a place of the text."""
        line, column = self.at(offset)
        shown = None if got is None else repr(str(got)[:80])
        return PolicyError(f"{self.name}:{line}:{column}", what, got=shown, do=do)


def read_text(path: Path) -> SourceText:
    """Read a UTF-8 file of at most 1 MiB. Raises PolicyError."""
    try:
        raw = read_regular(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise PolicyError(
            str(path), "cannot be read", got=reason, do="Check the path and its size."
        ) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        raise PolicyError(
            f"{path}:{line}:{column}", "is not UTF-8 text", got=error.reason, do="Save it as UTF-8."
        ) from None
    source = SourceText(str(path), text)
    if "\0" in text:
        raise source.error(text.index("\0"), "holds a zero character", do="Give a text file.")
    return source
