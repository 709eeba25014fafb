"""The lexer of the text form: a cursor that reads names, types, numbers, strings, dims, tensors, lists and maps."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from ...errors import FormatError
from ...types import DType, TensorSpec, parse_dim
from ..attributes import MAX_CONST_ELEMENTS, MAX_DEPTH, NAN, Attrs, Const, canonical

__all__ = ["INLINE", "STRING", "WORD", "Cursor", "parse_spec"]

INLINE = re.compile(r"[ \t]*")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SPACE = re.compile(r"(?:[ \t\r\n]|//[^\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./\-]*")
_NUMBER = re.compile(
    r"-?(?:\d{1,400}\.\d{0,400}(?:[eE][-+]?\d{1,4})?|\d{1,400}[eE][-+]?\d{1,4}|\d{1,20})(?![\w.])"
)
_SPEC = re.compile(r"([a-z][a-z0-9_]*)\[((?:[^\[\]'\"\n]|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")*)\]")
_DIM = re.compile(r"<((?:[^<>'\"\n]|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")*)>")
_HEX = re.compile(r'x"([0-9a-f]*)"')


def parse_spec(text: str, cache: dict[str, TensorSpec]) -> TensorSpec:
    """Parse a spec as ``TensorSpec.parse``, with a cache. Raises ValueError, also for a negative dim."""
    spec = cache.get(text)
    if spec is None:
        spec = TensorSpec.parse(text)
        if spec.rank > 64 or any(isinstance(d, int) and not 0 <= d < 2**63 for d in spec.shape):
            raise ValueError("a shape has at most 64 dims, each from 0 to 2**63 - 1")
        cache[text] = spec
    return spec


class Cursor:
    """A position in the text. Each method reads one token and advances, or raises a FormatError with line and column."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.specs: dict[str, TensorSpec] = {}

    def fail(self, problem: str, *, at: int | None = None) -> FormatError:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        end = self.text.find("\n", at)
        excerpt = self.text[at : min(end if end >= 0 else len(self.text), at + 40)]
        return FormatError(
            f"graph text {line}:{column}",
            problem,
            got=repr(excerpt),
            do="Print str(graph) of any graph to see the form.",
        )

    def space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def accept(self, token: str) -> bool:
        self.space()
        if self.text.startswith(token, self.at):
            self.at += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.fail(f"expected {token!r}")

    def string(self) -> str:
        self.space()
        start, match = self.at, self.take(STRING)
        try:
            if match:
                return str(json.loads(match[0]))
        except ValueError:
            pass
        raise self.fail("expected a quoted text", at=start)

    def word(self) -> str:
        self.space()
        if self.text.startswith('"', self.at):
            return self.string()
        match = self.take(WORD)
        if not match:
            raise self.fail("expected a name")
        return match[0]

    def name(self) -> str:
        self.expect("%")
        if self.text.startswith('"', self.at):
            return self.string()
        match = self.take(_NAME)
        if not match:
            raise self.fail("expected the name of a value")
        return match[0]

    def spec(self) -> TensorSpec:
        self.space()
        start, match = self.at, self.take(_SPEC)
        if not match:
            raise self.fail("expected a type like float32[n, 3]")
        try:
            return parse_spec(match[0], self.specs)
        except ValueError as error:
            raise self.fail(f"not a type ({error})", at=start) from error

    def value(self, depth: int = 0) -> Any:
        """Return an attribute value."""
        self.space()
        start = self.at
        if depth > MAX_DEPTH:
            raise self.fail(f"nested more than {MAX_DEPTH} levels deep")
        lead = self.text[start : start + 1]
        if lead == '"':
            return self.string()
        if lead == "[":
            return self.sequence("[", "]", depth)
        if lead == "{":
            return self.map(depth)
        if lead == "<":
            return self.dim()
        if match := self.take(_NUMBER):
            return self.number(match[0], start)
        if self.text.startswith("-inf", start):
            self.at += 4
            return float("-inf")
        if (spec := _SPEC.match(self.text, start)) is not None:
            return self.const(spec)
        match = self.take(WORD)
        word = match[0] if match else ""
        if word in _WORDS:
            return _WORDS[word]
        if word == "graph":
            return self.body(start)
        try:
            return DType(word)
        except ValueError:
            raise self.fail("expected a value", at=start) from None

    def body(self, start: int) -> Any:
        """Parse a graph in an attribute, after the word ``graph``; the parser of statements overrides this."""
        raise self.fail("expected a value", at=start)

    def number(self, digits: str, start: int) -> int | float:
        if digits.lstrip("-").isdigit():
            value = int(digits)
            if not -(2**63) <= value < 2**64:
                raise self.fail("an integer must fit in 64 bits", at=start)
            return value
        if math.isinf(float(digits)):
            raise self.fail("a number must be in float64's range, or inf", at=start)
        return float(digits)

    def sequence(self, opening: str, closing: str, depth: int) -> tuple[Any, ...]:
        self.expect(opening)
        items: list[Any] = []
        if self.accept(closing):
            return ()
        while True:
            items.append(self.value(depth + 1))
            if self.accept(closing):
                return tuple(items)
            self.expect(",")

    def map(self, depth: int) -> Attrs:
        self.expect("{")
        items: dict[str, Any] = {}
        if self.accept("}"):
            return Attrs()
        while True:
            start = self.at
            key = self.word()
            if key in items:
                raise self.fail("duplicate name", at=start)
            self.expect(":")
            items[key] = self.value(depth + 1)
            if self.accept("}"):
                return Attrs(items)
            self.expect(",")

    def dim(self) -> Any:
        start, match = self.at, self.take(_DIM)
        try:
            if match:
                return canonical(parse_dim(match[1]))
        except ValueError as error:
            raise self.fail(f"not a dim ({error})", at=start) from error
        raise self.fail("expected a dim like <2*n>", at=start)

    def const(self, match: re.Match[str]) -> Const:
        start = self.at
        spec = self.spec()
        if not spec.is_static or (count := _size(spec)) > MAX_CONST_ELEMENTS:
            raise self.fail(
                f"a tensor in the text must be static, with at most {MAX_CONST_ELEMENTS} elements", at=start
            )
        shape = tuple(int(d) for d in spec.shape if isinstance(d, int))
        try:
            if (hexed := self.take(_HEX)) is not None:
                array = np.frombuffer(bytes.fromhex(hexed[1]), spec.dtype.numpy)
            else:
                items = self.sequence("{", "}", 0)
                if len(items) != count or not all(
                    isinstance(i, _KINDS.get(spec.dtype, (int, float))) for i in items
                ):
                    raise ValueError(f"needs {count} elements of its type")
                array = _array(items, spec.dtype)
            if array.size != count:
                raise ValueError(f"needs {count} elements")
            return Const(array.reshape(shape), spec.dtype)
        except (ValueError, OverflowError, TypeError) as error:
            raise self.fail(f"not a tensor ({error})", at=start) from error


_WORDS: dict[str, Any] = {"none": None, "true": True, "false": False, "inf": float("inf"), "nan": NAN}
_KINDS: dict[DType, tuple[type, ...]] = {DType.STRING: (str,), DType.BOOL: (bool,)}


def _size(spec: TensorSpec) -> int:
    total = 1
    for d in spec.shape:
        total *= d if isinstance(d, int) else 0
    return total


def _array(items: tuple[Any, ...], dtype: DType) -> Any:
    if dtype is DType.STRING:
        return np.array(items, dtype=object)
    if dtype.is_integer and any(isinstance(i, float) for i in items):
        raise ValueError("integers cannot have a fraction")
    if dtype.is_integer and items:
        low, high = (
            (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
            if dtype.is_signed
            else (0, 2**dtype.bits - 1)
        )
        if min(items) < low or max(items) > high:
            raise ValueError(f"{dtype.value} ranges from {low} to {high}")
    wide = np.array(items, dtype=np.float64 if dtype.is_float else dtype.numpy if dtype.is_integer else None)
    return wide.astype(dtype.numpy)
