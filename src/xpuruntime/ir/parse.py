"""Reads the text form (``text``). Every input gives a graph, a FormatError with line and column, or an IrError; never a hang."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import FormatError, IrError
from ..types import DType, TensorSpec, parse_dim
from .attributes import MAX_CONST_ELEMENTS, NAN, Attrs, Const, canonical
from .graph import Graph, Input, Node, Output, Source, State, Value, Weight
from .infer import find_op, normalize
from .schema import Operand

__all__ = ["MAX_NESTED", "MAX_TEXT", "parse", "parse_spec"]

MAX_TEXT = 256 << 20
MAX_DEPTH = 32
MAX_NESTED = 4
"""How deep graphs may stand in attributes of one another; a body holds no body, so one is enough."""

_SPACE = re.compile(r"(?:[ \t\r\n]|//[^\n]*)*")
_INLINE = re.compile(r"[ \t]*")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./\-]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_NUMBER = re.compile(
    r"-?(?:\d{1,400}\.\d{0,400}(?:[eE][-+]?\d{1,4})?|\d{1,400}[eE][-+]?\d{1,4}|\d{1,20})(?![\w.])"
)
_SPEC = re.compile(r"([a-z][a-z0-9_]*)\[((?:[^\[\]'\"\n]|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")*)\]")
_DIM = re.compile(r"<((?:[^<>'\"\n]|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")*)>")
_HEX = re.compile(r'x"([0-9a-f]*)"')


def parse_spec(text: str, cache: dict[str, TensorSpec]) -> TensorSpec:
    """``TensorSpec.parse`` with a memory. Raises ValueError, also for a negative dim."""
    spec = cache.get(text)
    if spec is None:
        spec = TensorSpec.parse(text)
        if spec.rank > 64 or any(isinstance(d, int) and not 0 <= d < 2**63 for d in spec.shape):
            raise ValueError("a shape has at most 64 dims, from 0 to 2**63 - 1")
        cache[text] = spec
    return spec


def parse(text: str, *, verify: bool = True) -> Graph:
    """See ``text.parse``."""
    if not isinstance(text, str):
        raise FormatError("graph text", "is not text", got=type(text).__name__)
    if len(text) > MAX_TEXT:
        raise FormatError("graph text", f"is over {MAX_TEXT >> 20} MiB", got=f"{len(text)} characters")
    graph = _Reader(text).graph()
    if verify:
        from .verify import verify as check

        check(graph)
    return graph


class _Reader:
    """A cursor over the text; methods read one thing each and move on."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.nested = text, 0, 0
        self.specs: dict[str, TensorSpec] = {}
        self.values: dict[str, Value] = {}

    # ── reading ──

    def fail(self, what: str, *, at: int | None = None) -> FormatError:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        end = self.text.find("\n", at)
        got = self.text[at : min(end if end >= 0 else len(self.text), at + 40)]
        return FormatError(
            f"graph text {line}:{column}", what, got=repr(got), do="str(graph) shows the form."
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
        start, match = self.at, self.take(_STRING)
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
        match = self.take(_WORD)
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

    def typed(self) -> Value:
        name = self.name()
        self.expect(":")
        return Value(name, None if self.accept("?") else self.spec())

    def value(self, depth: int = 0) -> Any:
        """An attribute value."""
        self.space()
        start = self.at
        if depth > MAX_DEPTH:
            raise self.fail(f"nested over {MAX_DEPTH} deep")
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
        match = self.take(_WORD)
        word = match[0] if match else ""
        if word in _WORDS:
            return _WORDS[word]
        if word == "graph":
            return self.body(start)
        try:
            return DType(word)
        except ValueError:
            raise self.fail("expected a value", at=start) from None

    def body(self, start: int) -> Graph:
        """A graph as an attribute; its values have names of their own. The cursor stands after the word ``graph``."""
        if self.nested >= MAX_NESTED:
            raise self.fail(f"graphs nest over {MAX_NESTED} deep", at=start)
        outer, self.values = self.values, {}
        self.nested, self.at = self.nested + 1, start
        graph = self.statements()
        self.nested, self.values = self.nested - 1, outer
        return graph

    def number(self, digits: str, start: int) -> int | float:
        if digits.lstrip("-").isdigit():
            value = int(digits)
            if not -(2**63) <= value < 2**64:
                raise self.fail("an integer has 64 bits", at=start)
            return value
        if math.isinf(float(digits)):
            raise self.fail("a number is within float64, or inf", at=start)
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
                raise self.fail("a name stands twice", at=start)
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

    def const(self, found: re.Match[str]) -> Const:
        start = self.at
        spec = self.spec()
        if not spec.is_static or (count := _size(spec)) > MAX_CONST_ELEMENTS:
            raise self.fail(
                f"a tensor in the text is static and has at most {MAX_CONST_ELEMENTS} elements", at=start
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

    # ── statements ──

    def graph(self) -> Graph:
        graph = self.statements()
        self.space()
        if self.at != len(self.text):
            raise self.fail("expected the end of the text")
        return graph

    def statements(self) -> Graph:
        self.expect("graph")
        name = self.string()
        self.expect("{")
        inputs: list[Value] = []
        weights: list[Weight] = []
        states: list[State] = []
        nodes: list[Node] = []
        outputs: list[Output] = []
        metadata: dict[str, Any] = {}
        while not self.accept("}"):
            if self.text.startswith("%", self.at):
                nodes.append(self.node())
                continue
            start, keyword = self.at, self.word()
            if keyword == "input":
                inputs.append(self.declare(self.typed()))
            elif keyword == "weight":
                weights.append(self.weight())
            elif keyword == "state":
                states.append(self.state())
            elif keyword == "output":
                label = self.string()
                self.expect("=")
                outputs.append(Output(label, self.name()))
            elif keyword == "metadata":
                key = self.word()
                self.expect("=")
                metadata[key] = self.value()
            else:
                raise self.fail("expected a node, input, weight, state, output or metadata", at=start)
        return Graph(
            name, tuple(inputs), tuple(outputs), tuple(nodes), tuple(weights), tuple(states), Attrs(metadata)
        )

    def declare(self, value: Value) -> Value:
        self.values.setdefault(value.name, value)
        return value

    def facts(self, known: Mapping[str, type]) -> dict[str, Any]:
        """``key=value`` pairs to the end of the line."""
        found: dict[str, Any] = {}
        while True:
            self.take(_INLINE)
            start, match = self.at, self.take(_WORD)
            if not match:
                return found
            key = match[0]
            if key not in known or key in found:
                raise self.fail(f"expected one of {', '.join(known)}, each once", at=start)
            self.expect("=")
            value = self.name() if known[key] is Value else self.value()
            if known[key] is not Value and type(value) is not known[key]:
                raise self.fail(f"{key} is a {known[key].__name__}", at=start)
            found[key] = value

    def weight(self) -> Weight:
        value = self.declare(self.typed())
        return Weight(
            value, **self.facts({"file": str, "format": str, "key": str, "offset": int, "digest": str})
        )

    def state(self) -> State:
        value = self.declare(self.typed())
        return State(value, **self.facts({"init": Value, "next": Value}))

    def node(self) -> Node:
        outputs = [self.typed()]
        while self.accept(","):
            outputs.append(self.typed())
        self.expect("=")
        self.space()
        start, op = self.at, self.word()
        try:
            row = find_op(op)
        except IrError as error:
            raise self.fail(f"op {op!r} is not in the op table. {error.do}".strip(), at=start) from error
        inputs, attrs = self.arguments()
        sources = self.sources()
        operands = [self.operand_spec(i) for i in inputs]
        full = normalize(row, operands, attrs, name=outputs[0].name, sources=sources)
        for value in outputs:
            self.declare(value)
        return Node(op, tuple(inputs), full, tuple(outputs), sources)

    def operand_spec(self, item: Input) -> Operand:
        if not isinstance(item, str):
            return item
        value = self.values.get(item)
        return value.spec if value else None

    def arguments(self) -> tuple[list[Input], dict[str, Any]]:
        """Operands, then attributes, in brackets."""
        self.expect("(")
        inputs: list[Input] = []
        attrs: dict[str, Any] = {}
        if self.accept(")"):
            return inputs, attrs
        while True:
            self.space()
            start = self.at
            if self.text.startswith("%", start):
                item: Any = self.name()
            elif (key := self.attr_key()) is not None:
                if key in attrs:
                    raise self.fail("an attribute stands twice", at=start)
                attrs[key] = self.value()
                item = self
            else:
                item = self.value()
                if item is not None and not isinstance(item, bool | int | float):
                    raise self.fail("an operand is a value, a number or none", at=start)
            if item is not self:
                if attrs:
                    raise self.fail("operands stand before attributes", at=start)
                inputs.append(NAN if item != item else item)
            if self.accept(")"):
                return inputs, attrs
            self.expect(",")

    def attr_key(self) -> str | None:
        """The name before an equals sign, if that is what comes."""
        start = self.at
        if (match := self.take(_WORD) or self.take(_STRING)) is not None:
            self.take(_INLINE)
            if self.text.startswith("=", self.at):
                self.at += 1
                return str(json.loads(match[0])) if match[0].startswith('"') else match[0]
        self.at = start
        return None

    def sources(self) -> tuple[Source, ...]:
        """The comment at the end of a node's line."""
        self.take(_INLINE)
        if not self.text.startswith("#", self.at):
            return ()
        self.at += 1
        found: list[Source] = []
        while True:
            self.take(_INLINE)
            if self.text.startswith("?", self.at):
                self.at += 1
                found.append(Source())
            else:
                facts = self.facts({"name": str, "op": str, "module": str, "file": str, "line": int})
                if not facts:
                    raise self.fail("expected where the node comes from")
                found.append(Source(**facts))
            self.take(_INLINE)
            if not self.text.startswith("|", self.at):
                return tuple(found)
            self.at += 1


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
        raise ValueError("integers have no fraction")
    if dtype.is_integer and items:
        low, high = (
            (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1)
            if dtype.is_signed
            else (0, 2**dtype.bits - 1)
        )
        if min(items) < low or max(items) > high:
            raise ValueError(f"{dtype.value} goes from {low} to {high}")
    wide = np.array(items, dtype=np.float64 if dtype.is_float else dtype.numpy if dtype.is_integer else None)
    return wide.astype(dtype.numpy)
