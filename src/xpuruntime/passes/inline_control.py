"""inline_control: replace control flow that is known by its nodes: a branch whose condition is constant, a loop with few iterations.

A loop is unrolled if its number of iterations and all sizes are known, and the copies have at most ``MAX_NODES`` nodes together. A
compiled loop costs a call of the host per iteration, and its body cannot be fused with its surroundings; large bodies are worth that.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..ir import Graph, Input, Node, Output, State
from ..ir.ops.control import CONTROL, own_symbols
from ..ir.shapes.settle import settled
from . import fold_constants
from ._lib.inline_body import BodyInliner
from .context import PassContext

__all__ = ["MAX_NODES", "run"]

MAX_NODES = 128
"""Nodes that a loop may become."""
_ROUNDS = 8
_MAX_COPIES = 20_000  # nodes that one run of the pass may add, nested control flow included


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph without control flow that is known. Constants are folded first, since a condition may depend on sizes."""
    for _ in range(_ROUNDS):
        if not any(n.op in CONTROL for n in graph.nodes):
            return graph
        folded = fold_constants.run(graph, context)
        graph = _once(folded)
        if graph is folded:
            return graph
    return graph


def _once(graph: Graph) -> Graph:
    writer = BodyInliner(graph)
    pending = deque(graph.nodes)
    left = _MAX_COPIES
    changed = False
    while pending:
        node = pending.popleft()
        node = Node(
            node.op, tuple(writer.now(i) for i in node.inputs), node.attrs, node.outputs, node.sources
        )
        inlined = _inlined(writer, node, left) if node.op in CONTROL else None
        if inlined is None:
            writer.add(node)
            continue
        changed = True
        copies, results = inlined
        left -= len(copies)
        pending.extendleft(reversed(copies))
        for value, result in zip(node.outputs, results, strict=True):
            writer.replacements[value.name] = str(result)
    if not changed:
        return graph
    return settled(
        graph.replace(
            nodes=tuple(writer.nodes),
            outputs=tuple(Output(o.name, str(writer.now(o.value))) for o in graph.outputs),
            states=tuple(
                State(s.value, s.init, None if s.next is None else str(writer.now(s.next)))
                for s in graph.states
            ),
        )
    )


def _inlined(writer: BodyInliner, node: Node, left: int) -> tuple[list[Node], list[Input]] | None:
    """Return the nodes that replace a node, which may have control flow again, and its results; None if it stays."""
    inner = BodyInliner(Graph("", (), (), ()))
    inner.values = writer.values  # names stay unique in the graph
    if node.op == "cond":
        condition = _number(writer, node.inputs[0])
        if condition is None:
            return None
        branch: Graph = node.attrs["then_branch" if condition else "else_branch"]
        if any(v.spec is not None and v.spec.symbols for v in node.outputs) or len(branch) > left:
            return None
        return inner.nodes, inner.copy(node, branch, node.inputs[1:])
    results = _unrolled(writer, inner, node, left)
    return None if results is None else (inner.nodes, results)


def _unrolled(writer: BodyInliner, inner: BodyInliner, node: Node, left: int) -> list[Input] | None:
    body: Graph = node.attrs["body"]
    limit_and_condition = (*node.inputs, None, None)[:2]
    trips = node.attrs["trips"] if limit_and_condition[0] is None else _number(writer, limit_and_condition[0])
    going = 1 if limit_and_condition[1] is None else _number(writer, limit_and_condition[1])
    if not isinstance(trips, int) or going != 1 or node.attrs["checked"] or own_symbols(body, frozenset()):
        return None
    work = max(trips, 1) * max(len(body) + len(body.outputs), 1)
    if work > min(MAX_NODES, left) or not all(v.spec is not None and v.spec.is_static for v in node.outputs):
        return None
    carried = node.attrs["carried"]
    state, captured = list(node.inputs[2 : 2 + carried]), node.inputs[2 + carried :]
    rows: list[list[Input]] = [[] for _ in body.outputs[carried:]]
    for at in range(max(trips, 0)):
        results = inner.copy(node, body, [inner.constant(node, np.array(at, np.int64)), *state, *captured])
        state = results[:carried]
        for stack, row in zip(rows, results[carried:], strict=True):
            stack.append(inner.make(node, "unsqueeze", row, dims=[0]))
    stacked: list[Input] = []
    for value, stack in zip(node.outputs[carried:], rows, strict=True):
        assert value.spec is not None
        if stack:
            stacked.append(inner.make(node, "cat", *stack, dim=0) if len(stack) > 1 else stack[0])
        else:
            stacked.append(inner.make(node, "full", size=value.spec.shape, value=0, dtype=value.spec.dtype))
    return [*state, *stacked]


def _number(writer: BodyInliner, item: Input) -> int | None:
    """Return the content of a constant of one element."""
    producer = next((n for n in reversed(writer.nodes) if n.name == item), None)
    if producer is None or producer.op != "constant" or producer.attrs["value"].size != 1:
        return None
    return int(producer.attrs["value"].item())
