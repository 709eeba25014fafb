"""Pattern replacement, the driver of the ``recognize_*`` passes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...decisions import Support
from ...errors import IrError
from ...ir import Editor, Graph, Match, Node, find
from ...ir.match import Op
from ..context import PassContext

__all__ = ["Make", "PatternRule", "apply_patterns"]

Make: TypeAlias = "Callable[[Editor, Node, Match], Any]"


@dataclass(frozen=True, slots=True)
class PatternRule:
    """A pattern and its replacement.

    pattern: the expression. where: constraints on a match (True, or a reason against it). make: replaces the root node.
    """

    pattern: Op
    make: Make
    where: tuple[Callable[[Match], Any], ...] = ()


def apply_patterns(graph: Graph, rules: Iterable[PatternRule], context: PassContext | None) -> Graph:
    """Return the graph with the rules applied one after the other."""
    context = context or PassContext()
    ops = {n.op for n in graph.nodes}
    for rule in rules:
        if _may_occur(rule.pattern, ops):
            search = find(graph, rule.pattern, (*rule.where, _allowed(context, graph)))
            if search.matches:
                graph = _replaced(graph, rule, search.matches)
                ops = {n.op for n in graph.nodes}
    return graph


def _may_occur(pattern: Op, ops: Container[str]) -> bool:
    """Return False if a graph of these ops has no node for a part of the pattern, as most graphs for most patterns."""
    return any(op in ops for op in pattern.op.split("|")) and all(
        _may_occur(operand, ops) for operand in pattern.operands if isinstance(operand, Op)
    )


def _allowed(context: PassContext, graph: Graph) -> Callable[[Match], Support]:
    return lambda match: context.may_fuse(graph, match.nodes)


def _replaced(graph: Graph, rule: PatternRule, matches: Iterable[Match]) -> Graph:
    roots = {m.root.name: m for m in matches}

    def visit(editor: Editor, node: Node) -> None:
        match = roots.get(node.name)
        if match is None:
            return
        try:
            replaced = rule.make(editor, node, match)
        except IrError:  # the op has another result type, so the match is not this op
            return
        if replaced is False:
            return
        dead = [n for n in match.nodes if n.name != node.name and editor.graph.only_user(n.name) is not None]
        _merge_sources(editor, node, dead)

    return graph.rewrite(visit)


def _merge_sources(editor: Editor, node: Node, members: list[Node]) -> None:
    """Give the new node the sources of the nodes that it replaces. These become dead."""
    replacement = editor.current(node)
    sources = tuple(dict.fromkeys(s for n in [*members, node] for s in n.sources))
    editor.set_sources(replacement, sources)
