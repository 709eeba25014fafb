"""recognize_experts: replace products with gathered matrices by one op, which reads the matrices where they are stored.

squeeze(bmm(index(w, ids), unsqueeze(x, 2)), 2)  ->  expert_linear(x, w, ids)
"""

from __future__ import annotations

from ..ir import Editor, Graph, Match, Node
from ..ir.match import Any, Op
from ..types import DType
from ._lib.pattern_rules import PatternRule, apply_patterns
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with mixtures of experts as ``expert_linear``."""
    return apply_patterns(graph, _RULES, context)


def _plain(match: Match) -> bool | str:
    """Return whether one index of one dim chooses matrices, and a column is multiplied."""
    w, ids = (match.graph.values[str(match[name])].spec for name in ("w", "ids"))
    column = match.node("column").spec
    if w is None or ids is None or (column.rank, w.rank, ids.rank) != (3, 3, 1) or column.shape[2] != 1:
        return "no matrix for each row"
    if ids.dtype not in (DType.INT32, DType.INT64) or not column.dtype.is_float:
        return "no float rows with integer experts"
    return all(len(n.inputs) == 2 for n in match.nodes if n.op == "index") or "several indices"


def _make(editor: Editor, node: Node, match: Match) -> object:
    column = match.node("column")
    x = column.inputs[0]
    if column.op == "view":
        x = editor.insert(node, "view", x, size=column.spec.shape[:2])
    ids = editor.insert(node, "unsqueeze", match["ids"], dims=[1])
    y = editor.insert(node, "expert_linear", x, match["w"], ids)
    return editor.replace(node, "squeeze", y, dims=[1])


_RULES = tuple(
    PatternRule(
        Op("squeeze", Op("bmm", Op("index", Any("w"), Any("ids")), column), dims=(2,)), _make, (_plain,)
    )
    for column in (Op("unsqueeze", Any(), dims=(2,), name="column"), Op("view", Any(), name="column"))
)
