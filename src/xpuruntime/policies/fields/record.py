"""Records: frozen dataclasses with a ``FieldKind`` per field.

A field's kind checks a value and converts it to normal form and back to plain data, and has its JSON Schema. So the constructor,
the file reader, the writer and the published schema come from one line per field.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ...errors import PolicyError
from ..vocabulary import nearest

__all__ = [
    "FieldKind",
    "FieldPath",
    "Names",
    "Problem",
    "build",
    "dump",
    "fields_of",
    "of_kind",
    "path_text",
    "record",
    "schema_of",
]

T = TypeVar("T")
FieldPath: TypeAlias = tuple[str | int, ...]
Names: TypeAlias = str | Sequence[str]  # accepted input; the normal form is always a tuple


class Problem(Exception):
    """A mistake in one field. The caller that knows the file converts it to a PolicyError."""

    def __init__(self, path: FieldPath, what: str, *, got: object = None, do: str = "") -> None:
        super().__init__(what)
        self.path, self.what, self.got, self.do = path, what, got, do

    def below(self, prefix: FieldPath) -> Problem:
        """Return the same problem with a path from an enclosing value."""
        return Problem(prefix + self.path, self.what, got=self.got, do=self.do)

    def error(self, who: str) -> PolicyError:
        """Return the PolicyError for the user."""
        at = path_text(self.path)
        return PolicyError(who, f"{at}: {self.what}" if at else self.what, got=self.got, do=self.do)


def path_text(path: FieldPath) -> str:
    """Return a path as text: ``"kernel.rules[0].use"`` for ``("kernel", "rules", 0, "use")``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step[:80]}" if text else step[:80]
    return text


def shown(value: object) -> str:
    """Return a value's text for errors, at most one line long."""
    try:
        text = repr(value)
    except Exception as error:  # Python refuses to print integers of more than 4300 digits
        text = f"a {type(value).__name__} that cannot be printed ({type(error).__name__})"
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True)
class FieldKind:
    """The type of a policy field.

    check:  converts a value to normal form; raises Problem. Normal forms pass unchanged.
    schema: JSON Schema of the values that ``check`` accepts.
    dump:   normal form to plain JSON data.
    """

    check: Callable[[Any, FieldPath], Any]
    schema: Mapping[str, Any]
    dump: Callable[[Any], Any]


def of_kind(kind: FieldKind, meaning: str, *, default: Any = None) -> Any:
    """Return a dataclass field of a kind. A field with its default value is unset and is not written to files."""
    return dataclasses.field(default=default, metadata={"kind": kind, "meaning": meaning})


def fields_of(cls: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields that files may set, by name."""
    return {f.name: f for f in dataclasses.fields(cls) if "kind" in f.metadata}


def _unknown(cls: type[Any], name: object, path: FieldPath) -> Problem:
    names = [*fields_of(cls)]
    if not isinstance(name, str):
        return Problem(path, "a key must be a string", got=shown(name), do=f"Known keys: {', '.join(names)}.")
    return Problem((*path, name), "unknown key", do=f"{nearest(name, names)}Known keys: {', '.join(names)}.")


def _normalize(self: Any) -> None:
    """Convert every set field to normal form, then let the class check constraints between fields. Raises Problem."""
    for name, f in fields_of(type(self)).items():
        value = getattr(self, name)
        if value is None or value is f.default or value == f.default:
            value = f.default
        else:
            value = f.metadata["kind"].check(value, (name,))
        object.__setattr__(self, name, value)
    together = getattr(self, "_check_together", None)
    if together is not None:
        together()


def record(cls: type[T]) -> type[T]:
    """Make a frozen keyword-only dataclass a record: checked fields, PolicyError for unknown ones, pickling,
    and a repr of only the fields that are set.
    """
    plain_init: Callable[..., None] = cls.__init__

    @functools.wraps(plain_init)
    def init(self: Any, **values: Any) -> None:
        try:
            for name in values.keys() - {f.name for f in dataclasses.fields(cls)}:  # type: ignore[arg-type]
                raise _unknown(cls, name, ())
            plain_init(self, **values)
            _normalize(self)
        except Problem as problem:
            raise problem.error(cls.__name__) from None

    def reduce(self: Any) -> tuple[Any, ...]:
        derived = {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if "kind" not in f.metadata
        }
        return _restore, (cls, dump(self), derived)

    def show(self: Any) -> str:
        values = ", ".join(f"{k}={v!r}" for k, v in dump(self).items())
        return f"{cls.__name__}({values})"

    cls.__repr__ = show  # type: ignore[method-assign]
    cls.__init__ = init  # type: ignore[method-assign]
    cls.__reduce__ = reduce  # type: ignore[method-assign]
    return cls


def _restore(cls: type[T], data: dict[str, Any], derived: dict[str, Any]) -> T:
    restored = build(cls, data)
    for name, value in derived.items():
        object.__setattr__(restored, name, value)
    return restored


def build(cls: type[T], data: object, path: FieldPath = ()) -> T:
    """Build a record from plain data. Raises Problem with the path of the offending key."""
    if not isinstance(data, Mapping):
        raise Problem(
            path, "must be a mapping of keys", got=shown(data), do=f"Known keys: {', '.join(fields_of(cls))}."
        )
    fields = fields_of(cls)
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in fields:
            raise _unknown(cls, name, path)
        if value is None:
            raise Problem((*path, name), "has no value", do="Write a value, or leave the key out.")
        values[name] = fields[name].metadata["kind"].check(value, (*path, name))
    instance = object.__new__(cls)
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        object.__setattr__(instance, f.name, values.get(f.name, f.default))
    try:
        _normalize(instance)
    except Problem as problem:
        raise problem.below(path) from None
    return instance


def dump(value: Any) -> dict[str, Any]:
    """Return the fields of a record that are set, as plain data, in the order of the fields."""
    return {
        name: f.metadata["kind"].dump(getattr(value, name))
        for name, f in fields_of(type(value)).items()
        if getattr(value, name) != f.default
    }


def schema_of(cls: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a record."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"description": f.metadata["meaning"], **f.metadata["kind"].schema}
            for name, f in fields_of(cls).items()
        },
    }
