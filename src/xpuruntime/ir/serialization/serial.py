"""Graphs as versioned JSON: ``save``, ``load``. An unknown version or field is an error, so that nothing is silently dropped.

Attribute values that JSON lacks are objects with one key: ``{"dtype": "float32"}``, ``{"dim": "2*n"}``, ``{"float": "nan"}``,
``{"const": [spec, hex or list of texts]}``, ``{"map": {...}}``, ``{"graph": {...}}``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import FormatError, IrError
from ...storage.files import open_regular
from ...storage.store import write_atomic
from ...types import Dim, DType, TensorSpec, parse_dim
from ..attributes import MAX_CONST_ELEMENTS, MAX_DEPTH, NAN, Attrs, Const, canonical
from ..graph import Graph, Input, Node, Output, Source, State, Value, Weight
from .cursor import parse_spec
from .parse import MAX_NESTED

__all__ = ["FORMAT", "VERSION", "from_json", "load", "save", "to_bytes", "to_json"]

FORMAT = "xpuruntime.ir"
VERSION = 1
MAX_BYTES = 1 << 30

_SOURCE = ("name", "op", "module", "file", "line")
_WEIGHT = ("file", "format", "key", "offset", "digest", "data")


# ── writing ──


def to_json(graph: Graph) -> dict[str, Any]:
    """Return the graph as plain data."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "inputs": [_value_out(v) for v in graph.inputs],
        "weights": [
            {"value": _value_out(w.value)} | {k: getattr(w, k) for k in _WEIGHT if getattr(w, k)}
            for w in graph.weights
        ],
        "states": [{"value": _value_out(s.value), "init": s.init, "next": s.next} for s in graph.states],
        "nodes": [_node_out(n) for n in graph.nodes],
        "outputs": [[o.name, o.value] for o in graph.outputs],
        "metadata": {k: _attr_out(v) for k, v in graph.metadata.items()},
    }


def to_bytes(graph: Graph) -> bytes:
    """Return canonical JSON: equal graphs have equal bytes."""
    data = to_json(graph)
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def save(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write JSON atomically, one node per line. Raises StoreError."""
    data = to_json(graph)
    parts = []
    for key, value in data.items():
        if isinstance(value, list) and value:
            items = ",\n  ".join(json.dumps(v, allow_nan=False, separators=(", ", ": ")) for v in value)
            parts.append(f"{json.dumps(key)}: [\n  {items}\n ]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
    write_atomic(Path(path), ("{" + ",\n ".join(parts) + "}\n").encode())


def _value_out(value: Value) -> list[Any]:
    return [value.name, None if value.spec is None else str(value.spec)]


def _node_out(node: Node) -> dict[str, Any]:
    data: dict[str, Any] = {"op": node.op, "out": [_value_out(v) for v in node.outputs]}
    if node.inputs:
        data["in"] = [_attr_out(i) for i in node.inputs]
    if node.attrs:
        data["attrs"] = {k: _attr_out(v) for k, v in node.attrs.items()}
    if node.sources:
        data["from"] = [{k: getattr(s, k) for k in _SOURCE if getattr(s, k)} for s in node.sources]
    return data


def _attr_out(value: Any) -> Any:
    match value:
        case DType():
            return {"dtype": value.value}
        case Dim():
            return {"dim": str(value)}
        case float() if not math.isfinite(value):
            return {"float": "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"}
        case Const():
            array = value.numpy()
            data = array.ravel().tolist() if value.dtype is DType.STRING else array.tobytes().hex()
            return {"const": [str(value.spec), data]}
        case tuple():
            return [_attr_out(v) for v in value]
        case Graph():
            return {"graph": to_json(value)}
        case Attrs():
            return {"map": {k: _attr_out(v) for k, v in value.items()}}
        case _:
            return value


# ── reading ──


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
        from .text import parse

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
        from ..verify import verify as check

        check(graph)
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
        _fields(data, "a weight", ("value",), _WEIGHT)
        facts = {
            k: _is(data[k], int if k == "offset" else str, f"a weight's {k}") for k in _WEIGHT if k in data
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
        _fields(data, "a source", (), _SOURCE)
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
