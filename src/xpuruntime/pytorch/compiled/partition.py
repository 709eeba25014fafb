"""Division of a joint graph into forward and backward: what forward keeps, and what backward computes again.

PyTorch's minimum cut over bytes decides. It may compute again whatever one pass over memory computes: elementwise ops, conversions, norms
and rows of a table. PyTorch's own rules keep a value that a product of backward reads, since computing it again is not free; here such a
value, the result of an activation, is computed again, because a pass over memory is cheap next to the product. Weights in 16 bits and
layer norms' results in 16 bits are kept, as eager's autocast keeps them, where they are small next to the results of the layers.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch import config
from torch._functorch.partitioners import get_default_op_list, min_cut_rematerialization_partition
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..numbered_policies import NumberedPolicy
from .cudnn_batch_norms import cudnn_batch_norms
from .cudnn_pools import cudnn_pools
from .gradient_sums import gradient_sums
from .norm_statistics import keep_statistics, results_in_16_bits

__all__ = ["forward_and_backward"]

_ATEN = torch.ops.aten
_MORE = frozenset((_ATEN.native_layer_norm, _ATEN.native_group_norm, _ATEN.embedding, _ATEN._softmax))
"""Ops that are computed again in one pass, in addition to those of PyTorch's list."""
_KEPT_SHARE = 1 / 4
"""Weights in 16 bits, and norms' results in 16 bits, are kept if they have at most this share of the bytes of all results of forward that are not
computed again."""


def forward_and_backward(
    saved: dict[str, int],
    numbered: NumberedPolicy,
    joint: GraphModule,
    inputs: Any,
    *,
    num_fwd_outputs: int,
    **more: Any,
) -> tuple[GraphModule, GraphModule]:
    """Return the graphs of forward and backward; with its first two arguments bound, a ``partition_fn`` of PyTorch's ``aot_autograd``.

    saved: is filled with the values that forward keeps for backward -> their bytes; views of one value count once.
    numbered: the policy. Families that it names keep PyTorch's operators, from which it chooses kernels.
    """
    if any(n.op == "placeholder" and "tangents" in n.name and n.users for n in joint.graph.nodes):
        cudnn_batch_norms(joint)
        if not numbered.names("pool"):
            cudnn_pools(joint)
        if not numbered.names("conv") and not numbered.names("matmul"):
            gradient_sums(joint)
        computed_again = get_default_op_list().is_recomputable  # PyTorch makes the list anew at each call
        nodes = [n for n in joint.graph.nodes if n.op == "call_function"]
        kept = [n for n in nodes if _packet(n) not in _MORE and not computed_again(n)]
        operands = [n for n in joint.graph.nodes if n.op == "placeholder"]
        parameters = {operands[i] for i in more.get("static_lifetime_input_indices") or ()}
        weights, norms = [n for n in nodes if _narrowed(n) in parameters], results_in_16_bits(joint)
        largest = _KEPT_SHARE * _bytes(_of_forward(joint, kept))
        for group in (weights, norms):
            if _bytes(group) <= largest:
                kept += group
        keep_statistics(joint, frozenset(kept))
        for node in kept:
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)
        for node in _of_old_values(joint):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # also inside torch.utils.checkpoint
            for part in (u for u in node.users if u.target is operator.getitem):
                part.meta.pop("recompute", None)
    relaxed = {"ban_recompute_not_in_allowlist": False, "ban_recompute_materialized_backward": False}
    with config.patch(relaxed):
        forward, backward = min_cut_rematerialization_partition(
            joint, inputs, num_fwd_outputs=num_fwd_outputs, **more
        )
    (out,) = (n for n in forward.graph.nodes if n.op == "output")
    seen = {_memory(n.meta["val"]) for n in forward.graph.nodes if n.op == "placeholder" and _is_static(n)}
    for node in out.args[0][num_fwd_outputs:]:
        if isinstance(node, Node) and _is_static(node) and (memory := _memory(node.meta["val"])) not in seen:
            seen.add(memory)
            saved[node.name] = _bytes([node])
    return forward, backward


def _of_old_values(joint: GraphModule) -> list[Node]:
    """Return what the graph computes from inputs to which it writes later: backward cannot compute it again.

    Versions of PyTorch that do not describe the inputs and outputs of joint graphs return nothing.
    """
    (out,) = (n for n in joint.graph.nodes if n.op == "output")
    written = [getattr(d, "mutated_input", None) for d in out.meta.get("desc") or ()]
    pending = [
        n
        for n in joint.graph.nodes
        if n.op == "placeholder" and n.meta.get("desc") in written and "desc" in n.meta
    ]
    found: list[Node] = []
    while pending:
        for user in pending.pop().users:
            is_view = isinstance(user.target, torch._ops.OpOverload) and user.target.is_view
            if user.op == "call_function":
                (pending if is_view else found).append(user)
    return found


def _packet(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", node.target)


def _narrowed(node: Node) -> Node | None:
    """Return the operand that the node converts to a narrower type; None if it is another node."""
    source = node.args[0] if _packet(node) is _ATEN._to_copy else None
    if not isinstance(source, Node) or not _is_static(node) or not _is_static(source):
        return None
    before, after = source.meta["val"].dtype, node.meta["val"].dtype
    return source if before.is_floating_point and after.itemsize < before.itemsize else None


def _of_forward(joint: GraphModule, nodes: Sequence[Node]) -> list[Node]:
    """Return those of the nodes that do not depend on a gradient."""
    backward: set[Node] = set()
    for node in joint.graph.nodes:
        is_gradient = node.op == "placeholder" and "tangents" in node.name
        if is_gradient or any(i in backward for i in node.all_input_nodes):
            backward.add(node)
    return [n for n in nodes if n not in backward]


def _bytes(nodes: Sequence[Node]) -> int:
    """Return the bytes of the nodes' results; those of unknown size count nothing."""
    values = [n.meta["val"] for n in nodes if _is_static(n)]
    return sum(v.numel() * v.element_size() for v in values)


def _is_static(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and all(isinstance(n, int) for n in value.shape)


def _memory(value: torch.Tensor) -> int:
    """Return the identity of a traced tensor's memory, which its views share."""
    return int(value.untyped_storage()._cdata)
