"""Checks of values in a policy. Each takes a value and its path, and returns the normal form or raises Problem."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ...decisions import Reason
from ...env import parse_bytes
from ...targets import DEVICE_KINDS, DeviceId
from ...types import DType
from ..vocabulary import ENGINE_ALIASES, nearest
from . import pins
from .expression import Condition
from .record import FieldPath, Problem, shown

__all__ = [
    "boolean",
    "bound",
    "condition",
    "device",
    "dtype_word",
    "engine_name",
    "extents",
    "integer",
    "kernel_name",
    "mapping",
    "not_implemented",
    "option",
    "pattern",
    "seconds",
    "several",
    "size",
    "text",
    "word",
    "word_or_mapping",
    "words_by_key",
]

MAX_LIST = 64
MAX_TEXT = 500
NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
DOTTED = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}(\.[A-Za-z_][A-Za-z0-9_-]{0,63}){1,7}$"


def boolean(value: object, path: FieldPath) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise Problem(path, "must be true or false", got=shown(value))
    return value


def integer(low: int, high: int) -> Callable[[object, FieldPath], int]:
    """Return a check for an integer within bounds; 3.0 is accepted as 3."""

    def check(value: object, path: FieldPath) -> int:
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not is_whole or not low <= value <= high:  # type: ignore[operator]
            raise Problem(path, f"must be an integer from {low} to {high}", got=shown(value))
        return int(value)  # type: ignore[call-overload, no-any-return]

    return check


def seconds(value: object, path: FieldPath) -> float:
    """Check for a positive number of seconds, at most 1e6."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and 0 < value <= 1e6):  # type: ignore[operator, arg-type]
        raise Problem(path, "must be a positive number of seconds, at most 1e6", got=shown(value))
    return float(value)  # type: ignore[arg-type]


def bound(value: object, path: FieldPath) -> float:
    """Check for seconds from 0, at most 1e6."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    try:
        return seconds(value, path)
    except Problem as problem:
        do = "Give 10, for example, or 0 to turn it off."
        raise Problem(path, "must be a number of seconds from 0 to 1e6", got=problem.got, do=do) from None


SIZE_TEXT = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?( ?([KkMmGg]i?|[Tt]i)?[Bb])?")
SIZE_MAX = 2**53  # larger JSON numbers are not exact in every reader


def size(value: object, path: FieldPath) -> int:
    """Check for bytes: a number, or a text with a unit such as ``32 MiB``."""
    if not isinstance(value, str):
        return integer(0, SIZE_MAX)(value, path)
    with contextlib.suppress(ValueError):  # from parse_bytes: an unknown unit, or too large
        if SIZE_TEXT.fullmatch(value) and (size := parse_bytes(value)) <= SIZE_MAX:
            return size
    raise Problem(path, "must be bytes, such as 33554432 or '32 MiB'", got=shown(value))


def limit(value: object, path: FieldPath) -> int:
    """Check for bytes as ``size`` does, but at least one."""
    if (bytes_ := size(value, path)) < 1:
        do = "Leave it out for no limit."
        raise Problem(path, "must be at least one byte", got=shown(value), do=do)
    return bytes_


def text(value: object, path: FieldPath) -> str:
    """Check for one line of printable text, at most ``MAX_TEXT`` characters."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable() or len(value) > MAX_TEXT:
        raise Problem(path, f"must be one line of text, at most {MAX_TEXT} characters", got=shown(value))
    return value


def not_implemented(path: FieldPath, problem: str, value: object, available: Iterable[str]) -> Problem:
    """Return the problem of a valid word that this release does not implement. ``available``: the implemented words."""
    return Problem(
        path,
        f"{problem} ({Reason.NOT_IMPLEMENTED.value})",
        got=shown(value),
        do=f"Available: {', '.join(available)}.",
    )


def word(
    available: Iterable[str], noun: str, normal: Callable[[str], str] = str, not_available: Iterable[str] = ()
) -> Callable[[object, FieldPath], str]:
    """Return a check for one of the available words.

    normal: maps other spellings to the canonical one. not_available: valid words that this release does not implement.
    """
    names, not_available = tuple(available), tuple(not_available)

    def check(value: object, path: FieldPath) -> str:
        name = normal(value) if isinstance(value, str) else value
        if name in not_available:
            raise not_implemented(path, f"this release has no {noun} {name!r}", value, names)
        if name not in names:
            do = f"{nearest(value, names)}Known: {', '.join(names)}."
            raise Problem(path, f"no such {noun}", got=shown(value), do=do)
        return str(name)

    return check


