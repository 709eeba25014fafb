"""Escaping of text from files for Markdown."""

from __future__ import annotations

from ...printable import line

__all__ = ["cell", "code"]


def cell(text: str) -> str:
    """Return text that Markdown shows as it is, in one cell of a table."""
    escaped = line(text).replace("\\", "\\\\")
    for char in "|`*_<>[]#":
        escaped = escaped.replace(char, "\\" + char)
    return escaped


def code(text: str) -> str:
    """Return text for a code span in a cell of a table."""
    return line(text).replace("`", "'").replace("|", "\\|")
