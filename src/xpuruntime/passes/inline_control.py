"""inline_control: replace control flow that is known by its nodes: a branch whose condition is constant, a loop with few iterations.

A loop is unrolled if its number of iterations and all sizes are known, and the copies have at most ``MAX_NODES`` nodes together. A
compiled loop costs a call of the host per iteration, and its body cannot be fused with its surroundings; large bodies are worth that.

A target without control flow (CUDA) unrolls up to ``MAX_NODES_WITHOUT_CONTROL`` nodes, and computes both branches of a cond and selects,
if neither can fail and all sizes are known. A loop that may end early runs to its limit, and the results of its end are selected.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..ir import OPS, Graph, Input, Node, Output, State, family_of
from ..ir.ops import movement
from ..ir.ops.control import CONTROL, bodies_of, own_symbols
from ..ir.shapes.settle import settled
from . import fold_constants
from ._lib.inline_body import BodyInliner
from .context import PassContext

__all__ = ["MAX_NODES", "MAX_NODES_WITHOUT_CONTROL", "run"]

MAX_NODES = 128
"""Nodes that a loop may become."""
MAX_NODES_WITHOUT_CONTROL = 4096
"""Nodes that a loop may become on a target without a kernel for loops."""
_TOTAL = frozenset(
    ["activation", "attention", "conv", "create", "elementwise", "matmul", "norm", "pool", "quantize", "reduce", "rope", "softmax"]
)  # fmt: skip
"""Op families that cannot fail at run time: both branches of a cond may be computed."""
_TOTAL_MOVES = frozenset(row.name for row in movement.ROWS) - {"masked_scatter", "reverse_sequence"}
"""Data movement to places that attributes determine."""
_ROUNDS = 8
_MAX_COPIES = 20_000  # nodes that one run of the pass may add, nested control flow included


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph without control flow that is known. Constants are folded first, since a condition may depend on sizes."""
    for _ in range(_ROUNDS):
        if not any(n.op in CONTROL for n in graph.nodes):
            return graph
        folded = fold_constants.run(graph, context)
        graph = _once(folded, context or PassContext())
        if graph is folded:
            return graph
    return graph


def _once(graph: Graph, context: PassContext) -> Graph:
    writer = BodyInliner(graph)
    pending = deque(graph.nodes)
    left = _MAX_COPIES
    changed = False
    while pending:
        node = pending.popleft()
        node = Node(
            node.op, tuple(writer.now(i) for i in node.inputs), node.attrs, node.outputs, node.sources
        )
        inlined = _inlined(writer, node, left, context) if node.op in CONTROL else None
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


def _inlined(
    writer: BodyInliner, node: Node, left: int, context: PassContext
) -> tuple[list[Node], list[Input]] | None:
    """Return the nodes that replace a node, which may have control flow again, and its results; None if it stays."""
    inner = BodyInliner(Graph("", (), (), ()))
    inner.values = writer.values  # names stay unique in the graph
    if node.op == "cond":
        condition = _number(writer, node.inputs[0])
        if condition is None:
            selects = not context.has_kernel("cond") and _selectable(node, left)
            return (inner.nodes, _selected(inner, node)) if selects else None
        branch: Graph = node.attrs["then_branch" if condition else "else_branch"]
        if any(v.spec is not None and v.spec.symbols for v in node.outputs) or len(branch) > left:
            return None
        return inner.nodes, inner.copy(node, branch, node.inputs[1:])
    most = MAX_NODES if context.has_kernel("loop") else MAX_NODES_WITHOUT_CONTROL
    results = _unrolled(writer, inner, node, min(most, left))
    if results is None and not context.has_kernel("loop"):
        results = _guarded(writer, inner, node, min(most, left))
    return None if results is None else (inner.nodes, results)


def _selectable(node: Node, left: int) -> bool:
    """Return whether both branches may be computed: their results have the same known sizes, and no node of them can fail."""
    branches: list[Graph] = [node.attrs["then_branch"], node.attrs["else_branch"]]
    return (
        sum(map(len, branches)) <= left
        and all(v.spec is not None and v.spec.is_static for v in node.outputs)
        and all(_is_total(branch) for branch in branches)
    )


