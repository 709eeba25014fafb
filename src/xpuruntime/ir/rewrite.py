"""Editor: changes to a graph, collected and applied at once. Passes use it through ``graph.rewrite(rule)``.

    def rule(editor, node):
        if node.op == "mul" and node.inputs[1] == 1.0:
            editor.forward(node.name, node.inputs[0])

A node that replaces others keeps their sources, so that a policy can still name a node of the user's model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import IrError
from .attributes import Const
from .nodes import make_node
from .ops._types import agrees
from .parts import Input, Node, Output, Source, State, Value, Weight
from .shapes.decided import deciding_values, open_sizes

if TYPE_CHECKING:
    from .graph import Graph

__all__ = ["Editor", "ordered", "sources_of"]


def sources_of(nodes: Iterable[Node]) -> tuple[Source, ...]:
    """Return the sources of all nodes in order, each once."""
    return tuple(dict.fromkeys(s for n in nodes for s in n.sources))


class Editor:
    """Edits of one graph. ``graph`` does not change; ``done`` returns the new graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[str, Value] = dict(graph.values)
        self._before: dict[str, list[Node]] = {}
        self._instead: dict[str, Node] = {}
        self._removed: set[str] = set()
        self._forward: dict[str, str] = {}
        self._weights: list[Weight] = list(graph.weights)
        self._fresh: dict[str, int] = {}
        self.changed = False

    # ── queries ──

    def alive(self, node: Node) -> bool:
        """Return True if the node was neither removed nor absorbed by another."""
        return node.name not in self._removed

    def resolve(self, item: Input) -> Input:
        """Return the value that currently replaces this one."""
        if not isinstance(item, str) or item not in self._forward:
            return item
        end = item
        while end in self._forward:
            end = self._forward[end]
        while item != end:  # path compression keeps long chains fast
            self._forward[item], item = end, self._forward[item]
        return end

    def current(self, node: Node) -> Node:
        """Return the current form of the node, with its inputs resolved."""
        node = self._instead.get(node.name, node)
        inputs = tuple(self.resolve(i) for i in node.inputs)
        return (
            node if inputs == node.inputs else Node(node.op, inputs, node.attrs, node.outputs, node.sources)
        )

    # ── edits ──

    def insert(
        self, before: Node, op: str, *inputs: Any, name: str = "", outputs: int | None = None,
        sources: Sequence[Source] | None = None, **attrs: Any,
    ) -> Any:  # fmt: skip
        """Insert a node before another one. Return its output's name, or a tuple of names. Sources default to the other node's."""
        node = make_node(
            op,
            tuple(self._operand(before, i) for i in inputs),
            attrs,
            lambda count: [self.fresh(name or op) for _ in range(count)],
            self.values,
            outputs=outputs,
            sources=before.sources if sources is None else sources,
        )
        self._before.setdefault(before.name, []).append(node)
        self.values.update((v.name, v) for v in node.outputs)
        self.changed = True
        return node.outputs[0].name if len(node.outputs) == 1 else tuple(v.name for v in node.outputs)

    def replace(self, node: Node, op: str, *inputs: Any, absorbs: Iterable[Node] = (), **attrs: Any) -> Node:
        """Replace the node by another op with the same output names. The new node also computes the nodes in ``absorbs``: they are
        removed, and their sources come before the node's own. Raises IrError if the result has another type.
        """
        absorbed = [n for n in absorbs if n.name != node.name]
        new_node = make_node(
            op,
            tuple(self._operand(node, i) for i in inputs),
            attrs,
            lambda count: [v.name for v in node.outputs[:count]],
            self.values,
            outputs=len(node.outputs),
            sources=sources_of([*absorbed, node]),
        )
        for old, new in zip(node.outputs, new_node.outputs, strict=True):
            if old.spec is not None and (new.spec is None or not agrees(old.spec, new.spec)):
                raise IrError(
                    f"rewrite of %{old.name}", f"{op} has a result of another type", got=f"{new} for {old}"
                )
        self._instead[node.name] = new_node
        self.values.update((v.name, v) for v in new_node.outputs)
        for member in absorbed:
            self.remove(member)
        self.changed = True
        return new_node

    def set_sources(self, node: Node, sources: Sequence[Source]) -> None:
        """Set the sources of a node."""
        self._instead[node.name] = Node(node.op, node.inputs, node.attrs, node.outputs, tuple(sources))
        self.changed = True

    def forward(self, value: str, to: str) -> None:
        """Replace all uses of ``value`` by ``to``."""
        target = self.resolve(to)
        if target == self.resolve(value):
            return
        self._forward[str(self.resolve(value))] = str(target)
        self.changed = True

    def remove(self, node: Node) -> None:
        """Remove a node. No remaining node may read it, which ``verify`` checks."""
        self._removed.add(node.name)
        self._instead.pop(node.name, None)
        self.changed = True

    def weight(self, weight: Weight) -> str:
        """Add a weight and return its name."""
        if weight.name in self.values:
            raise IrError(
                f"rewrite of {self.graph.name!r}",
                "a value with the name of the new weight already exists",
                got=repr(weight.name),
            )
        self._weights.append(weight)
        self.values[weight.name] = weight.value
        self.changed = True
        return weight.name

    def fresh(self, stem: str) -> str:
        """Return a name that no value has or had."""
        while True:
            number = self._fresh.get(stem, 0)
            self._fresh[stem] = number + 1
            name = f"{stem}_{number}" if number else stem
            if name not in self.values and name not in self.graph.former_names:
                # reserve it now: a node needs all its names before it exists
                self.values[name] = Value(name, None)
                return name

    def _operand(self, before: Node, item: Any) -> Input:
        if isinstance(item, Const):
            name: str = self.insert(before, "constant", value=item)
            return name
        return self.resolve(item)

    # ── result ──

    def done(self, *, keep_dead: bool = False) -> Graph:
        """Return the new graph in topological order, or the old graph if nothing changed and no node is dead."""
        if not self.changed and _in_order(self.graph.nodes) and (keep_dead or self._all_read()):
            return self.graph
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes += (self.current(n) for n in self._before.get(node.name, ()))
            if node.name not in self._removed:
                nodes.append(self.current(node))
        outputs = tuple(Output(o.name, str(self.resolve(o.value))) for o in self.graph.outputs)
        states = tuple(
            State(s.value, s.init, None if s.next is None else str(self.resolve(s.next)))
            for s in self.graph.states
        )
        nodes = ordered(nodes)
        weights = self._weights
        if not keep_dead:
            read = {o.value for o in outputs} | {n for s in states for n in (s.next, s.init) if n is not None}
            deciding = self.graph.deciding and deciding_values(self.graph.given_symbols, nodes)
            live: list[Node] = []
            for node in reversed(nodes):
                if any(v.name in read for v in node.outputs):
                    live.append(node)
                    read.update(node.values)
                    if deciding:
                        read.update(deciding[s] for s in open_sizes(node) if s in deciding)
            nodes = live[::-1]
            weights = [w for w in weights if w.name in read]
        if (
            not self.changed
            and len(nodes) == len(self.graph.nodes)
            and len(weights) == len(self.graph.weights)
        ):
            return self.graph
        return self.graph.replace(nodes=tuple(nodes), outputs=outputs, states=states, weights=tuple(weights))

    def _all_read(self) -> bool:
        """Return True if each node and each weight of the graph has a reader. In a graph without cycles, none is dead then."""
        graph = self.graph
        read = {o.value for o in graph.outputs} | {n for s in graph.states for n in (s.next, s.init)}
        for node in graph.nodes:
            read.update(node.values)
        return all(any(v.name in read for v in n.outputs) for n in graph.nodes) and all(
            w.name in read for w in graph.weights
        )