# NumPy accepts further spellings ("f4", "i8", ">f2"). A policy accepts only names and these short names, so that it stays readable.
DTYPE_ALIASES = {
    a: DType.of(a).value
    for a in ("f16", "fp16", "half", "bf16", "f32", "fp32", "float", "f64", "fp64", "double")
}
DTYPE_NAMES = tuple(d.value for d in DType)


def dtype_word(
    available: Iterable[str], noun: str, not_available: Iterable[str] = ()
) -> Callable[[object, FieldPath], str]:
    """Return a check as ``word`` that also accepts short names of dtypes."""
    return word(available, noun, lambda name: DTYPE_ALIASES.get(name, name), not_available)


DEVICE_TEXT = re.compile(rf"({'|'.join(DEVICE_KINDS)})(:[0-9]{{1,4}})?")


def device(value: object, path: FieldPath) -> str:
    """Check a device and return its canonical spelling: ``cpu``, ``cuda:0``."""
    if isinstance(value, DeviceId):
        return str(value)
    if not isinstance(value, str) or not DEVICE_TEXT.fullmatch(value):
        do = f"{nearest(value, DEVICE_KINDS)}Known: {', '.join(DEVICE_KINDS)}, with :INDEX for any but the first one."
        raise Problem(path, "no such device", got=shown(value), do=do)
    return str(DeviceId.parse(value))


def condition(value: object, path: FieldPath) -> str:
    """Check a condition on a node's sizes (``expression``) and return its normal form."""
    if not isinstance(value, str):
        raise Problem(path, "must be a condition in quotes, such as 'M <= 16'", got=shown(value))
    try:
        return Condition.parse(value).text
    except ValueError as error:
        raise Problem(
            path, str(error), got=shown(value), do="Write for example 'M <= 16 and K % 8 == 0'."
        ) from None


def pattern(value: object, path: FieldPath) -> str:
    """Check a pattern of names: a text with wildcards, or a regular expression after ``re:``."""
    source = text(value, path)
    if source.startswith("re:"):
        try:
            re.compile(source[3:])
        except (re.error, RecursionError, OverflowError) as error:
            raise Problem(path, f"not a regular expression ({error})", got=shown(value)) from None
    return source


def kernel_name(value: object, path: FieldPath) -> str:
    """Check the form of a kernel name, or of a kernel with pins (``pins``). ``check_names`` later checks that the kernel exists."""
    if isinstance(value, Mapping):
        return _pinned(value, path)
    if isinstance(value, str) and "[" in value:
        kernel, values = pins.parted(value)
        if not values:
            raise Problem(
                path, "must be a kernel with pins, such as cublasLt[algorithm=21]", got=shown(value)
            )
        return _pinned({"kernel": kernel} | dict[Any, Any](values), path)
    well = isinstance(value, str) and (re.fullmatch(NAME, value) or re.fullmatch(DOTTED, value))
    if not well or value == "auto" or str(value).endswith("\n"):
        raise Problem(path, "must be a kernel name, such as cublasLt", got=shown(value))
    return str(value)


def _pinned(value: Mapping[object, object], path: FieldPath) -> str:
    if "kernel" not in value:
        do = "Write for example {kernel: cublasLt, algorithm: 21}."
        raise Problem(path, "a mapping must name its kernel", got=shown(dict(value)), do=do)
    kernel = kernel_name(value["kernel"], (*path, "kernel"))
    values = {str(k): v for k, v in value.items() if k != "kernel"}
    for name, problem, do in pins.problems(kernel, values):
        raise Problem((*path, name), problem, got=shown(values[name]), do=do)
    return pins.pinned(kernel, values)  # type: ignore[arg-type]


def engine_name(value: object, path: FieldPath) -> str:
    """Check the form of an engine name and return its canonical spelling. ``check_names`` later checks that the engine exists."""
    if not isinstance(value, str) or not re.fullmatch(NAME, value) or value.endswith("\n"):
        raise Problem(path, "must be an engine's name, such as onnxruntime", got=shown(value))
    return ENGINE_ALIASES.get(value, value)


