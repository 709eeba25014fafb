"""recognize_attention: replace softmax(q @ k.T * scale + mask) @ v, as models and exporters write it, by one op that never stores the scores.

Supported forms: the scale on q, k, both, or the scores, as a product or a division; a mask that is added, or selected by a ``where``;
softmax in float32; the guard that zeroes fully masked rows (``where(isnan(p), 0, p)``), which is part of the op; three dims
[batch * heads, length, size] or four. Keys and values that are repeated for groups of query heads are read directly:
``attention`` supports groups (Ainslie et al. 2023).

A row that a mask of -inf hides completely gives 0, where the written-out form without the guard gives NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import IrError
from ..ir import Editor, Graph, Node, sources_of
from ..types import DType, TensorSpec
from . import simplify
from ._lib.known import splat
from .context import PassContext

__all__ = ["run"]

_PRODUCTS = ("matmul", "bmm")
_HIDDEN = -1e4  # masked scores are at most this: exp of it is 0 next to any other score


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with attention nodes, without repeated keys and values."""
    context = context or PassContext()

    def rule(editor: Editor, node: Node) -> None:
        if node.op not in _PRODUCTS or node.spec.rank not in (3, 4) or not node.spec.dtype.is_float:
            return
        match = _AttentionMatcher(graph).attention(graph.node(node.name))
        if match is None or not context.may_fuse(graph, (*match.members, graph.node(node.name))):
            return
        try:
            _make(editor, node, match)
        except IrError:  # the shapes broadcast differently from the op's
            return

    rewritten = graph.rewrite(rule)
    return (
        simplify.run(_grouped(simplify.run(rewritten, context)), context)
        if rewritten is not graph
        else _grouped(graph)
    )


@dataclass(slots=True)
class _AttentionMatch:
    """A match: operands by name, and the nodes that the op replaces."""

    q: str = ""
    k: str = ""
    v: str = ""
    transposed: bool = False  # whether k is [..., size, length]
    scale: float = 1.0
    mask: Any = None
    softcap: float = 0.0
    hidden: tuple[str, float] | None = (
        None  # a bool value that is true for kept scores, and the score of the others
    )
    members: list[Node] = field(default_factory=list)


