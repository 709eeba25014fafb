"""Arguments of public functions: a value of another kind is an error that names the argument, instead of a failure deep inside.

check_argument("Executor", "program", program, CompiledProgram, "a CompiledProgram", "Give compile(graph), or CompiledProgram.load(path).")
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .errors import InputError

__all__ = [
    "MAX_THREADS",
    "check_argument",
    "check_count",
    "check_flag",
    "check_names",
    "check_several",
    "folder_or_file",
]

MAX_THREADS = 4096
"""The most CPU threads that a session may have: more exhaust a process instead of using its cores."""


def check_argument(who: str, name: str, value: object, kind: Any, words: str, do: str) -> None:
    """Raise InputError if an argument is not of a kind (a class, or several), which ``words`` says."""
    if not isinstance(value, kind):
        raise InputError(who, f"{name} must be {words}", got=repr(value)[:80], do=do)


def check_count(who: str, name: str, value: object, least: int = 1, most: int | None = None) -> int:
    """Return an argument that is a whole number of any type but bool. Raises InputError for another value, and outside the limits."""
    do = f"Give {least} or more." if most is None else f"Give {least} to {most}."
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = None
    if count is None or isinstance(value, bool):
        raise InputError(who, f"{name} must be a whole number", got=repr(value)[:80], do=do)
    if count < least or (most is not None and count > most):
        limit = f"at least {least}" if count < least else f"at most {most}"
        raise InputError(who, f"{name} must be {limit}", got=str(count)[:40], do=do)
    return count


def check_flag(who: str, name: str, value: object) -> bool:
    """Return an argument that is True or False, also of NumPy. Raises InputError for another value."""
    if not isinstance(value, bool) and type(value).__name__ not in ("bool", "bool_"):
        raise InputError(who, f"{name} must be True or False", got=repr(value)[:80], do="Give True or False.")
    return bool(value)


def check_several(who: str, name: str, value: object, words: str, do: str) -> tuple[Any, ...]:
    """Return the items of an argument that is iterable and no text. Raises InputError for another value."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise InputError(who, f"{name} must be {words}", got=repr(value)[:80], do=do)
    try:
        return tuple(value)
    except TypeError as error:  # such as an array without dims
        raise InputError(who, f"{name} must be {words}", got=repr(value)[:80], do=do) from error


def check_names(who: str, name: str, value: object, items: str) -> None:
    """Raise InputError if an argument is not a mapping from names to ``items``."""
    do = f"Give a mapping such as {{'x': ...}} from names to {items}."
    check_argument(who, name, value, Mapping, f"a mapping from names to {items}", do)


def folder_or_file(who: str, name: str, value: object) -> Path:
    """Return an argument that is a path. Raises InputError for another value, and for text with a NUL character."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        do = "Give text, or a pathlib.Path."
        raise InputError(who, f"{name} must be a path", got=repr(value)[:80], do=do)
    if "\0" in text:
        do = "Give a path without NUL characters."
        raise InputError(who, f"{name} contains a NUL character", got=repr(value)[:80], do=do)
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        do = "Give a path of characters that file names can have."
        raise InputError(who, f"{name} cannot be the name of a file", got=repr(value)[:80], do=do) from error
    return Path(text)
