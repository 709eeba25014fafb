"""Reading and writing of policy files: YAML 1.2 (core schema only) and JSON, as plain data with the line of every key.

Both readers refuse duplicate keys, and bound size and depth. YAML anchors, aliases and tags are refused, so that every value is
written where it applies. Only ``true`` and ``false`` are booleans: ``YES`` stays a string, as vendor options need it.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

import yaml

from ...errors import PolicyError, StoreError
from ...storage.files import open_regular, write_atomic
from ..fields.record import FieldPath, Problem, shown

__all__ = [
    "MAX_BYTES",
    "Lines",
    "TextProblem",
    "line_of",
    "located",
    "parse_json",
    "parse_yaml",
    "read_document",
    "save_document",
    "to_json_text",
    "to_yaml_text",
]

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
Lines = dict[FieldPath, int]


class TextProblem(Problem):
    """A syntax error of the text, with its line (from 1)."""

    def __init__(self, line: int, problem: str, *, got: object = None, do: str = "") -> None:
        super().__init__((), problem, got=got, do=do)
        self.line = line


def _deep(line: int) -> TextProblem:
    do = "A policy has few levels; check the brackets."
    return TextProblem(line, f"is nested more than {MAX_DEPTH} levels deep", do=do)


def _twice(line: int, key: str, first: int) -> TextProblem:
    return TextProblem(
        line, f"duplicate key {key[:80]!r} (first in line {first})", do="Remove one of the two."
    )


# -- JSON

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}


class _JsonParser:
    """A JSON reader that records the line of every value, which the standard library's does not."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.lines = text, 0, Lines()
        self.breaks = [m.start() for m in re.finditer("\n", text)]

    def line(self) -> int:
        import bisect

        return bisect.bisect_left(self.breaks, self.at) + 1

    def fail(self, problem: str) -> TextProblem:
        excerpt = (
            shown(self.text[self.at : self.at + 20]) if self.at < len(self.text) else "the end of the file"
        )
        return TextProblem(self.line(), f"is not JSON: {problem}", got=excerpt)

    def peek(self) -> str:
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
        return self.text[self.at : self.at + 1]

    def take(self, char: str) -> bool:
        if self.peek() != char:
            return False
        self.at += 1
        return True

    def string(self) -> str:
        try:
            value, end = scanstring(self.text, self.at + 1, True)
        except json.JSONDecodeError as error:
            self.at = min(error.pos, len(self.text))
            raise self.fail(error.msg) from None
        self.at = end
        return str(value)

    def value(self, path: FieldPath) -> Any:
        char = self.peek()
        self.lines.setdefault(path, self.line())
        if len(path) > MAX_DEPTH:
            raise _deep(self.line())
        if char == "{":
            return self.mapping(path)
        if char == "[":
            return self.sequence(path)
        if char == '"':
            return self.string()
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            return _number(number[0], self.line())
        for literal, value in _WORDS.items():
            if self.text.startswith(literal, self.at):
                self.at += len(literal)
                return value
        raise self.fail("expected a value")

    def mapping(self, path: FieldPath) -> dict[str, Any]:
        self.at += 1
        data: dict[str, Any] = {}
        if self.take("}"):
            return data
        while True:
            if self.peek() != '"':
                raise self.fail("expected a key in double quotes")
            line, key = self.line(), self.string()
            if key in data:
                raise _twice(line, key, self.lines[*path, key])
            self.lines[*path, key] = line
            if not self.take(":"):
                raise self.fail("expected ':' after the key")
            data[key] = self.value((*path, key))
            if self.take("}"):
                return data
            if not self.take(","):
                raise self.fail("expected ',' or '}'")

    def sequence(self, path: FieldPath) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        if self.take("]"):
            return items
        while True:
            items.append(self.value((*path, len(items))))
            if self.take("]"):
                return items
            if not self.take(","):
                raise self.fail("expected ',' or ']'")


def _number(text: str, line: int) -> int | float:
    if len(text) > 400:
        raise TextProblem(line, "holds a number of more than 400 characters")
    return int(text) if re.fullmatch(r"[-+]?[0-9]+", text) else float(text)


def parse_json(text: str) -> tuple[Any, Lines]:
    """Parse JSON. Return plain data and the line of every value. Raises TextProblem."""
    reader = _JsonParser(text)
    value = reader.value(())
    if reader.peek():
        raise reader.fail("expected nothing after the value")
    return value, reader.lines


# -- YAML

_YAML_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]+)?")
_YAML_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_STR = "tag:yaml.org,2002:str"


