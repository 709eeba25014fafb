"""Symbols of a graph: bound to the shapes of arrays, and substituted.

bind(graph.input_specs, {"x": (3, 224)})     -> {"n": 3}
specialize(graph, {"n": 3})                  -> the graph with n replaced by 3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InputError, IrError
from ...types import Dim, DimLike, TensorSpec
from ..attributes import Attrs
from ..graph import Graph, Node, State, Value
from ..ops import OPS
from .decided import solve

__all__ = ["bind", "specialize", "substitute"]

_SYMBOLIC = ("dim", "dims", "number", "graph")  # kinds of attributes that may hold symbols


def bind(specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the value of every symbol that the shapes determine.

    specs: named, as ``graph.input_specs``. shapes: of the arrays, by name. A dim that is a symbol ``n`` or ``a*n + b`` determines it,
    and all other dims must agree. Raises InputError with the input, the dim, and the expected and the actual size.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    pending: list[tuple[TensorSpec, int, DimLike, int]] = []
    for spec in specs:
        shape = shapes.get(spec.name)
        if shape is None or len(shape) != spec.rank:
            actual = "nothing" if shape is None else f"shape {list(shape)}"
            raise InputError(
                f"input {spec.name!r}", f"must be {spec}", got=actual, do="Pass an array of that rank."
            )
        pending += [
            (spec, i, d, int(size)) for i, (d, size) in enumerate(zip(spec.shape, shape, strict=True))
        ]
    pending.sort(
        key=lambda item: len(str(item[2])) if isinstance(item[2], Dim) else 0
    )  # plain symbols first, so that expressions can be checked
    for spec, i, d, size in pending:
        value = _substituted(d, sizes)
        if isinstance(value, Dim):
            solved = solve(value, size)
            if solved is None:
                continue
            sizes |= solved
            origin |= dict.fromkeys(solved, f"{spec.name!r} dim {i}")
            value = _substituted(value, sizes)
        if isinstance(value, int) and value != size:
            origins = ", ".join(
                f"{s}={sizes[s]} from {origin[s]}" for s in sorted(_symbols(d)) if s in origin
            )
            expected = f"{d} = {value} ({origins})" if origins else str(value)
            raise InputError(
                f"input {spec.name!r}", f"dim {i} must be {expected}", got=size, do=f"The input is {spec}."
            )
    return sizes


def _symbols(d: DimLike) -> frozenset[str]:
    return d.symbols if isinstance(d, Dim) else frozenset()


def _substituted(d: DimLike, values: Mapping[str, DimLike]) -> DimLike:
    return d.substitute(values) if isinstance(d, Dim) else d


def substitute(value: Any, values: Mapping[str, DimLike]) -> Any:
    """Return an attribute value, a spec or a dim with symbols replaced."""
    match value:
        case Dim():
            return value.substitute(values)
        case TensorSpec():
            return value.substitute(values)
        case tuple():
            return tuple(substitute(v, values) for v in value)
        case Attrs():
            return Attrs({k: substitute(v, values) for k, v in value.items()})
        case Graph():
            return specialize(value, values)
        case _:
            return value


def specialize(graph: Graph, values: Mapping[str, DimLike]) -> Graph:
    """Replace symbols in every spec and attribute of a graph.

    Raises IrError if a value makes a dim negative.
    """
    live = {k: v for k, v in values.items() if k in graph.symbols}
    if not live:
        return graph

    def value(v: Value) -> Value:
        if v.spec is None or v.spec.is_static:
            return v
        spec = v.spec.substitute(live)
        if any(isinstance(d, int) and d < 0 for d in spec.shape):
            sizes_text = ", ".join(f"{k}={live[k]}" for k in sorted(live))
            raise IrError(f"value %{v.name}", f"would have a negative dim with {sizes_text}", got=spec)
        return Value(v.name, spec)

    def node(n: Node) -> Node:
        symbolic = any(a.kind.rstrip("?") in _SYMBOLIC for a in OPS[n.op].attrs.values())
        attrs = substitute(n.attrs, live) if symbolic else n.attrs
        return Node(n.op, n.inputs, attrs, tuple(value(v) for v in n.outputs), n.sources)

    return graph.replace(
        inputs=tuple(value(v) for v in graph.inputs),
        nodes=tuple(node(n) for n in graph.nodes),
        states=tuple(State(value(s.value), s.init, s.next) for s in graph.states),
    )