class _AttentionMatcher:
    """Matches attention from the last product backward through nodes without other readers."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.match = _AttentionMatch()

    def attention(self, root: Node) -> _AttentionMatch | None:
        """Return the attention that ends in this product, or None."""
        weights, values = root.inputs
        softmax = self.probabilities(weights)
        if softmax is None or not isinstance(values, str):
            return None
        self.match.v = values
        scores = self.scores(softmax.inputs[0])
        if scores is None or not self.operands(scores):
            return None
        return self.match

    def own(self, value: Any, users: int = 1) -> Node | None:
        """Return the producer of a value that has no readers outside the expression."""
        node = self.graph.producer(value) if isinstance(value, str) else None
        if (
            node is None
            or value in self.graph.kept
            or len(self.graph.users(value)) > users
            or len(node.outputs) > 1
        ):
            return None
        return node

    def probabilities(self, value: Any) -> Node | None:
        """Return the softmax over keys, looking through casts and the guard against rows of NaN."""
        node = self.own(value)
        while node is not None and node.op in ("cast", "dropout"):
            self.match.members.append(node)
            node = self.own(node.inputs[0])
        if node is not None and node.op == "where" and splat(self.graph, node.inputs[1]) == 0:
            guard = self.graph.producer(str(node.inputs[0]))
            if guard is None or guard.op != "isnan" or guard.inputs[0] != node.inputs[2]:
                return None
            self.match.members += [node, guard]
            node = self.own(node.inputs[2], users=2)
        if node is None or node.op != "softmax" or node.attrs["dim"] != node.spec.rank - 1:
            return None
        self.match.members.append(node)
        return node

    def scores(self, value: Any) -> Node | None:
        """Return the product of q and k, looking through mask, softcap and scale in this order."""
        match, node = self.match, self.own(value)
        while node is not None and node.op not in _PRODUCTS:
            first, second = (*node.inputs, None)[:2]
            scaled = match.scale != 1.0
            match node.op:
                case "add" if (
                    match.mask is None and match.hidden is None and not scaled and not match.softcap
                ):
                    inner = self.branch(first, second)
                    if inner is None:
                        return None
                    match.mask = second if inner == first else first
                    value = inner
                case "where" if (
                    match.mask is None and match.hidden is None and not scaled and not match.softcap
                ):
                    low = splat(self.graph, node.inputs[2])
                    if low is None or low > _HIDDEN:
                        return None
                    match.hidden, value = (str(first), low), second
                case "mul" | "div" if (factor := self.factor(node)) is not None:
                    match.scale *= factor[1]
                    value = factor[0]
                case "cast":
                    value = first
                case _:
                    return None
            match.members.append(node)
            node = self.own(value)
        if node is not None:
            match.members.append(node)
        return node

    def branch(self, a: Any, b: Any) -> Any:
        """Return the operand of an addition that leads to the product; the other is the mask."""
        for value in (a, b):
            node = self.own(value)
            while (
                node is not None
                and node.op in ("mul", "div", "cast")
                and self.factor(node, cast=True) is not None
            ):
                node = self.own(self.factor(node, cast=True)[0])  # type: ignore[index]
            if node is not None and node.op in _PRODUCTS:
                return value
        return None

    def factor(self, node: Node, cast: bool = False) -> tuple[Any, float] | None:
        """Return a product with a number as (value, number); None for another node."""
        if cast and node.op == "cast":
            return node.inputs[0], 1.0
        a, b = node.inputs[:2]
        by = splat(self.graph, b)
        if node.op == "div":
            return (a, 1 / by) if by and node.attrs["rounding_mode"] is None else None
        if node.op != "mul":
            return None
        if by is not None:
            return a, by
        by = splat(self.graph, a)
        return None if by is None else (b, by)

    def operands(self, product: Node) -> bool:
        """Set q and k, without constant factors. Return whether the product has two tensors."""
        q, k = product.inputs
        if not isinstance(q, str) or not isinstance(k, str):
            return False
        self.match.q, self.match.k = self.unscaled(q), self.unscaled(k)
        return True

    def unscaled(self, value: str) -> str:
        node = self.own(value)
        factor = self.factor(node) if node is not None and node.op in ("mul", "div") else None
        if node is None or factor is None or not isinstance(factor[0], str):
            return value
        if self.graph.values[factor[0]].spec != node.outputs[0].spec:
            return value
        self.match.scale *= factor[1]
        self.match.members.append(node)
        return factor[0]


def _make(editor: Editor, node: Node, match: _AttentionMatch) -> None:
    rank, dtype = node.spec.rank, node.spec.dtype
    keys = editor.insert(node, "permute", match.k, dims=(*range(rank - 2), rank - 1, rank - 2))
    mask = _mask(editor, node, match)
    operands = [match.q, keys, match.v]
    if rank == 3:  # batch and heads are one dim, used as the heads of one example
        operands = [editor.insert(node, "unsqueeze", v, dims=(0,)) for v in operands]
    if mask is not None and _spec(editor, mask).dtype not in (dtype, DType.BOOL):
        mask = editor.insert(node, "cast", mask, dtype=dtype)
    attrs: dict[str, Any] = {"scale": match.scale}
    if rank == 4:
        editor.replace(node, "attention", *operands, *(() if mask is None else (mask,)), **attrs)
    else:
        y = editor.insert(node, "attention", *operands, *(() if mask is None else (mask,)), **attrs)
        editor.replace(node, "squeeze", y, dims=(0,))
    members = [n for n in editor.graph.nodes if n.name in {m.name for m in match.members}]
    editor.set_sources(editor.current(node), sources_of([*members, node]))


def _mask(editor: Editor, node: Node, match: _AttentionMatch) -> Any:
    """Return the mask for the op: bool if hidden scores are -inf, else numbers to add."""
    if match.hidden is None:
        mask = match.mask
        return mask if isinstance(mask, str) else None
    keep, low = match.hidden
    if low == float("-inf"):
        return keep
    wide = node.spec.dtype is not DType.FLOAT32  # two plain numbers would give float32
    zero = editor.insert(node, "full", size=(), value=0.0, dtype=node.spec.dtype) if wide else 0.0
    return editor.insert(node, "where", keep, zero, low)


def _spec(editor: Editor, value: str) -> TensorSpec:
    spec = editor.values[value].spec
    assert spec is not None
    return spec


def _grouped(graph: Graph) -> Graph:
    """Return the graph with attention on grouped keys and values, without their repetition."""

    def rule(editor: Editor, node: Node) -> None:
        if node.op != "attention":
            return
        q, k, v, *rest = node.inputs
        fewer = [_unrepeated(graph, value) for value in (k, v)]
        if None in fewer or graph.spec(fewer[0]).shape[1] != graph.spec(fewer[1]).shape[1]:  # type: ignore[arg-type]
            return
        editor.replace(node, "attention", q, *fewer, *rest, **node.attrs)

    return graph.rewrite(rule)


def _unrepeated(graph: Graph, value: Any) -> str | None:
    """Return [batch, heads, length, size] before each head was repeated by a view of an expand of [batch, heads, 1, length, size]."""
    outer = graph.producer(value)
    if outer is None or outer.op not in ("view", "clone"):
        return None
    inner = graph.producer(str(outer.inputs[0]))
    if inner is None or inner.op != "expand" or inner.spec.rank != 5 or outer.spec.rank != 4:
        return None
    grouped = graph.producer(str(inner.inputs[0]))
    if grouped is None or grouped.op not in ("view", "unsqueeze"):
        return None
    five, four = grouped.spec.shape, graph.spec(str(grouped.inputs[0])).shape
    b, g, r, n, d = inner.spec.shape
    is_repeat = five == (b, g, 1, n, d) and four == (b, g, n, d) and outer.spec.shape == (b, g * r, n, d)
    return str(grouped.inputs[0]) if is_repeat else None
