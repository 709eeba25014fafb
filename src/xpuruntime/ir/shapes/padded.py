"""Results whose sizes only a run knows, in their largest size and with a count: for programs, whose shapes are static.

    padded = pad_counts(graph)          # the output "y" has as many rows as fit, and an output "y.count" says how many are valid
    padded.graph, padded.counts         # counts: {"y": Count(axis=0, output="y.count")}

The ops are expanded as in ``counted``. What is behind the count is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ...errors import IrError
from ...types import Dim
from ..graph import Graph, Output
from ..ops import OPS
from ..parts import Node
from ..rewrite import Editor
from .counted import EXPANSIONS, CountedNode, broadcast_sizes, sizes
from .symbols import specialize

__all__ = ["Count", "PaddedGraph", "pad_counts"]

_ROWWISE = frozenset(["clone", "permute"])
"""Ops apart from pointwise ones that may read a padded result: each element of their results depends on one of its elements."""


@dataclass(frozen=True, slots=True)
class Count:
    """Where the size of an output is: along ``axis`` only the first elements are valid, as many as the output ``output`` says (int64[])."""

    axis: int
    output: str


@dataclass(frozen=True, slots=True)
class PaddedGraph:
    """A graph with static results. counts: the padded outputs by name."""

    graph: Graph
    counts: Mapping[str, Count]

    def cut(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of a run (arrays by name) without padding and counts."""
        counts = {c.output for c in self.counts.values()}
        results = {name: array for name, array in outputs.items() if name not in counts}
        for name, count in self.counts.items():
            valid = (slice(None),) * count.axis + (slice(int(outputs[count.output])),)
            results[name] = results[name][valid]
        return results


def pad_counts(graph: Graph) -> PaddedGraph:
    """Return the graph with its counted results in their largest sizes. Other sizes must be known.

    Raises IrError for a count that another node needs as a size.
    """
    counting = {symbol: n for n in graph.nodes if n.op in EXPANSIONS for symbol in _symbols(n)}
    _check_readers(graph, frozenset(counting))
    static = specialize(graph, {symbol: _largest(graph, n) for symbol, n in counting.items()})
    editor, totals = Editor(static), dict[str, str]()
    for symbol, node in counting.items():
        totals[symbol] = EXPANSIONS[node.op](CountedNode(editor, static.node(node.name)))
    counts: dict[str, Count] = {}
    extra: list[tuple[str, str]] = []
    taken = {o.name for o in graph.outputs}
    for output in graph.outputs:
        for axis, d in enumerate(graph.spec(output.value).shape):
            symbol = next(iter(d.symbols & counting.keys()), "") if isinstance(d, Dim) else ""
            if symbol:
                name = f"{output.name}.count"
                while name in taken:
                    name += "_"
                taken.add(name)
                counts[output.name] = Count(axis, name)
                extra.append((name, totals[symbol]))
    done = editor.done(keep_dead=True)
    outputs = (*done.outputs, *(Output(name, value) for name, value in extra))
    return PaddedGraph(Editor(done.replace(outputs=outputs)).done(), MappingProxyType(counts))


def _symbols(node: Node) -> frozenset[str]:
    count = node.attrs["count"]
    return count.symbols if isinstance(count, Dim) else frozenset()


def _check_readers(graph: Graph, counts: frozenset[str]) -> None:
    """Raise IrError for a node that would compute with the padding, or with the count as a size."""
    for node in graph.nodes:
        specs = [graph.values[v].spec for v in node.values] + [v.spec for v in node.outputs]
        sized = any(spec is not None and spec.symbols & counts for spec in specs)
        in_attributes = any(
            isinstance(d, Dim) and d.symbols & counts
            for value in node.attrs.values()
            for d in (value if isinstance(value, tuple) else (value,))
        )
        if node.op in EXPANSIONS:
            wrong = any(spec is not None and spec.symbols & counts for spec in specs[: len(node.values)])
        else:
            wrong = in_attributes or (sized and not OPS[node.op].pointwise and node.op not in _ROWWISE)
        if wrong:
            raise IrError(
                f"node {node.name}",
                "computes with a size that only a run knows, which cannot be padded",
                got=node.op,
                do='Use a session with engine="native", which computes such sizes between programs.',
            )


def _largest(graph: Graph, node: Node) -> int:
    """Return the largest count of a node. Raise IrError if its operands have symbolic dims."""
    specs = [graph.spec(v) for v in node.values]
    if not all(s.is_static for s in specs):
        raise IrError(
            f"node {node.name}",
            "has operands of symbolic sizes",
            got=specs[0],
            do="Specialize the graph first.",
        )
    shape = sizes(specs[0])
    dim = node.attrs.get("dim")
    if node.op == "compress":
        length = shape[dim] if dim is not None else math.prod(shape)
        if math.prod(sizes(specs[1])) > length:
            raise IrError(f"node {node.name}", "has a condition that is longer than the dim", got=specs[1])
        return math.prod(sizes(specs[1]))
    if node.op == "non_max_suppression":
        return math.prod(sizes(specs[1]))
    if node.op == "masked_select":
        return math.prod(broadcast_sizes(*(sizes(s) for s in specs)))
    return shape[dim] if dim is not None else math.prod(shape)
