"""Arguments of public functions: a value of another kind is an error that names the argument, instead of a failure deep inside.

check_argument("Executor", "program", program, CompiledProgram, "a CompiledProgram", "Give compile(graph).")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import InputError

__all__ = ["check_argument", "check_count", "check_names", "folder_or_file"]


def check_argument(who: str, name: str, value: object, kind: Any, words: str, do: str) -> None:
    """Raise InputError if an argument is not of a kind (a class, or several), which ``words`` says. A bool is not a number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise InputError(who, f"{name} must be {words}", got=repr(value)[:80], do=do)


def check_count(who: str, name: str, value: object, least: int = 1) -> None:
    """Raise InputError if an argument is not a whole number from ``least``."""
    check_argument(who, name, value, int, "a whole number", f"Give {least} or more.")
    if isinstance(value, int) and value < least:
        raise InputError(who, f"{name} must be at least {least}", got=value, do=f"Give {least} or more.")


def check_names(who: str, name: str, value: object, items: str) -> None:
    """Raise InputError if an argument is not a mapping from names to ``items``."""
    do = f"Give a mapping such as {{'x': ...}} from names to {items}."
    check_argument(who, name, value, Mapping, f"a mapping from names to {items}", do)


def folder_or_file(who: str, name: str, value: object) -> Path:
    """Return an argument that is a path. Raises InputError for another value, and for text with a NUL character."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str) or "\0" in text:
        raise InputError(
            who, f"{name} must be a path", got=repr(value)[:80], do="Give text, or a pathlib.Path."
        )
    return Path(text)
