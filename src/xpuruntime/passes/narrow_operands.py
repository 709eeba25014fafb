"""narrow_operands: let kernels that compute in float32 read 16-bit operands, instead of a converted copy.

layer_norm_backward(cast(grad), x, ...)  ->  layer_norm_backward(grad, x, ...)

The conversion is exact, so the results are equal. It is one more pass over memory than the kernel needs.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import Editor, Graph, Node
from ..types import HALF_FLOATS, DType
from ._lib.pattern_utils import producer_of, spec_of
from .context import PassContext

__all__ = ["run"]

_READS: Mapping[str, tuple[int, ...]] = {"layer_norm_backward": (0,)}
"""Op -> operands that may have fewer bits than the others."""


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with conversions removed where a kernel computes the node without them."""
    context = context or PassContext()
    return graph.rewrite(lambda editor, node: _rule(editor, node, context))


def _rule(editor: Editor, node: Node, context: PassContext) -> None:
    inputs = list(node.inputs)
    for at in _READS.get(node.op, ()):
        cast = producer_of(editor, inputs[at])
        if cast is None or cast.op != "cast" or cast.spec.dtype is not DType.FLOAT32:
            continue
        source = spec_of(editor, cast.inputs[0])
        if source is not None and source.dtype in HALF_FLOATS:
            inputs[at] = cast.inputs[0]
    if inputs == list(node.inputs):
        return
    if context.computes(editor.graph, Node(node.op, tuple(inputs), node.attrs, node.outputs, node.sources)):
        editor.replace(node, node.op, *inputs, **node.attrs)
