"""Attribution by data flow: from executed steps back to the nodes of the user's model.

Vendors fuse, fold, rename and insert nodes. Few node names survive, but values between steps mostly keep their names. A step computes
the nodes between the values that it reads and those that it writes.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar

from ..protocols import ModelSource, NodeRef

__all__ = ["SourceGraph", "explain_unnamed", "inherit", "least_times", "typical"]

_TYPICAL: ContextVar[Callable[[Sequence[float]], float]] = ContextVar("typical", default=statistics.median)


def typical(times: Sequence[float]) -> float:
    """Return one value for several times of a step: the median, or the minimum within ``least_times``."""
    return _TYPICAL.get()(times)


@contextlib.contextmanager
def least_times() -> Iterator[None]:
    """Report minimum times in evidence that is collected within the block. Other load only adds time, so minima compare best."""
    token = _TYPICAL.set(min)
    try:
        yield
    finally:
        _TYPICAL.reset(token)


_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
)


class SourceGraph:
    """The nodes of a model with their edges: the producer and the readers of each value."""

    def __init__(self, model: ModelSource) -> None:
        self.nodes: Mapping[str, NodeRef] = {n.name: n for n in model.nodes}
        self.maker: Mapping[str, NodeRef] = {v: n for n in model.nodes for v in n.outputs}
        self.readers: dict[str, list[NodeRef]] = {}
        for node in model.nodes:
            for value in node.inputs:
                self.readers.setdefault(value, []).append(node)
        self._outputs = {s.name for s in model.outputs}
        live = {s.name for s in model.inputs}
        self.weights = {v for n in model.nodes for v in n.inputs} - set(self.maker) - live
        self.constant: set[str] = set()
        for node in model.nodes:
            if node.op in _RANDOM or any(v in live for v in node.inputs):
                live |= set(node.outputs)
            else:
                self.constant.add(node.name)

    def known(self, value: str) -> bool:
        """Return True if the model has a value of that name."""
        return value in self.maker or value in self.readers

    def between(self, outputs: Iterable[str], available: Collection[str]) -> tuple[str, ...]:
        """Return the names of the nodes that compute ``outputs`` from ``available`` values, in the model's order.

        Constant subgraphs on the way are left out: vendors compute them once, when loading.
        """
        names: set[str] = set()
        todo = [self.maker[v] for v in outputs if v in self.maker]
        while todo:
            node = todo.pop()
            if node.name not in names:
                names.add(node.name)
                makers = [self.maker[v] for v in node.inputs if v not in available and v in self.maker]
                todo += [m for m in makers if m.name not in self.constant or node.name in self.constant]
        return self.ordered(names)

    def ordered(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the names in the model's order."""
        return tuple(n for n in self.nodes if n in names)

    def only_reader(self, value: str) -> NodeRef | None:
        """Return the single reader of a value that is no output, else None."""
        readers = self.readers.get(value, [])
        return readers[0] if len(readers) == 1 and value not in self._outputs else None

    def absorb(self, rows: Sequence[set[str]], may: Callable[[NodeRef, int], bool] = lambda *_: True) -> None:
        """Assign unassigned nodes to the row that alone reads them, since they were fused into it. Changes ``rows``.

        ``may(node, row)`` can veto. Constant subgraphs stay out: vendors compute them once, when loading.
        """
        owner = {name: i for i, row in enumerate(rows) for name in row}
        for node in reversed(list(self.nodes.values())):
            if node.name in owner or node.name in self.constant:
                continue
            if any(v in self._outputs for v in node.outputs):
                continue
            takers = {owner.get(r.name) for v in node.outputs for r in self.readers.get(v, [])}
            if len(takers) == 1 and (taker := next(iter(takers))) is not None and may(node, taker):
                rows[taker].add(node.name)
                owner[node.name] = taker


def inherit(rows: Sequence[set[str]], readers: Sequence[Collection[int]], may: Callable[[int], bool]) -> None:
    """Assign the nodes of its only reader to a row without nodes, since it is a part of a decomposed op. Changes ``rows``.

    readers: for each row, in execution order, the rows that read what it makes. ``may(row)`` can veto.
    """
    for i in range(len(rows) - 1, -1, -1):
        if not rows[i] and len(readers[i]) == 1 and may(i):
            rows[i] |= rows[next(iter(readers[i]))]


_REMOVED = frozenset({"Identity", "Dropout"})
_SHAPES = frozenset({"Shape", "Size"})
_MOVES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Concat", "Expand"})


def explain_unnamed(
    source: SourceGraph, outputs: Collection[str], rows: Sequence[tuple[Sequence[str], str]], when: str
) -> dict[str, str]:
    """Return what became of each node that no step names. Nodes for which the model and the steps give no reason are left out.

    outputs: the model's outputs. rows: the nodes and the kernel of each step. when: ``loading`` or ``compiling``.
    """
    owner = {name: kernel for names, kernel in reversed(rows) for name in names}
    first = {name: names[0] for names, _ in rows for name in names}
    live, by_shape = _live(source, outputs), _from_shapes(source)
    reasons: dict[str, str] = {}
    for node in source.nodes.values():
        if node.name in owner:
            continue
        if node.name in source.constant:
            reasons[node.name] = f"depends on no input, so it is computed once when {when}"
        elif node.name in by_shape:
            reasons[node.name] = f"depends on shapes alone, so it is computed once when {when}"
        elif node.name not in live:
            reasons[node.name] = "no output depends on it, so it is removed"
        elif node.op in _REMOVED:
            reasons[node.name] = f"{node.op} changes nothing, so it is removed"
        elif near := _nearest(source, node.name, owner):
            kernels = ", ".join(f"{first[n]!r} ({owner[n]})" for n in near[:3])
            part = "moves no data alone; it is" if node.op in _MOVES else "is"
            reasons[node.name] = f"{part} part of the step of {kernels}, next to it"
    return reasons


def _live(source: SourceGraph, outputs: Collection[str]) -> set[str]:
    """Return the nodes that an output depends on."""
    live: set[str] = set()
    todo = [source.maker[v] for v in outputs if v in source.maker]
    while todo:
        node = todo.pop()
        if node.name not in live:
            live.add(node.name)
            todo += [source.maker[v] for v in node.inputs if v in source.maker]
    return live


def _from_shapes(source: SourceGraph) -> set[str]:
    """Return the nodes that depend on inputs through shapes alone."""
    nodes_of_shapes: set[str] = set()
    for node in source.nodes.values():
        makers = [source.maker[v].name for v in node.inputs if v in source.maker]
        known = nodes_of_shapes | source.constant
        from_weights = all(v in source.maker or v in source.weights for v in node.inputs)
        if node.op in _SHAPES or (makers and from_weights and all(m in known for m in makers)):
            nodes_of_shapes.add(node.name)
    return nodes_of_shapes - source.constant


def _nearest(source: SourceGraph, name: str, owner: Mapping[str, str]) -> list[str]:
    """Return the closest named nodes that read a node's results through unnamed ones, else those that it reads from."""
    for forward in (True, False):
        nearest: dict[str, None] = {}
        seen, todo = {name}, [name]
        while todo:
            node = source.nodes[todo.pop()]
            if forward:
                near = [r.name for v in node.outputs for r in source.readers.get(v, ())]
            else:
                near = [source.maker[v].name for v in node.inputs if v in source.maker]
            for other in near:
                if other in owner:
                    nearest[other] = None
                elif other not in seen:
                    seen.add(other)
                    todo.append(other)
        if nearest:
            return list(nearest)
    return []
