"""Reading of graphs as versioned JSON (``json_writer``). An unknown version or field is an error, so that nothing is silently dropped."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import FormatError, IrError
from ...storage.files import open_regular
from ...types import DType, TensorSpec, parse_dim
from ..attributes import MAX_CONST_ELEMENTS, MAX_DEPTH, MAX_NESTED, NAN, Attrs, Const, canonical
from ..graph import Graph, Input, Node, Output, Source, State, Value, Weight
from .cursor import parse_spec
from .json_writer import FORMAT, SOURCE_FIELDS, VERSION, WEIGHT_FIELDS
from .text_reader import parse

__all__ = ["from_json", "load"]

MAX_BYTES = 1 << 30


def load(path: str | os.PathLike[str], *, verify: bool = True) -> Graph:
    """Read a file of ``save`` or of the text form, and verify the graph by default. Raises FormatError (damaged, newer, not a graph) or IrError."""
    who = f"graph file {os.fspath(path)}"
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise FormatError(who, "is larger than 1 GiB", do="Store weights in separate files.")
            text = file.read()
    except OSError as error:
        raise FormatError(who, "cannot be read", got=error.strerror, do="Check the path.") from error
    if text.startswith(b"graph "):
        return parse(text.decode("utf-8", "replace"), verify=verify)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(who, "is not JSON", got=str(error)[:200], do="Write it with Graph.save.") from error
    return from_json(data, verify=verify, who=who)


def from_json(data: Any, *, verify: bool = True, who: str = "graph JSON") -> Graph:
    """Build a graph from ``to_json``'s data. Raises FormatError, or IrError for an invalid graph."""
    try:
        graph = _JsonReader().graph(data)
    except _Bad as error:
        raise FormatError(who, str(error), do="Write it with Graph.save of this release.") from error
    except IrError as error:
        raise FormatError(who, f"has an invalid graph: {error}") from error
    if verify:
        graph.check()
    return graph


class _Bad(Exception):
    """A value that violates the format."""


def _is(value: Any, kind: type, description: str) -> Any:
    if type(value) is not kind:
        raise _Bad(f"{description} must be a {kind.__name__}")
    return value


def _fields(
    data: Any, description: str, required: Sequence[str], optional: Sequence[str] = ()
) -> Mapping[str, Any]:
    _is(data, dict, description)
    for key in required:
        if key not in data:
            raise _Bad(f"{description} has no {key!r}")
    unknown = sorted(set(data) - set(required) - set(optional))
    if unknown:
        raise _Bad(f"{description} has an unknown field {unknown[0]!r}")
    fields: Mapping[str, Any] = data
    return fields


