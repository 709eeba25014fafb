"""Parser of the text form (``text_writer``). Any input gives a graph, a FormatError with line and column, or an IrError, in bounded time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...errors import FormatError, IrError
from ..attributes import MAX_NESTED, NAN, Attrs
from ..graph import Graph, Input, Node, Output, Source, State, Value, Weight
from ..infer import find_op, normalize
from ..schema import Operand
from .cursor import INLINE, STRING, WORD, Cursor

__all__ = ["MAX_TEXT", "parse"]

MAX_TEXT = 256 << 20


def parse(text: str, *, verify: bool = True) -> Graph:
    """Parse a graph, and verify it by default.

    Raises FormatError with line and column for a syntax error, IrError for an invalid graph.
    """
    if not isinstance(text, str):
        raise FormatError("graph text", "is not a string", got=type(text).__name__)
    if len(text) > MAX_TEXT:
        raise FormatError("graph text", f"is over {MAX_TEXT >> 20} MiB", got=f"{len(text)} characters")
    graph = _TextReader(text).graph()
    if verify:
        graph.check()
    return graph


class _TextReader(Cursor):
    """The parser of a graph's statements. Each method reads one construct and advances the cursor."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.nested = 0
        self.values: dict[str, Value] = {}

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

    def body(self, start: int) -> Graph:
        """Parse a graph in an attribute, which has its own value names. The cursor is after the word ``graph``."""
        if self.nested >= MAX_NESTED:
            raise self.fail(f"graphs are nested more than {MAX_NESTED} levels deep", at=start)
        outer, self.values = self.values, {}
        self.nested, self.at = self.nested + 1, start
        graph = self.statements()
        self.nested, self.values = self.nested - 1, outer
        return graph

    def typed(self) -> Value:
        name = self.name()
        self.expect(":")
        return Value(name, None if self.accept("?") else self.spec())

    def declare(self, value: Value) -> Value:
        self.values.setdefault(value.name, value)
        return value

    def facts(self, kinds: Mapping[str, type]) -> dict[str, Any]:
        """Parse ``key=value`` pairs to the end of the line."""
        pairs: dict[str, Any] = {}
        while True:
            self.take(INLINE)
            start, match = self.at, self.take(WORD)
            if not match:
                return pairs
            key = match[0]
            if key not in kinds or key in pairs:
                raise self.fail(f"expected one of {', '.join(kinds)}, each once", at=start)
            self.expect("=")
            value = self.name() if kinds[key] is Value else self.value()
            if kinds[key] is not Value and type(value) is not kinds[key]:
                raise self.fail(f"{key} is a {kinds[key].__name__}", at=start)
            pairs[key] = value

    def weight(self) -> Weight:
        value = self.declare(self.typed())
        return Weight(
            value,
            **self.facts({"file": str, "format": str, "key": str, "offset": int, "digest": str, "data": str}),
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
        """Parse operands, then attributes, in brackets."""
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
                    raise self.fail("duplicate attribute", at=start)
                attrs[key] = self.value()
                item = self
            else:
                item = self.value()
                if item is not None and not isinstance(item, bool | int | float):
                    raise self.fail("an operand is a value, a number or none", at=start)
            if item is not self:
                if attrs:
                    raise self.fail("operands must come before attributes", at=start)
                inputs.append(NAN if item != item else item)
            if self.accept(")"):
                return inputs, attrs
            self.expect(",")

    def attr_key(self) -> str | None:
        """Parse a name that is followed by an equals sign, if there is one."""
        start = self.at
        if (match := self.take(WORD) or self.take(STRING)) is not None:
            self.take(INLINE)
            if self.text.startswith("=", self.at):
                self.at += 1
                return str(json.loads(match[0])) if match[0].startswith('"') else match[0]
        self.at = start
        return None

    def sources(self) -> tuple[Source, ...]:
        """Parse the sources in the comment at the end of a node's line."""
        self.take(INLINE)
        if not self.text.startswith("#", self.at):
            return ()
        self.at += 1
        result: list[Source] = []
        while True:
            self.take(INLINE)
            if self.text.startswith("?", self.at):
                self.at += 1
                result.append(Source())
            else:
                facts = self.facts({"name": str, "op": str, "module": str, "file": str, "line": int})
                if not facts:
                    raise self.fail("expected the node's source")
                result.append(Source(**facts))
            self.take(INLINE)
            if not self.text.startswith("|", self.at):
                return tuple(result)
            self.at += 1
