"""recognize_rope: replace rotary position embedding in halves (Su et al. 2021; the form of GPT-NeoX and LLaMA) by one op.

    x * cos + cat(-x[..., half:], x[..., :half]) * sin

``rope`` reads one half of the tables, so both halves must be known to be equal: from how they are computed, or from the elements of
a constant or of a weight that the context provides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any as AnyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..ir import Const, Editor, Graph, Match, Node, Weight
from ..ir.match import Any, Op
from ..types import TensorSpec
from ._lib.pattern_rules import PatternRule, apply_patterns
from .context import PassContext

__all__ = ["run"]

_X = Any("x")
Peek: TypeAlias = "Callable[[Weight], NDArray[AnyType] | None]"


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with rope nodes."""
    peek = (context or PassContext()).peek

    def fits(match: Match) -> bool | str:
        return _fits(match, peek)

    return apply_patterns(graph, [PatternRule(p, _make, (fits,)) for p in _patterns()], context)


def _patterns() -> Iterator[Op]:
    low, high = Op("slice", _X, name="low", step=1), Op("slice", _X, name="high", step=1)
    first, second = Op("split", _X, name="split"), Op("split", _X, name="split", output=1)
    for a, b in ((low, high), (first, second)):
        turned = Op("cat", Op("neg", b), a, name="turned")
        yield Op("add", Op("mul", _X, Any("cos")), Op("mul", turned, Any("sin")))


def _fits(match: Match, peek: Peek) -> bool | str:
    x = _spec(match, "x")
    if (
        x is None
        or x.rank != 4
        or x != match.root.outputs[0].spec
        or not isinstance(x.shape[3], int)
        or x.shape[3] % 2
    ):
        return "x is not [batch, heads, length, even size]"
    if match.node("turned").attrs["dim"] != 3 or not _halves(match, int(x.shape[3]) // 2):
        return "the parts are not the halves of the last dim"
    for name in ("cos", "sin"):
        table = _spec(match, name)
        if table is None or table.dtype is not x.dtype or _table_shape(table, x) is None:
            return f"{name} is not one table for all heads"
        if not _equal_halves(match.graph, str(match[name]), int(x.shape[3]), peek):
            return f"{name}'s halves are not known to be equal"
    return True


def _halves(match: Match, half: int) -> bool:
    if "split" in match.named:
        parts = match.node("split").attrs
        return (parts["dim"], parts["sizes"]) == (3, (half, half))
    low, high = match.node("low").attrs, match.node("high").attrs
    ends = (low["end"] == half, high["end"] in (None, 2 * half) or int(high["end"]) >= 2 * half)
    return low["dim"] == high["dim"] == 3 and low["start"] == 0 and high["start"] == half and all(ends)


def _spec(match: Match, name: str) -> TensorSpec | None:
    value = match[name]
    return match.graph.values[value].spec if isinstance(value, str) else None


def _table_shape(table: TensorSpec, x: TensorSpec) -> tuple[object, ...] | None:
    """Return the table's shape as [length, size] or [batch, length, size]; None if it differs per head or broadcasts otherwise."""
    batch, _, length, size = x.shape
    shape = (*(1,) * (4 - table.rank), *table.shape)
    if len(shape) != 4 or shape[1] != 1 or shape[2:] != (length, size):
        return None
    return (length, size) if shape[0] == 1 else (batch, length, size) if shape[0] == batch else None


_ELEMENTWISE = frozenset(["cos", "sin", "mul", "cast", "add", "neg"])
_ROWS = frozenset(["view", "unsqueeze", "squeeze", "index_select", "slice", "select", "expand", "clone"])


def _equal_halves(graph: Graph, value: str, size: int, peek: Peek, depth: int = 0) -> bool:
    """Return whether the halves of a value's last dim, of ``size``, are equal."""
    spec = graph.values[value].spec
    if spec is None or depth > 16 or not spec.rank or spec.shape[-1] != size:
        return False
    node = graph.producer(value)
    if node is None:
        weight = next((w for w in graph.weights if w.name == value), None)
        array = None if weight is None else peek(weight)
        return array is not None and _halves_equal(array, size)
    if node.op == "constant":
        const: Const = node.attrs["value"]
        return _halves_equal(const.numpy(), size)
    if node.op == "cat":
        return (
            node.attrs["dim"] == spec.rank - 1 and len(node.inputs) == 2 and node.inputs[0] == node.inputs[1]
        )
    if node.op in _ELEMENTWISE:
        tensors = [v for v in node.values if not _same_everywhere(graph, v)]
        return bool(tensors) and all(_equal_halves(graph, v, size, peek, depth + 1) for v in tensors)
    if node.op in _ROWS and isinstance(node.inputs[0], str):
        if node.attrs.get("dim") == spec.rank - 1:
            return False
        return _equal_halves(graph, node.inputs[0], size, peek, depth + 1)
    return False


def _halves_equal(array: NDArray[AnyType], size: int) -> bool:
    return bool(np.array_equal(array[..., : size // 2], array[..., size // 2 :]))


def _same_everywhere(graph: Graph, value: str) -> bool:
    spec = graph.values[value].spec
    return spec is not None and (spec.rank == 0 or spec.shape[-1] == 1)


def _make(editor: Editor, node: Node, match: Match) -> Node:
    x = editor.values[str(match["x"])].spec
    assert x is not None
    names = [str(match[name]) for name in ("cos", "sin")]
    lookups = [_looked_up(match.graph, name, x) for name in names]
    if lookups[0] is not None and lookups[1] is not None and lookups[0][1] == lookups[1][1]:
        return editor.replace(node, "rope", match["x"], lookups[0][0], lookups[1][0], lookups[0][1])
    tables = [_half(editor, node, name, x) for name in names]
    return editor.replace(node, "rope", match["x"], *tables)


def _looked_up(graph: Graph, value: str, x: TensorSpec) -> tuple[str, str] | None:
    """Return the half table and the positions [batch, length] of its rows, if rows are looked up and then concatenated with themselves."""
    node = graph.producer(value)
    while node is not None and node.op in ("view", "unsqueeze", "cat"):
        if node.op == "cat" and (
            node.inputs[:1] * 2 != node.inputs or node.attrs["dim"] != node.spec.rank - 1
        ):
            return None
        node = graph.producer(str(node.inputs[0]))
    if node is None or node.op != "embedding" or node.attrs["padding_idx"] != -1:
        return None
    table, positions = str(node.inputs[0]), str(node.inputs[1])
    batch, _, length, size = x.shape
    half = size // 2 if isinstance(size, int) else None
    fits = graph.spec(positions).shape == (batch, length) and graph.spec(table).dtype is x.dtype
    return (table, positions) if fits and graph.spec(table).shape[1:] == (half,) else None


def _half(editor: Editor, at: Node, table: str, x: TensorSpec) -> str:
    spec = editor.values[table].spec
    assert spec is not None
    shape = _table_shape(spec, x)
    assert shape is not None
    flat = table if spec.shape == shape else editor.insert(at, "view", table, size=shape)
    half: str = editor.insert(at, "slice", flat, dim=len(shape) - 1, start=0, end=int(shape[-1]) // 2)  # type: ignore[call-overload]
    return half