def engine_place(value: object, path: FieldPath) -> str:
    """Check ``engine`` or ``engine on device``, and return it with the canonical spelling of both."""
    engine, on, where = value.partition(" on ") if isinstance(value, str) else (value, "", "")
    name = engine_name(engine, path)
    return f"{name} on {device(where, path)}" if on else name


def several(
    item: Callable[[object, FieldPath], Any], *, min_items: int = 1
) -> Callable[[object, FieldPath], tuple[Any, ...]]:
    """Return a check for one item or a list of distinct ones."""

    def check(value: object, path: FieldPath) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            return (item(value, path),)
        if not min_items <= len(value) <= MAX_LIST:
            raise Problem(
                path, f"must be one value or a list of {min_items} to {MAX_LIST} values", got=shown(value)
            )
        items = [item(v, (*path, i)) for i, v in enumerate(value)]
        for i, v in enumerate(items):
            if v in items[:i]:
                raise Problem((*path, i), "is listed twice", got=shown(v))
        return tuple(items)

    return check


def mapping(
    key: Callable[[object, FieldPath], str], value: Callable[[object, FieldPath], Any], description: str
) -> Callable[[object, FieldPath], MappingProxyType[str, Any]]:
    """Return a check for a mapping of checked keys to checked values, sorted by key. ``description`` names the mapping in messages."""

    def check(data: object, path: FieldPath) -> MappingProxyType[str, Any]:
        if not isinstance(data, Mapping) or len(data) > MAX_LIST:
            raise Problem(
                path, f"must be a mapping of {description}, at most {MAX_LIST} entries", got=shown(data)
            )
        entries: dict[str, Any] = {}
        for k, v in data.items():
            name = key(k, (*path, k) if isinstance(k, str) else path)
            if name in entries:
                raise Problem((*path, str(k)), f"is another spelling of {name!r}, which is already set")
            entries[name] = value(v, (*path, name))
        return MappingProxyType(dict(sorted(entries.items())))

    return check


def word_or_mapping(
    entries: Callable[[object, FieldPath], MappingProxyType[str, Any]], words: Mapping[str, Any], noun: str
) -> Callable[[object, FieldPath], MappingProxyType[str, Any]]:
    """Return a check for a mapping, or for one of its keys alone, which then has the value of ``words``."""

    def check(data: object, path: FieldPath) -> MappingProxyType[str, Any]:
        if isinstance(data, str):
            key = word(words, noun)(data, path)
            return MappingProxyType({key: words[key]})
        return entries(data, path)

    return check


def words_by_key(
    words: Mapping[str, Iterable[str]], noun: str, description: str
) -> Callable[[object, FieldPath], MappingProxyType[str, str]]:
    """Return a check for a mapping in which each known key has words of its own."""
    key = word(words, noun)
    by_key = {name: word(known, f"word of {name}") for name, known in words.items()}

    def value(data: object, path: FieldPath) -> str:
        return by_key[str(path[-1])](data, path)

    return mapping(key, value, description)


def extents(value: object, path: FieldPath) -> int | tuple[int, ...]:
    """Check the size of a symbolic dim, or the whole shape of an input."""
    if isinstance(value, int) and not isinstance(value, bool):
        return integer(0, 2**40)(value, path)
    if not isinstance(value, list | tuple) or len(value) > 16:
        raise Problem(
            path, "must be a size, or a list of at most 16 sizes such as [1, 3, 224, 224]", got=shown(value)
        )
    return tuple(integer(0, 2**40)(v, (*path, i)) for i, v in enumerate(value))


OPTION_MAX = 2**63


def option(value: object, path: FieldPath) -> str:
    """Check a vendor option, a number or one line of text, and return it as text."""
    if isinstance(value, bool):
        do = "Quote it as the vendor spells it, for example '1', 'YES' or 'true'."
        raise Problem(path, "must be a string or a number", got=shown(value), do=do)
    if isinstance(value, int | float) and abs(value) < OPTION_MAX:
        return repr(value)
    if isinstance(value, str) and value.isprintable() and len(value) <= MAX_TEXT:
        return value
    raise Problem(path, "must be a number, or one line of text", got=shown(value))