class _Loader(yaml.BaseLoader):
    """PyYAML's loader without the booleans of YAML 1.1, and without aliases."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise TextProblem(
                event.start_mark.line + 1,
                "uses an anchor or alias",
                do="Write the value itself in each place.",
            )
        if getattr(event, "tag", None):
            raise TextProblem(
                event.start_mark.line + 1, "uses a tag", got=shown(event.tag), do="Remove the tag."
            )
        return super().compose_node(parent, index)


def _scalar(text: str, line: int) -> Any:
    """Convert a plain scalar to a boolean, null, a number, or a string."""
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    return _number(text, line) if _YAML_NUMBER.fullmatch(text) else text


def _convert(node: Any, path: FieldPath, lines: Lines) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if len(path) > MAX_DEPTH:
        raise _deep(line)
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, (*path, i), lines) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return node.value if node.style is not None else _scalar(node.value, line)
    data: dict[str, Any] = {}
    for key, value in node.value:
        at = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise TextProblem(at, "has a key that is not a string")
        name = key.value
        if name in data:
            raise _twice(at, name, lines[*path, name])
        lines[*path, name] = at
        data[name] = _convert(value, (*path, name), lines)
    return data


def parse_yaml(text: str) -> tuple[Any, Lines]:
    """Parse YAML of one document. Return plain data and the line of every value. Raises TextProblem."""
    lines: Lines = {}
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not readable"
        raise TextProblem(1 if mark is None else mark.line + 1, f"is not YAML: {problem}") from None
    except RecursionError:
        raise _deep(1) from None
    except (ValueError, IndexError) as error:  # PyYAML raises these for some malformed texts
        raise TextProblem(1, f"is not YAML: {str(error)[:80] or 'not readable'}") from None
    return (None if node is None else _convert(node, (), lines)), lines


# -- back to text


def to_json_text(data: Any) -> str:
    """Return plain data -> JSON text."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


@functools.cache
def _dumper() -> type[yaml.SafeDumper]:
    class Dumper(yaml.SafeDumper):
        """PyYAML's dumper, which quotes every string that ``parse_yaml`` would read as another type."""

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        needs_quotes = value in _YAML_WORDS or _YAML_NUMBER.fullmatch(value) is not None
        return dumper.represent_scalar(_STR, value, style='"' if needs_quotes else None)

    Dumper.add_representer(str, text)
    return Dumper


def to_yaml_text(data: Any) -> str:
    """Return plain data -> YAML text."""
    return str(yaml.dump(data, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=110))


# -- files

_READERS = {".json": parse_json, ".yaml": parse_yaml, ".yml": parse_yaml}
_WRITERS = {".json": to_json_text, ".yaml": to_yaml_text, ".yml": to_yaml_text}


def read_document(path: Path, kind: str = "policy") -> tuple[Any, Lines]:
    """Read a policy file, or a file of another ``kind`` in the same syntax. Return plain data and the line of every key. Raises PolicyError."""
    who = f"{kind} {path}"
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise PolicyError(
            who, "has an unknown suffix", got=repr(path.suffix), do="Name it .yaml, .yml or .json."
        )
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PolicyError(
            who, "cannot be read", got=reason, do="Check the path and its permissions."
        ) from error
    if len(raw) > MAX_BYTES:
        raise PolicyError(who, "is too large", got=f"more than {MAX_BYTES} bytes", do="Split it.")
    try:
        return reader(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise PolicyError(
            f"{who}:{line}", "is not UTF-8 text", got=error.reason, do="Save it as UTF-8."
        ) from None
    except Problem as problem:
        raise located(problem, who, {}) from None


def located(problem: Problem, who: str, lines: Lines) -> PolicyError:
    """Return the error with the line of the key, or of its nearest ancestor."""
    line = getattr(problem, "line", None) or line_of(problem.path, lines)
    return problem.error(who if line is None else f"{who}:{line}")


def line_of(path: FieldPath, lines: Lines) -> int | None:
    """Return the line of a key, or of its nearest ancestor; None if there is none."""
    for end in range(len(path), -1, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


def save_document(path: str | os.PathLike[str], data: Mapping[str, Any]) -> None:
    """Write a document atomically. Raises PolicyError for an unknown suffix, StoreError if writing fails."""
    target = Path(path)
    writer = _WRITERS.get(target.suffix.lower())
    if writer is None:
        raise PolicyError(
            f"policy {target}",
            "has an unknown suffix",
            got=repr(target.suffix),
            do="Name it .yaml, .yml or .json.",
        )
    try:
        write_atomic(target, writer(data).encode())
    except StoreError as error:
        raise StoreError(
            f"policy {target}", "cannot be written", got=error.got, do="Save it to a writable folder."
        ) from error
