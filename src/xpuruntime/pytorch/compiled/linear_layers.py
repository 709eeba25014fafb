"""linear_layers: products with a transposed matrix, which PyTorch's compiler makes of linear layers, become linear layers again.

The compiler then sees what an inference session sees, and takes the same kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

__all__ = ["linear_layers"]

_ATEN = torch.ops.aten


def linear_layers(module: GraphModule) -> None:
    """Replace ``addmm(bias, x, w.t())`` and ``mm(x, w.t())`` by ``linear(x, w, bias)``, and ``mm(x, w.t().t())`` by ``mm(x, w)``, in place."""
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in (_ATEN.addmm.default, _ATEN.mm.default):
            continue
        bias = node.args[0] if node.target is _ATEN.addmm.default else None
        x, transposed = node.args[-2:]
        weight = _transposed(transposed)
        if (
            weight is not None and (twice := _transposed(weight)) is not None
        ):  # the gradient of a linear layer's operand
            node.replace_input_with(transposed, twice)
            continue
        if weight is None or node.kwargs or (bias is not None and not _is_bias(bias, weight)):
            continue
        with module.graph.inserting_before(node):
            linear = module.graph.call_function(_ATEN.linear.default, (x, weight, bias))
        linear.meta = dict(node.meta)
        node.replace_all_uses_with(linear)
        module.graph.erase_node(node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _transposed(node: Any) -> Node | None:
    """Return the matrix that a node is the transpose of."""
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    if node.target is _ATEN.t.default:
        return node.args[0]
    swapped = node.target is _ATEN.permute.default and list(node.args[1]) in (
        [1, 0],
        [-1, -2],
        [-1, 0],
        [1, -2],
    )
    swapped |= node.target is _ATEN.transpose.int and {d % 2 for d in node.args[1:]} == {0, 1}
    return node.args[0] if swapped and node.meta["val"].dim() == 2 else None


def _is_bias(bias: Any, weight: Node) -> bool:
    value = bias.meta.get("val") if isinstance(bias, Node) else None
    return isinstance(value, torch.Tensor) and tuple(value.shape) == (weight.meta["val"].shape[0],)
