"""einsum_products: write einsum of two operands as a product of matrices, whose kernels are fast and which later passes know.

einsum(q, k, "bhid,bhjd->bhij")   ->  matmul(q, k^T)
einsum(x, w, "bchw,co->bohw")     ->  permute(matmul(permute(x), w))

On CPUs, equations of activations stay if a kernel computes them in place, as a batch of products of strided matrices.
Axes of both operands are batch dims if the result has them, and are summed if it does not. Axes of one operand are merged to rows or columns.
Equations that sum an axis of one operand alone, take a diagonal, or broadcast an extent of 1 stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..ir import Editor, Graph, Node
from ..ir.ops.matmul import einsum_terms
from ..types import TensorSpec
from ._lib.pattern_utils import spec_of
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with products instead of einsums, if the context asks for library ops or for products."""
    context = context or PassContext()
    if not context.library_ops and not context.strided_einsum:
        return graph
    return graph.rewrite(lambda editor, node: _rule(editor, node, context))


def _rule(editor: Editor, node: Node, context: PassContext) -> None:
    if (
        node.op != "einsum"
        or len(node.inputs) != 2
        or not node.spec.is_static
        or not node.spec.dtype.is_float
    ):
        return
    specs = [spec_of(editor, v) for v in node.inputs]
    if any(s is None or not s.is_static or s.dtype is not node.spec.dtype for s in specs):
        return
    left, right = (s for s in specs if s is not None)
    labels, result = einsum_terms(node.attrs["equation"], [left.rank, right.rank])
    sizes = _sizes(labels, (left, right))
    if sizes is None:
        return
    shared = [a for a in labels[0] if a in labels[1]]
    summed = [a for a in shared if a not in result]
    batch = [a for a in result if a in shared]
    rows, columns = ([a for a in result if a in own and a not in shared] for own in labels)
    if not summed or any(a not in (*result, *summed) for own in labels for a in own):
        return
    if not context.library_ops and not editor.graph.weight_names.intersection(map(str, node.inputs)):
        wide = [[a for a in axes if sizes[a] > 1] for axes in (rows, columns, result)]
        if len(summed) == 1 and len(wide[0]) <= 1 and len(wide[1]) == 1 and wide[2][-1:] == wide[1]:
            return
    if not context.may_become("matmul", editor.graph, [node]):
        return
    operands = list(zip(node.inputs, labels, (rows, columns), strict=True))
    if result == [*batch, *columns, *rows]:
        operands.reverse()  # then the result is not permuted
    (a, a_labels, a_own), (b, b_labels, b_own) = operands
    x = _matrix(editor, node, a, a_labels, (batch, a_own, summed), sizes)
    y = _matrix(editor, node, b, b_labels, (batch, summed, b_own), sizes)
    product = editor.insert(node, "matmul", x, y)
    order = [*batch, *a_own, *b_own]
    product = _viewed(editor, node, product, [sizes[axis] for axis in order])
    if order == result:
        editor.forward(node.name, product)
    else:
        editor.replace(node, "permute", product, dims=[order.index(axis) for axis in result])


def _sizes(labels: Sequence[Sequence[str]], specs: Sequence[TensorSpec]) -> dict[str, int] | None:
    """Return the extent of each axis; None if an operand has an axis twice, or the operands disagree."""
    sizes: dict[str, int] = {}
    for own, spec in zip(labels, specs, strict=True):
        if len(set(own)) != len(own):
            return None
        for axis, extent in zip(own, spec.shape, strict=True):
            if not isinstance(extent, int) or sizes.setdefault(axis, extent) != extent:
                return None
    return sizes


def _matrix(
    editor: Editor,
    node: Node,
    value: Any,
    labels: Sequence[str],
    parts: tuple[Sequence[str], Sequence[str], Sequence[str]],
    sizes: dict[str, int],
) -> Any:
    """Return the operand with the batch axes, then one dim of the second and one of the third part."""
    batch, lines, line = parts
    order = [*batch, *lines, *line]
    if order != list(labels):
        value = editor.insert(node, "permute", value, dims=[labels.index(axis) for axis in order])
    shape = [*(sizes[a] for a in batch), *(math.prod(sizes[a] for a in part) for part in (lines, line))]
    return _viewed(editor, node, value, shape)


def _viewed(editor: Editor, node: Node, value: Any, shape: Sequence[int]) -> Any:
    spec = spec_of(editor, value)
    return (
        value
        if spec is not None and spec.shape == tuple(shape)
        else editor.insert(node, "view", value, size=list(shape))
    )
