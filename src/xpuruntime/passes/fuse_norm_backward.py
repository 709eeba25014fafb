"""fuse_norm_backward: add a residual to the gradient of a layer norm's operand, and convert the sum, in one pass over memory.

g, dw, db = layer_norm_backward(...); y = add(g, r); cast(y)  ->  y, dw, db, narrow = layer_norm_backward_add(..., r)

In backward of a transformer, the gradient along the residual stream is added to that through each norm, and the layer before it reads the sum in 16 bits.
"""

from __future__ import annotations

from ..ir import Editor, Graph, Node
from ..types import HALF_FLOATS, DType
from ._lib.pattern_utils import spec_of
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with fused nodes, where a kernel computes them."""
    context = context or PassContext()
    return graph.rewrite(lambda editor, node: _rule(editor, node, context))


def _rule(editor: Editor, node: Node, context: PassContext) -> None:
    if node.op != "add" or node.spec.dtype is not DType.FLOAT32:
        return
    graph = editor.graph
    # Kernels are asked about values of the graph as it was before this sweep.
    node = graph.producer(node.name) or node
    casts = [u for u in graph.users(node.name) if u.op == "cast" and u.spec.dtype in HALF_FLOATS]
    if len(casts) != 1:
        return
    for at in (0, 1):
        value, residual = node.inputs[at], node.inputs[1 - at]
        norm = graph.producer(value) if isinstance(value, str) else None
        if norm is None or norm.op != "layer_norm_backward" or not isinstance(residual, str):
            continue
        before = graph.producer(residual)
        reads = [u.name for u in graph.users(norm.name)]
        if (
            value != norm.name
            or reads != [node.name]
            or norm.name in graph.kept
            or len(norm.outputs) != 3
            or norm.inputs[4] is None
            or spec_of(editor, residual) != spec_of(editor, norm.inputs[1])
            or (before is not None and graph.position[before.name] > graph.position[norm.name])
        ):
            continue
        inputs = (*norm.inputs[:5], residual)
        attrs = {**norm.attrs, "narrow": casts[0].spec.dtype}
        if _computes(editor, node, norm, casts[0], inputs, attrs, context):
            results = editor.insert(
                node,
                "layer_norm_backward_add",
                *inputs,
                outputs=4,
                sources=(*norm.sources, *node.sources),
                **attrs,
            )
            olds = (node.name, *(v.name for v in norm.outputs[1:]), casts[0].name)
            for old, new in zip(olds, results, strict=True):
                editor.forward(old, new)
            return


def _computes(
    editor: Editor,
    node: Node,
    norm: Node,
    cast: Node,
    inputs: tuple[object, ...],
    attrs: dict[str, object],
    context: PassContext,
) -> bool:
    """Return True if a kernel that the policy allows computes the fused node."""
    outputs = (*node.outputs, *norm.outputs[1:], *cast.outputs)
    fused = Node("layer_norm_backward_add", inputs, type(norm.attrs)(attrs), outputs, norm.sources)  # type: ignore[arg-type]
    allowed = context.may_become("layer_norm_backward_add", editor.graph, [norm])
    return bool(allowed) and bool(context.computes(editor.graph, fused))
