"""Kinds of fields of the program file. Each reads, writes, and has a JSON Schema.

A record is a dataclass with a kind per field; a field with its default value is not written. Reading is strict: exact types, bounded
lengths, no unknown fields (unless the file's minor version is newer, see ``file``). Errors name the path: ``entries[0].plans[1].batch``.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .segment import Segment

__all__ = [
    "FLAG", "MAX_SIZE", "TEXT", "Bad", "Kind", "Reading", "SegmentWriter", "choice", "integer", "listed", "mapping", "optional", "record",
    "short", "text",
]  # fmt: skip

MAX_TEXT = 1 << 16
MAX_ITEMS = 1 << 22
MAX_SIZE = 1 << 48
"""Limit of bytes or elements of anything in a program."""


class Bad(ValueError):
    """A value that violates the format. ``path`` locates it in the manifest; each enclosing value adds its step."""

    def __init__(self, problem: str, path: str = "") -> None:
        self.problem, self.path = problem, path
        super().__init__(problem)

    def within(self, step: str) -> Bad:
        """Return the same error with the path from one level up."""
        joined = f"{step}{self.path}" if self.path.startswith("[") or not self.path else f"{step}.{self.path}"
        return Bad(self.problem, joined)

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


@dataclass(slots=True)
class Reading:
    """State of reading: the segments, and if unknown fields are ignored."""

    segments: Sequence[Segment]
    lenient: bool = False
    used: set[int] = field(default_factory=set)


@dataclass(slots=True)
class SegmentWriter:
    """State of writing: segments in order of first use. Equal bytes share a segment."""

    segments: list[Segment] = field(default_factory=list)
    index: dict[bytes, int] = field(default_factory=dict)
    digest: Callable[[memoryview], bytes] = field(kw_only=True)

    def add(self, data: bytes | Segment) -> int:
        """Return the index of the segment that holds the bytes, adding one if needed."""
        segment = data if isinstance(data, Segment) else Segment(data)
        key = self.digest(segment.view())
        if key not in self.index:
            self.index[key] = len(self.segments)
            self.segments.append(segment)
        return self.index[key]


@dataclass(frozen=True, slots=True)
class Kind:
    """The type of a field: how it is read from JSON, written to JSON, and described. Both directions raise Bad for invalid values."""

    read: Callable[[Any, Reading], Any]
    write: Callable[[Any, SegmentWriter], Any]
    schema: Mapping[str, Any]


_NOTHING = Reading(())
"""The reading state of writers, which refuse what their reader would refuse."""


def _as_is(value: Any, _: SegmentWriter) -> Any:
    return value


def short(value: Any) -> str:
    """Return a short text of a value for messages."""
    return repr(value)[:60]


# ── one value ──


def integer(minimum: int, maximum: int) -> Kind:
    """Return the kind of an integer within bounds."""

    def read(value: Any, _: Reading) -> int:
        if type(value) is not int or not minimum <= value <= maximum:
            raise Bad(f"must be an integer from {minimum} to {maximum}, got {short(value)}")
        return value

    def write(value: Any, _: SegmentWriter) -> Any:
        return read(value, _NOTHING)

    return Kind(read, write, {"type": "integer", "minimum": minimum, "maximum": maximum})


def text(min_length: int = 0, max_length: int = MAX_TEXT) -> Kind:
    """Return the kind of a text of bounded length that UTF-8 can encode."""

    def read(value: Any, _: Reading) -> str:
        if type(value) is not str or not min_length <= len(value) <= max_length:
            raise Bad(f"must be text of {min_length} to {max_length} characters, got {short(value)}")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Bad(f"is not valid Unicode text: {short(value)}") from error
        return value

    def write(value: Any, _: SegmentWriter) -> str:
        return read(str(value), _NOTHING) if isinstance(value, str) else read(value, _NOTHING)

    return Kind(read, write, {"type": "string", "minLength": min_length, "maxLength": max_length})


TEXT = text()


def _read_flag(value: Any, _: Reading) -> bool:
    if type(value) is not bool:
        raise Bad(f"must be true or false, got {short(value)}")
    return value


FLAG = Kind(_read_flag, _as_is, {"type": "boolean"})


def choice(values: type[enum.StrEnum]) -> Kind:
    """Return the kind of one word of an enumeration."""

    def read(value: Any, _: Reading) -> enum.StrEnum:
        try:
            return values(value)
        except ValueError as error:
            raise Bad(f"must be one of {', '.join(values)}, got {short(value)}") from error

    return Kind(read, lambda value, _: value.value, {"enum": [v.value for v in values]})


# ── many ──


def listed(kind: Kind, min_items: int = 0, max_items: int = MAX_ITEMS) -> Kind:
    """Return the kind of a tuple, in JSON an array."""

    def read(value: Any, context: Reading) -> tuple[Any, ...]:
        if type(value) is not list or not min_items <= len(value) <= max_items:
            raise Bad(f"must be a list of {min_items} to {max_items} items, got {short(value)}")
        return tuple(_at(f"[{i}]", kind.read, v, context) for i, v in enumerate(value))

    def write(value: Sequence[Any], writing: SegmentWriter) -> list[Any]:
        if not min_items <= len(value) <= max_items:
            raise Bad(f"must have {min_items} to {max_items} items, got {len(value)}")
        return [_at(f"[{i}]", kind.write, v, writing) for i, v in enumerate(value)]

    return Kind(
        read, write, {"type": "array", "items": kind.schema, "minItems": min_items, "maxItems": max_items}
    )


def mapping(kind: Kind) -> Kind:
    """Return the kind of a mapping from text to values of one kind."""

    def read(value: Any, context: Reading) -> dict[str, Any]:
        if type(value) is not dict:
            raise Bad(f"must be an object, got {short(value)}")
        return {TEXT.read(k, context): _at(k, kind.read, v, context) for k, v in value.items()}

    def write(value: Mapping[str, Any], writing: SegmentWriter) -> dict[str, Any]:
        return {TEXT.write(k, writing): _at(k, kind.write, v, writing) for k, v in value.items()}

    return Kind(read, write, {"type": "object", "additionalProperties": kind.schema})


def optional(kind: Kind) -> Kind:
    """Return the kind of a value or null."""
    return Kind(
        lambda value, context: None if value is None else kind.read(value, context),
        lambda value, writing: None if value is None else kind.write(value, writing),
        {"anyOf": [{"type": "null"}, kind.schema]},
    )


def record(cls: type[Any], **kinds: Kind) -> Kind:
    """Return the kind of a dataclass, in JSON an object; ``kinds`` names the fields that are written."""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name in kinds}
    if set(fields) != set(kinds):
        raise TypeError(f"{cls.__name__} has no field {sorted(set(kinds) - set(fields))}")
    needed = [n for n, f in fields.items() if _default(f) is dataclasses.MISSING]

    def read(value: Any, context: Reading) -> Any:
        if type(value) is not dict:
            raise Bad(f"must be an object, got {short(value)}")
        for name in needed:
            if name not in value:
                raise Bad(f"has no field {name!r}")
        values = {}
        for key, item in value.items():
            if key in kinds:
                values[key] = _at(key, kinds[key].read, item, context)
            elif not context.lenient:
                raise Bad(f"has an unknown field {key[:60]!r}")
        return cls(**values)

    def write(value: Any, writing: SegmentWriter) -> dict[str, Any]:
        items = ((n, getattr(value, n)) for n in fields)
        return {
            n: _at(n, kinds[n].write, v, writing) for n, v in items if n in needed or v != _default(fields[n])
        }

    schema = {
        "type": "object",
        "description": (cls.__doc__ or "").split("\n")[0].split(". ")[0].rstrip("."),
        "required": needed,
        "properties": {n: kinds[n].schema for n in fields},
        "additionalProperties": False,
    }
    return Kind(read, write, schema)


def _default(declared: dataclasses.Field[Any]) -> Any:
    if declared.default_factory is not dataclasses.MISSING:
        return declared.default_factory()
    return declared.default


def _at(step: str, function: Callable[[Any, Any], Any], value: Any, context: Any) -> Any:
    try:
        return function(value, context)
    except Bad as error:
        raise error.within(step) from error.__cause__
