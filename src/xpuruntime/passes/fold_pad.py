"""fold_pad: pad with zeros in the convolution that reads the padded tensor, on CPUs, whose kernels take any padding.

convolution(pad(x, begins, ends), w, padding)  ->  convolution(x, w, padding + begins, padding + ends)

Networks with the padding of TensorFlow have such pads: those of convolutions with a stride differ at both ends.
"""

from __future__ import annotations

from ..ir import Editor, Graph, Node
from .context import PassContext

__all__ = ["run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph without pads that convolutions can do, if policies allow it."""
    context = context or PassContext()
    if not context.uneven_padding:
        return graph

    def rule(editor: Editor, node: Node) -> None:
        if node.op != "convolution" or node.attrs["transposed"]:
            return
        original = graph.node(node.name)
        pad = graph.producer(str(original.inputs[0]))
        if pad is None or not _zeros(pad) or not context.may_fuse(graph, (pad, original)):
            return
        rank = graph.spec(pad.values[0]).rank
        begins, ends = pad.attrs["pads"][2:rank], pad.attrs["pads"][rank + 2 :]
        own = node.attrs["padding"]
        own_begins, own_ends = (own, own) if len(own) == rank - 2 else (own[: rank - 2], own[rank - 2 :])
        padding = [a + b for a, b in zip((*own_begins, *own_ends), (*begins, *ends), strict=True)]
        filters = original.values[1:]
        absorbs = (pad,) if graph.only_user(pad.name) is not None and pad.name not in filters else ()
        x = editor.resolve(pad.values[0])
        editor.replace(
            node, "convolution", x, *node.inputs[1:], absorbs=absorbs, **{**node.attrs, "padding": padding}
        )

    return graph.rewrite(rule)


def _zeros(pad: Node) -> bool:
    """Return whether a node adds zeros in space, and neither crops nor adds channels."""
    if pad.op != "pad" or pad.attrs["mode"] != "constant" or pad.attrs["value"] != 0:
        return False
    pads = pad.attrs["pads"]
    rank = len(pads) // 2
    outside = (*pads[:2], *pads[rank : rank + 2])
    return rank > 2 and all(isinstance(p, int) and p >= 0 for p in pads) and not any(outside)
