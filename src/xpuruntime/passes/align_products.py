"""align_products: pad products of 16-bit values, so that lines of their operands begin at multiples of a vector load.

linear(x, w)          ->  linear(pad(x), pad(w))[..., :n]
matmul(a, b)          ->  matmul(pad(a), pad(b))[..., :n]
matmul(a^T, b)        ->  matmul(pad(a)^T, pad(b))[:m]       the gradient of a weight

Tensor cores are fed by loads of 16 bytes. A line of 50,257 values of 16 bits begins at an odd place, and kernels for odd places take several
times as long. Padding is one pass over memory, which pays off where every dim of the product is large. Padded elements of k are zero on both
sides; padded rows and columns are cut off, which is a view. Gradients share padded operands (``cse``).
"""

from __future__ import annotations

import math
from typing import Any

from ..ir import Editor, Graph, Node
from ..types import HALF_FLOATS, TensorSpec
from ._lib.pattern_utils import producer_of, spec_of
from .context import PassContext

__all__ = ["run"]

_LEAST = 256
"""Extent of m, n and k from which on padding is cheap next to the product."""
_LAYERS = frozenset(["linear", "fused_linear"])
_PRODUCTS = frozenset(["matmul", "mm"])


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with padded products, if the context has a multiple."""
    multiple = (context or PassContext()).product_multiple
    if multiple <= 1:
        return graph
    return graph.rewrite(lambda editor, node: _rule(editor, node, multiple))


def _rule(editor: Editor, node: Node, multiple: int) -> None:
    if node.op not in _LAYERS | _PRODUCTS or len(node.outputs) != 1:
        return
    a, b = (spec_of(editor, v) for v in node.inputs[:2])
    if a is None or b is None or not (a.is_static and b.is_static) or b.rank != 2 or a.rank < 2:
        return
    if node.spec.dtype not in HALF_FLOATS or (len(node.inputs) > 3 and node.inputs[3] is not None):
        return
    layer, left_shape, right_shape = node.op in _LAYERS, _sizes(a), _sizes(b)
    rows, k, n = left_shape[-2], left_shape[-1], right_shape[0 if layer else 1]
    if min(math.prod(left_shape[:-1]), n, k) < _LEAST:
        return
    more_k, more_n = -k % multiple, -n % multiple
    more_rows = -rows % multiple if a.rank == 2 and _transposed(editor, node.inputs[0]) else 0
    if not (more_k or more_n or more_rows):
        return
    left = _padded(editor, node, node.inputs[0], (*[0] * (a.rank - 2), more_rows, more_k))
    right = _padded(editor, node, node.inputs[1], (more_n, more_k) if layer else (more_k, more_n))
    bias = [_padded(editor, node, node.inputs[2], (more_n,))] if len(node.inputs) > 2 else []
    y = editor.insert(node, node.op, left, right, *bias, **node.attrs)
    if more_rows and more_n:
        y = editor.insert(node, "slice", y, dim=a.rank - 2, start=0, end=rows)
        more_rows = 0
    dim, end = (a.rank - 2, rows) if more_rows else (a.rank - 1, n)
    if more_rows or more_n:
        editor.replace(node, "slice", y, dim=dim, start=0, end=end)
    else:
        editor.forward(node.name, y)


def _sizes(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def _transposed(editor: Editor, value: Any) -> Node | None:
    """Return the node that swaps the dims of a matrix."""
    node = producer_of(editor, value)
    swaps = node is not None and node.op == "permute" and tuple(node.attrs["dims"]) == (1, 0)
    return node if swaps else None


def _padded(editor: Editor, node: Node, value: Any, more: tuple[int, ...]) -> Any:
    """Return a value with more elements at the end of its dims; a transposed matrix stays a view."""
    if value is None or not any(more):
        return value
    swapped = _transposed(editor, value)
    if swapped is not None:
        return editor.insert(
            node, "permute", _padded(editor, node, swapped.inputs[0], more[::-1]), dims=(1, 0)
        )
    return editor.insert(node, "pad", value, pads=(*[0] * len(more), *more))