def _is_total(body: Graph, trips: int | None = None) -> bool:
    """Return True if no node of a body can fail. ``trips``: iterations of the loop that it is the body of."""
    return all(
        not OPS[n.op].random
        and (
            family_of(n) in _TOTAL
            or n.op in _TOTAL_MOVES
            or (n.op in CONTROL and _is_total_control(n))
            or (n.op == "index_select" and _is_inside(body, n, trips))
        )
        for n in body.nodes
    )


def _is_total_control(node: Node) -> bool:
    trips = node.attrs["trips"] if node.op == "loop" and node.inputs[0] is None else None
    return all(_is_total(body, trips if isinstance(trips, int) else None) for body in bodies_of(node))


def _is_inside(body: Graph, node: Node, trips: int | None) -> bool:
    """Return True if a slice is selected by the number of the iteration, forward or backward, of which there are not more than slices."""
    size, at = body.spec(str(node.inputs[0])).shape[node.attrs["dim"]], node.inputs[1]
    if trips is None or not isinstance(size, int):
        return False
    number = body.inputs[0].name
    if at == number:
        return trips <= size
    producer = body.producer(str(at))
    if producer is None or producer.op != "sub" or producer.inputs[1] != number:
        return False
    first = body.producer(str(producer.inputs[0]))
    if first is None or first.op != "constant" or first.attrs["value"].size != 1:
        return False
    return trips - 1 <= int(first.attrs["value"].item()) < size


def _selected(inner: BodyInliner, node: Node) -> list[Input]:
    """Return the results of the branch that is taken, of which both are computed."""
    results = [inner.copy(node, node.attrs[name], node.inputs[1:]) for name in ("then_branch", "else_branch")]
    return [inner.make(node, "where", node.inputs[0], *pair) for pair in zip(*results, strict=True)]


def _unrolled(writer: BodyInliner, inner: BodyInliner, node: Node, most: int) -> list[Input] | None:
    body: Graph = node.attrs["body"]
    limit_and_condition = (*node.inputs, None, None)[:2]
    trips = node.attrs["trips"] if limit_and_condition[0] is None else _number(writer, limit_and_condition[0])
    going = 1 if limit_and_condition[1] is None else _number(writer, limit_and_condition[1])
    if not isinstance(trips, int) or going != 1 or node.attrs["checked"] or own_symbols(body, frozenset()):
        return None
    work = max(trips, 1) * max(len(body) + len(body.outputs), 1)
    if work > most or not all(v.spec is not None and v.spec.is_static for v in node.outputs):
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


def _guarded(writer: BodyInliner, inner: BodyInliner, node: Node, most: int) -> list[Input] | None:
    """Return the results of a loop that may end early: its iterations go on to the known limit, and select nothing new after the end."""
    body, checked, carried = node.attrs["body"], int(node.attrs["checked"]), node.attrs["carried"]
    limit, going = (*node.inputs, None, None)[:2]
    trips = node.attrs["trips"] if limit is None else _number(writer, limit)
    if not isinstance(trips, int) or own_symbols(body, frozenset()) or not _is_total(body, trips):
        return None
    stacks = len(body.outputs) > checked + carried  # as many rows as there were iterations
    work = max(trips, 1) * (len(body) + len(body.outputs))
    if stacks or work > most or not all(v.spec is not None and v.spec.is_static for v in node.outputs):
        return None
    state, captured = list(node.inputs[2 : 2 + carried]), node.inputs[2 + carried :]
    for at in range(max(trips, 0)):
        results = inner.copy(node, body, [inner.constant(node, np.array(at, np.int64)), *state, *captured])
        after = results[checked:]
        state = (
            after
            if going is None
            else [inner.make(node, "where", going, *pair) for pair in zip(after, state, strict=True)]
        )
        if checked:
            going = results[0] if going is None else inner.make(node, "logical_and", going, results[0])
    return state


def _number(writer: BodyInliner, item: Input) -> int | None:
    """Return the content of a constant of one element."""
    producer = next((n for n in reversed(writer.nodes) if n.name == item), None)
    if producer is None or producer.op != "constant" or producer.attrs["value"].size != 1:
        return None
    return int(producer.attrs["value"].item())
