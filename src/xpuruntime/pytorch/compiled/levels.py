"""Levels of an FX graph: which supported nodes run together, between the nodes that PyTorch runs.

A node of level n waits for n of PyTorch's nodes on its longest path. All supported nodes of a level are one region. A region therefore runs as
soon as its operands exist, so that a gradient of a weight is computed right after the gradient that it reads, which is then no longer kept.
Nodes of PyTorch that draw random numbers keep their order, so that a seed gives the numbers of eager PyTorch.
Nodes that read only inputs of the graph, such as conversions of weights and values that backward computes again, wait for their first reader.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...errors import InternalError

__all__ = ["in_order_of_draws", "is_random", "levels", "views_at_readers"]

_VIEWS = (
    "aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.t.default", "aten.transpose.int", "aten.permute.default",
    "aten.expand.default", "aten.unsqueeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.slice.Tensor", "aten.select.int",
    "aten.alias.default", "aten.detach.default",
)  # fmt: skip
"""Operators that move no data in PyTorch."""
_SPLITS = ("aten.split.Tensor", "aten.split_with_sizes.default")
"""Operators whose results are views of parts."""


def levels(module: GraphModule, unsupported: Container[str]) -> dict[Node, int]:
    """Return the level of each supported node. unsupported: names of nodes that PyTorch runs."""
    found, free = dict[Node, int](), set[Node]()
    draws = 0  # level of the last random number: the next one is drawn after it, as in eager PyTorch
    for node in module.graph.nodes:
        draw = is_random(node) and node.name in unsupported
        level = draws if draw else 0
        for source in node.all_input_nodes:
            level = max(
                level, found[source] + (_waits(source, unsupported) and not _waits(node, unsupported))
            )
        found[node] = level
        draws = level if draw else draws
        if not _waits(node, unsupported) and all(
            n in free or n.op != "call_function" for n in node.all_input_nodes
        ):
            free.add(node)
    for node in reversed(module.graph.nodes):
        readers = [found[u] for u in node.users if u.op != "output"]
        if node in free and node.op == "call_function" and readers:
            found[node] = min(readers)
            for part in _parts(node):
                found[part] = found[node]  # a region returns tensors, no tuples of them
    return {n: level for n, level in found.items() if n.op == "call_function" and n.name not in unsupported}


def is_random(node: Node) -> bool:
    """Return True for a node that draws random numbers."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "rng_state" in target.name()
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def in_order_of_draws(module: GraphModule, draws: Sequence[str]) -> None:
    """Move nodes of the module, in place, such that random numbers are drawn by these nodes in order. Each node stays after its operands."""
    ready, pending, order = set[Node](), list(module.graph.nodes), list[Node]()
    rank = {name: i for i, name in enumerate(draws)}
    drawn = 0
    while pending:
        rest = list[Node]()
        for node in pending:
            if rank.get(node.name, drawn) == drawn and ready.issuperset(node.all_input_nodes):
                drawn += node.name in rank
                ready.add(node)
                order.append(node)
            else:
                rest.append(node)
        if len(rest) == len(pending):
            raise InternalError("levels", "random numbers and regions wait for each other", got=f"{rest[0]}")
        pending = rest
    for node in order:
        module.graph._root.prepend(node)


def _parts(node: Node) -> list[Node]:
    return [u for u in node.users if u.target is operator.getitem and u.args[0] is node]


def _waits(node: Node, unsupported: Container[str]) -> bool:
    return node.op == "call_function" and node.name in unsupported


def views_at_readers(module: GraphModule, level: Mapping[Node, int]) -> dict[Node, int]:
    """Give each reader outside of a view's region a copy of the view, so that regions return tensors and no view needs a copy of its data.

    Return the levels with those of the new nodes. A copy for a node of PyTorch, or for the results, is of no level: PyTorch makes the view.
    """
    known, twins = dict(level), dict[tuple[Node, int | None], Node]()

    def twin(node: Any, at: int | None, reader: Node) -> Any:
        if node not in level or level[node] == at or not _is_view(node):
            return node
        if (node, at) not in twins:
            source = twin(node.args[0], at, reader)
            with module.graph.inserting_before(reader):
                copy = module.graph.node_copy(node, lambda n: source if n is node.args[0] else n)
            twins[node, at] = copy
            if at is not None:
                known[copy] = at
        return twins[node, at]

    for reader in list(module.graph.nodes):
        if reader.op not in ("call_function", "output"):
            continue
        at = level.get(reader)
        new = torch.fx.map_arg(
            (reader.args, reader.kwargs), lambda n, at=at, reader=reader: twin(n, at, reader)
        )
        reader.args, reader.kwargs = new
    module.graph.eliminate_dead_code()
    module.recompile()
    return {n: known[n] for n in module.graph.nodes if n in known}


def _is_view(node: Node) -> bool:
    if node.target is operator.getitem:
        return isinstance(node.args[0], Node) and str(node.args[0].target) in _SPLITS
    return str(node.target) in (*_VIEWS, *_SPLITS)
