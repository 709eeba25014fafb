"""sink_movement: move views and permutations behind elementwise ops, so that these fuse with the elementwise ops before.

mul(permute(add(x, bias)), 0.5)  ->  permute(mul(add(x, bias), 0.5))

A quantized transformer has many: codes become floats, a bias is added, heads are split, and the result becomes codes again.
"""

from __future__ import annotations

from ..ir import OPS, Editor, Graph, Node
from ._lib.pattern_utils import producer_of, spec_of
from .context import PassContext

__all__ = ["run"]

_MOVEMENT = frozenset(["view", "squeeze", "unsqueeze", "permute"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph without movements of one reader between elementwise ops."""
    return graph.rewrite(_rule)


def _rule(editor: Editor, node: Node) -> None:
    if not _is_elementwise(node) or node.outputs[0].spec is None or not node.spec.is_static:
        return
    source = _operand(editor, node)
    moves: list[Node] = []
    before = producer_of(editor, source)
    while (
        before is not None
        and before.op in _MOVEMENT
        and before.spec.is_static
        and _is_read_once(editor, before)
    ):
        moves.insert(0, before)
        before = producer_of(editor, before.inputs[0])
    if not moves or before is None or not _is_elementwise(before) or not _is_read_once(editor, before):
        return
    chain = _chain(editor, node, before.spec.rank)
    if not chain:
        return
    last, value = chain[-1], before.name
    for step in chain:
        inputs = [value if i == source else i for i in step.inputs]
        source, value = step.name, editor.insert(last, step.op, *inputs, sources=step.sources, **step.attrs)
    for move in moves[:-1]:
        value = editor.insert(last, move.op, value, sources=move.sources, **move.attrs)
    editor.replace(last, moves[-1].op, value, absorbs=[*moves, *chain], **moves[-1].attrs)


def _chain(editor: Editor, first: Node, rank: int) -> list[Node]:
    """Return the elementwise ops from ``first`` on, each the only reader of the one before, whose other operands have one element."""
    chain: list[Node] = []
    node: Node | None = first
    while (
        node is not None
        and _is_elementwise(node)
        and _suits(editor, node, chain[-1] if chain else None, rank)
    ):
        chain.append(node)
        readers = editor.graph.users(node.name)
        node = readers[0] if len(readers) == 1 and node.name not in editor.graph.kept else None
    return chain


def _suits(editor: Editor, node: Node, last: Node | None, rank: int) -> bool:
    """Return True if all operands but one have one element, and that one has the result's shape and is the value of ``last``.

    Elements of less than a byte stay where they are: no kernel moves them.
    """
    moved = _operand(editor, node)
    if moved is None or (last is not None and moved != last.name) or node.spec.dtype.bits < 8:
        return False
    others = [spec_of(editor, v) for v in node.values if v != moved]
    spec = spec_of(editor, moved)
    return (
        spec is not None
        and spec.shape == node.spec.shape
        and all(s is not None and len(s.shape) <= rank for s in others)
    )


def _operand(editor: Editor, node: Node) -> str | None:
    """Return the only operand of more than one element; None if there is none, or several."""
    wide = [v for v in dict.fromkeys(node.values) if not _is_single(editor, v)]
    return wide[0] if len(wide) == 1 else None


def _is_elementwise(node: Node) -> bool:
    op = OPS[node.op]
    return op.pointwise and not op.random and len(node.outputs) == 1


def _is_read_once(editor: Editor, node: Node) -> bool:
    return len(editor.graph.users(node.name)) == 1 and node.name not in editor.graph.kept


def _is_single(editor: Editor, value: str) -> bool:
    """Return True for a value of one element, which every shape broadcasts."""
    spec = spec_of(editor, value)
    return spec is not None and all(n == 1 for n in spec.shape)