def ordered(nodes: Sequence[Node]) -> list[Node]:
    """Sort nodes topologically, keeping the given order where possible. Raises IrError for a cycle."""
    if _in_order(nodes):
        return list(nodes)
    makers = {v.name: node for node in nodes for v in node.outputs}
    placed: set[str] = set()
    result: list[Node] = []
    for root in nodes:
        stack = [(root, False)]
        pending: set[str] = set()
        while stack:
            node, ready = stack.pop()
            if node.name in placed:
                continue
            if ready:
                placed.add(node.name)
                result.append(node)
                continue
            if node.name in pending:
                raise IrError(
                    f"node {node.op} %{node.name}",
                    "depends on its own result through other nodes",
                    do="Undo the rewrite.",
                )
            pending.add(node.name)
            stack.append((node, True))
            needed = [
                makers[v] for v in dict.fromkeys(node.values) if v in makers and makers[v].name not in placed
            ]
            stack += [(n, False) for n in reversed(needed)]
    return result


def _in_order(nodes: Sequence[Node]) -> bool:
    """Return True if every node follows those whose results it reads, and no name occurs twice."""
    makers = {v.name: node for node in nodes for v in node.outputs}
    done: set[str] = set()
    for node in nodes:
        name = node.name
        if name in done:
            return False
        for operand in node.inputs:
            if isinstance(operand, str) and operand in makers and makers[operand].name not in done:
                return False
        done.add(name)
    return True
