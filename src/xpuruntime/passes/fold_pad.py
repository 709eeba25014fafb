"""fold_pad: pad with zeros in the convolution that reads the padded tensor, on CPUs, whose kernels take any padding.

convolution(pad(x, begins, ends), w, padding)  ->  convolution(x, w, padding + begins, padding + ends)

A chain of pads folds from the convolution up to the first pad that it cannot do.
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
        own, rank = node.attrs["padding"], graph.spec(original.values[0]).rank
        padding = [*own, *own] if len(own) == rank - 2 else list(own)
        pads: list[Node] = []
        absorbs: list[Node] = []
        x = original.values[0]
        while (pad := graph.producer(x)) is not None and _zeros(pad):
            if not context.may_fuse(graph, (*reversed(pads), pad, original)):
                break
            alone = len(absorbs) == len(pads) and graph.only_user(pad.name) is not None
            if alone and pad.name not in original.values[1:]:
                absorbs.append(pad)
            pads.append(pad)
            space = (*pad.attrs["pads"][2:rank], *pad.attrs["pads"][rank + 2 :])
            padding = [a + b for a, b in zip(padding, space, strict=True)]
            x = pad.values[0]
        if pads:
            attrs = {**node.attrs, "padding": padding}
            editor.replace(node, "convolution", x, *node.inputs[1:], absorbs=absorbs[::-1], **attrs)

    return graph.rewrite(rule)


def _zeros(pad: Node) -> bool:
    """Return whether a node adds zeros in space, and neither crops nor adds channels."""
    if pad.op != "pad" or pad.attrs["mode"] != "constant" or pad.attrs["value"] != 0:
        return False
    pads = pad.attrs["pads"]
    rank = len(pads) // 2
    outside = (*pads[:2], *pads[rank : rank + 2])
    return rank > 2 and all(isinstance(p, int) and p >= 0 for p in pads) and not any(outside)
