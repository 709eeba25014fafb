"""Layer norms in a joint graph: backward reads the statistics that forward computed, and the norm's result from memory or by one elementwise pass.

Computing a whole norm again would reduce each row again; with mean and 1 / std, which are two numbers per row, the result is
``(x - mean) * rstd * weight + bias``, which fuses with the conversions after it. Results in 16 bits may be kept instead.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

__all__ = ["keep_statistics", "results_in_16_bits"]

_ATEN = torch.ops.aten
_CHAIN = frozenset(
    (
        _ATEN._to_copy.default, _ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.reshape.default, _ATEN.t.default, _ATEN.transpose.int,
        _ATEN.permute.default, _ATEN.expand.default, _ATEN.unsqueeze.default, _ATEN.squeeze.dim, _ATEN.detach.default, _ATEN.alias.default,
    )
)  # fmt: skip
"""Views and conversions between a norm and the products that read it."""


def results_in_16_bits(joint: GraphModule) -> list[Node]:
    """Return norms' results in 16 bits, or conversions of results to 16 bits, through which backward reads all that it reads of a norm."""
    late = _dependents(joint)
    found: list[Node] = []
    for norm in joint.graph.nodes:
        if _is_of_forward(norm, late) and (y := _items(norm).get(0)) is not None and _readers(y, late):
            found += _narrow(y, late) or ()
    return found


def _narrow(node: Node, late: set[Node]) -> list[Node] | None:
    """Return the 16-bit values through which backward reads a value; None if it reads a wider one."""
    if node.meta["val"].dtype.itemsize == 2:
        return [node]
    found: list[Node] = []
    for user in node.users:
        if user in late:
            return None
        if user.target in _CHAIN and _readers(user, late):
            if (more := _narrow(user, late)) is None:
                return None
            found += more
    return found


def keep_statistics(joint: GraphModule, kept: Collection[Node] = ()) -> None:
    """Give backward's readers of a layer norm an elementwise form of its result, in place.

    kept: results that forward keeps, which backward reads as they are.
    """
    late = _dependents(joint)
    changed = False
    for node in list(joint.graph.nodes):
        if _is_of_forward(node, late) and "recompute" not in node.meta:
            changed |= _rewritten(joint.graph, node, late, kept)
    if changed:
        joint.recompile()


def _is_of_forward(node: Node, late: set[Node]) -> bool:
    return node.target is _ATEN.native_layer_norm.default and node not in late


def _items(norm: Node) -> dict[Any, Node]:
    return {u.args[1]: u for u in norm.users if u.target is operator.getitem}


def _dependents(joint: GraphModule) -> set[Node]:
    """Return the nodes that depend on a gradient of the results."""
    late: set[Node] = set()
    for node in joint.graph.nodes:
        is_gradient = node.op == "placeholder" and "tangents" in node.name
        if node.op != "output" and (is_gradient or any(n in late for n in node.all_input_nodes)):
            late.add(node)
    return late


def _rewritten(graph: torch.fx.Graph, norm: Node, late: set[Node], kept: Collection[Node]) -> bool:
    items = _items(norm)
    x, _, weight, bias, _ = norm.args
    y, wide = items.get(0), torch.promote_types(x.meta["val"].dtype, torch.float32)
    is_read = y is not None and _readers(y, late)
    is_kept = is_read and (narrow := _narrow(y, late)) is not None and all(n in kept for n in narrow)
    if not is_kept and norm.meta["val"][1].dtype is not wide:
        return False
    norm.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # its statistics are small
    if y is None or not is_read or is_kept:
        return False
    for at in (1, 2):
        if at not in items:
            with graph.inserting_after(norm):
                items[at] = graph.call_function(operator.getitem, (norm, at))
            items[at].meta["val"] = norm.meta["val"][at]
    order = {n: i for i, n in enumerate(graph.nodes)}
    last = max(items.values(), key=order.__getitem__)

    def emit(op: Any, *args: Any, **kwargs: Any) -> Node:
        nonlocal last
        with graph.inserting_after(last):
            last = graph.call_function(op, args, kwargs)
        values = [a.meta["val"] if isinstance(a, Node) else a for a in args]
        last.meta["val"] = op(*values, **kwargs)
        return last

    def converted(node: Node, dtype: torch.dtype) -> Node:
        return node if node.meta["val"].dtype is dtype else emit(_ATEN._to_copy.default, node, dtype=dtype)

    value = emit(_ATEN.mul.Tensor, emit(_ATEN.sub.Tensor, converted(x, wide), items[1]), items[2])
    if weight is not None:
        value = emit(_ATEN.mul.Tensor, value, converted(weight, wide))
    if bias is not None:
        value = emit(_ATEN.add.Tensor, value, converted(bias, wide))
    _redirect(graph, y, converted(value, y.meta["val"].dtype), late)
    return True


def _readers(node: Node, late: set[Node]) -> bool:
    """Return True if backward reads a value, or views and conversions of it."""
    return any(u in late or (u.target in _CHAIN and _readers(u, late)) for u in node.users)


def _redirect(graph: torch.fx.Graph, old: Node, new: Node, late: set[Node]) -> None:
    """Let backward's readers of a value read another one."""
    for user in list(old.users):
        if user in late:
            user.replace_input_with(old, new)
        elif user.target in _CHAIN and user is not new and _readers(user, late):
            with graph.inserting_after(new):
                copy = graph.node_copy(user, lambda n: new if n is old else n)
            _redirect(graph, user, copy, late)
