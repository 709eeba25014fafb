"""simplify: remove no-ops, merge chains of nodes, and normalize operands, by small rules per op until none applies.

``x + 0`` becomes x, which may change the sign of a zero. All other rewrites are bit-exact, including NaN and infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from ..errors import IrError
from ..ir import Editor, Graph, Node
from ._lib import simplify_math, simplify_views
from .context import PassContext

__all__ = ["run"]

Rule: TypeAlias = Callable[[Editor, Node], bool]
_MAX_SWEEPS = 20
"""Maximum sweeps over the graph; rules normally stop applying after a few."""

RULES: Mapping[str, tuple[Rule, ...]] = {
    op: (*simplify_views.RULES.get(op, ()), *simplify_math.RULES.get(op, ()))
    for op in {**simplify_views.RULES, **simplify_math.RULES}
}
"""Rules by op. A rule returns whether it rewrote the node."""


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph after every rule that applies."""
    for _ in range(_MAX_SWEEPS):
        before = graph
        graph = graph.rewrite(_sweep)
        if graph is before:
            break
    return graph


def _sweep(editor: Editor, node: Node) -> None:
    if any(v.spec is None for v in node.outputs):
        return
    for rule in (*RULES.get(node.op, ()), *simplify_views.ALL_OPS, *simplify_math.ALL_OPS):
        if _applied(rule, editor, node):
            return


def _applied(rule: Rule, editor: Editor, node: Node) -> Any:
    try:
        return rule(editor, node)
    except IrError:  # undecidable symbols: the node stays
        return False
