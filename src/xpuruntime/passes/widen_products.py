"""widen_products: compute a product of 16-bit gradients in float32 where it is converted to float32 anyway.

cast(mm(a, b))           ->  mm_wide(a, b)
add(cast(mm(a, b)), c)   ->  mm_wide(a, b, c)      a gradient that is added to an earlier one

Tensor cores add in float32, so the result is more accurate than the converted one, and the 16-bit matrix is not stored. Only backward does so: a
session would not, and forward must compute what a session computes.
"""

from __future__ import annotations

from typing import Any

from ..ir import Editor, Graph, Node
from ..types import HALF_FLOATS, DType
from ._lib.pattern_utils import producer_of, spec_of
from .context import PassContext

__all__ = ["run"]

_PRODUCTS = frozenset(["mm", "matmul"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with wide products, if the context asks for them and kernels compute them."""
    context = context or PassContext()
    if not context.wide_products:
        return graph
    graph = graph.rewrite(lambda editor, node: _widened(editor, node, context))
    return graph.rewrite(lambda editor, node: _added(editor, node, context))


def _widened(editor: Editor, node: Node, context: PassContext) -> None:
    if node.op != "cast" or node.spec.dtype is not DType.FLOAT32:
        return
    product = producer_of(editor, node.inputs[0])
    if product is None or product.op not in _PRODUCTS or product.spec.dtype not in HALF_FLOATS:
        return
    if product.spec.rank != 2 or any(
        (s := spec_of(editor, v)) is None or s.rank != 2 for v in product.inputs
    ):
        return
    if _is_read_once(editor.graph, product) and _may(editor, node, product, context, product.inputs):
        editor.replace(node, "mm_wide", *product.inputs, None, absorbs=[product])


def _is_read_once(graph: Graph, node: Node) -> bool:
    return len(graph.users(node.name)) == 1 and node.name not in graph.kept


def _added(editor: Editor, node: Node, context: PassContext) -> None:
    if node.op != "add":
        return
    for at in (0, 1):
        product, other = producer_of(editor, node.inputs[at]), spec_of(editor, node.inputs[1 - at])
        if product is None or product.op != "mm_wide" or product.inputs[2:] not in ((), (None,)):
            continue
        if (
            other != product.spec
            or len(editor.graph.users(product.name)) != 1
            or node.inputs[0] == node.inputs[1]
        ):
            continue
        inputs = (*product.inputs[:2], node.inputs[1 - at])
        if _may(editor, node, product, context, inputs):
            editor.replace(node, "mm_wide", *inputs, absorbs=[product])
            return


def _may(editor: Editor, node: Node, product: Node, context: PassContext, inputs: tuple[Any, ...]) -> bool:
    """Return True if a kernel that the policy allows computes the product with these operands."""
    operands = (*inputs, *[None] * (3 - len(inputs)))
    wide = Node("mm_wide", operands, type(node.attrs)(), node.outputs, node.sources)
    return bool(context.may_become("mm_wide", editor.graph, [product])) and bool(
        context.computes(editor.graph, wide)
    )