class _JsonReader:
    def __init__(self) -> None:
        self.specs: dict[str, TensorSpec] = {}
        self.nested = 0

    def graph(self, data: Any) -> Graph:
        if type(data) is not dict or data.get("format") != FORMAT:
            raise _Bad(f"is not a graph (format {FORMAT!r} is missing)")
        if data.get("version") != VERSION or type(data["version"]) is not int:
            raise _Bad(f"has format version {str(data.get('version'))[:20]!r}; this release reads {VERSION}")
        lists = ("inputs", "weights", "states", "nodes", "outputs")
        _fields(data, "the graph", ("format", "version", "name", *lists, "metadata"))
        for key in lists:
            _is(data[key], list, key)
        return Graph(
            _is(data["name"], str, "name"),
            tuple(self.value(v, "an input") for v in data["inputs"]),
            tuple(self.output(o) for o in data["outputs"]),
            tuple(self.node(n) for n in data["nodes"]),
            tuple(self.weight(w) for w in data["weights"]),
            tuple(self.state(s) for s in data["states"]),
            Attrs({k: self.attr(v) for k, v in _is(data["metadata"], dict, "metadata").items()}),
        )

    def value(self, data: Any, description: str) -> Value:
        if type(data) is not list or len(data) != 2 or type(data[0]) is not str:
            raise _Bad(f"{description} must be [name, spec]")
        return Value(data[0], None if data[1] is None else self.spec(data[1]))

    def spec(self, text: Any) -> TensorSpec:
        try:
            return parse_spec(_is(text, str, "a spec"), self.specs)
        except ValueError as error:
            raise _Bad(f"not a spec: {text[:80]!r} ({error})") from error

    def output(self, data: Any) -> Output:
        if type(data) is not list or len(data) != 2 or not all(type(d) is str for d in data):
            raise _Bad("an output must be [name, value]")
        return Output(data[0], data[1])

    def weight(self, data: Any) -> Weight:
        _fields(data, "a weight", ("value",), WEIGHT_FIELDS)
        facts = {
            k: _is(data[k], int if k == "offset" else str, f"a weight's {k}")
            for k in WEIGHT_FIELDS
            if k in data
        }
        return Weight(self.value(data["value"], "a weight"), **facts)

    def state(self, data: Any) -> State:
        _fields(data, "a state", ("value", "init", "next"))
        names = [None if data[k] is None else _is(data[k], str, f"a state's {k}") for k in ("init", "next")]
        return State(self.value(data["value"], "a state"), *names)

    def node(self, data: Any) -> Node:
        _fields(data, "a node", ("op", "out"), ("in", "attrs", "from"))
        return Node(
            _is(data["op"], str, "op"),
            tuple(self.operand(i) for i in _is(data.get("in", []), list, "a node's in")),
            Attrs({k: self.attr(v) for k, v in _is(data.get("attrs", {}), dict, "a node's attrs").items()}),
            tuple(self.value(v, "a node's out") for v in _is(data["out"], list, "a node's out")),
            tuple(self.source(s) for s in _is(data.get("from", []), list, "a node's from")),
        )

    def operand(self, data: Any) -> Input:
        value = self.attr(data)
        if value is None or (isinstance(value, str | bool | int | float) and not isinstance(value, DType)):
            return value
        raise _Bad("an operand must be a name, a number or null")

    def source(self, data: Any) -> Source:
        _fields(data, "a source", (), SOURCE_FIELDS)
        return Source(**{k: _is(v, int if k == "line" else str, f"a source's {k}") for k, v in data.items()})

    def attr(self, data: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise _Bad(f"attributes are nested more than {MAX_DEPTH} levels deep")
        if type(data) is list:
            return tuple(self.attr(v, depth + 1) for v in data)
        if type(data) is dict:
            if len(data) != 1:
                raise _Bad("an attribute object must have one key")
            ((kind, value),) = data.items()
            return self.special(kind, value, depth)
        try:
            return canonical(data)
        except ValueError as error:
            raise _Bad(str(error)) from error

    def special(self, kind: str, value: Any, depth: int) -> Any:
        try:
            match kind:
                case "dtype":
                    return DType(value)
                case "dim":
                    return parse_dim(_is(value, str, "a dim"))
                case "float":
                    return {"nan": NAN, "inf": math.inf, "-inf": -math.inf}[value]
                case "map":
                    return Attrs({k: self.attr(v, depth + 1) for k, v in _is(value, dict, "a map").items()})
                case "const":
                    return self.const(value)
                case "graph":
                    return self.body(value)
                case _:
                    pass
        except (ValueError, KeyError, TypeError) as error:
            raise _Bad(f"not a {kind}: {str(value)[:80]!r} ({error})") from error
        raise _Bad(f"unknown kind of attribute {kind!r}")

    def body(self, value: Any) -> Graph:
        if self.nested >= MAX_NESTED:
            raise _Bad(f"graphs are nested more than {MAX_NESTED} levels deep")
        self.nested += 1
        graph = self.graph(value)
        self.nested -= 1
        return graph

    def const(self, value: Any) -> Const:
        text, data = value
        spec = self.spec(text)
        count = 1
        for d in spec.shape:
            if not isinstance(d, int):
                raise ValueError("a constant must have a static shape")
            count *= d
        if count > MAX_CONST_ELEMENTS:
            raise ValueError(f"a constant has at most {MAX_CONST_ELEMENTS} elements")
        if spec.dtype is DType.STRING:
            texts = _is(data, list, "a constant of strings")
            if len(texts) != count or not all(type(t) is str for t in texts):
                raise ValueError(f"needs {count} strings")
            return Const(
                np.array(texts, dtype=object).reshape([int(d) for d in spec.shape if isinstance(d, int)]),
                DType.STRING,
            )
        array = np.frombuffer(bytes.fromhex(_is(data, str, "a constant's bytes")), spec.dtype.numpy)
        return Const(array.reshape([int(d) for d in spec.shape if isinstance(d, int)]), spec.dtype)
