"""Epilogues of convolutions and linear layers: biases, one residual and one activation, in this order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...decisions import Support
from ...ir import Editor, Graph, Node
from ...types import TensorSpec
from ..context import PassContext
from .known import elements, splat

__all__ = ["Epilogue", "activation_of", "combined_bias", "find_groups", "grow"]

_PLAIN = ("relu", "sigmoid", "tanh", "silu", "hardswish")


@dataclass(slots=True)
class Epilogue:
    """A layer and the nodes after it: ``members`` in order, per-channel ``biases``, ``residual``, ``act``."""

    members: list[Node]
    biases: list[str] = field(default_factory=list)
    residual: str | None = None
    act: str = "none"

    @property
    def root(self) -> Node:
        """Return the last member, whose result is that of the fused node."""
        return self.members[-1]


def activation_of(graph: Graph, node: Node) -> str | None:
    """Return the value of a fused op's ``act`` for this node; None if it is no supported activation."""
    if node.op in _PLAIN:
        return node.op
    if node.op == "gelu":
        return "gelu_tanh" if node.attrs["approximate"] == "tanh" else "gelu"
    if node.op == "leaky_relu":
        return "leaky_relu" if abs(node.attrs["negative_slope"] - 0.01) < 1e-9 else None
    if node.op == "clamp":
        low, high = (splat(graph, i) for i in (*node.inputs[1:], None, None)[:2])
        present = [i is not None for i in (*node.inputs[1:], None, None)[:2]]
        if low == 0.0 and high == 6.0:
            return "relu6"
        return "relu" if low == 0.0 and present == [True, False] else None
    return None


def grow(
    graph: Graph,
    layer: Node,
    known: frozenset[str],
    channel: int,
    taken: set[str],
    may_fuse: Callable[[Graph, Sequence[Node]], Support],
    rival: Callable[[Node, Node], bool],
) -> Epilogue:
    """Return the longest epilogue of a layer.

    channel: the output's channel dim. taken: nodes that belong to another layer already. rival: whether the layer should leave an
    addition (second argument) to the layer that produces the other operand.
    """
    epilogue = Epilogue([layer])
    spec = layer.spec
    while epilogue.act == "none":
        user = graph.only_user(epilogue.root.name)
        if (
            user is None
            or user.name in taken
            or not user.outputs
            or user.outputs[0].spec != layer.outputs[0].spec
        ):
            break
        act = activation_of(graph, user)
        if act is not None and user.inputs[0] == epilogue.root.name:
            longer = Epilogue([*epilogue.members, user], epilogue.biases, epilogue.residual, act)
        elif user.op == "add" and epilogue.residual is None:
            other = next((i for i in user.inputs if i != epilogue.root.name), None)
            if not isinstance(other, str) or graph.values[other].spec is None:
                break
            if other in known and _per_channel(graph.spec(other), spec, channel):
                longer = Epilogue([*epilogue.members, user], [*epilogue.biases, other])
            elif graph.spec(other) == spec and not rival(layer, user):
                longer = Epilogue([*epilogue.members, user], epilogue.biases, other)
            else:
                break
        else:
            break
        if not may_fuse(graph, tuple(longer.members)):
            break
        epilogue = longer
    return epilogue


def _per_channel(bias: TensorSpec, result: TensorSpec, channel: int) -> bool:
    """Return whether a known value adds one number per channel (or one for all)."""
    if bias.dtype is not result.dtype or bias.rank > result.rank:
        return False
    shape = (*(1,) * (result.rank - bias.rank), *bias.shape)
    return all(d == 1 or (i == channel and d == result.shape[i]) for i, d in enumerate(shape)) and bool(
        elements(bias)
    )


def find_groups(
    graph: Graph, known: frozenset[str], context: PassContext, ops: frozenset[str], channel: Any
) -> dict[str, Epilogue]:
    """Return layers with their epilogues by the name of the last member, without layers that have none."""
    taken: set[str] = set()
    groups: dict[str, Epilogue] = {}

    def rival(layer: Node, add: Node) -> bool:
        return _leave_to_other(graph, layer, add, ops)

    for node in graph.nodes:
        if node.op not in ops or node.name in taken:
            continue
        group = grow(graph, node, known, channel(node), taken, context.may_fuse, rival)
        if len(group.members) > 1:
            taken.update(n.name for n in group.members)
            groups[group.root.name] = group
    return groups


def _leave_to_other(graph: Graph, layer: Node, add: Node, ops: frozenset[str]) -> bool:
    """Return whether the other operand of an addition comes from a later layer of this kind (through its bias) that could take it as well."""
    for operand in add.values:
        node = graph.producer(operand)
        while node is not None and node.op == "add" and graph.only_user(node.name) is not None:
            nodes = [n for n in (graph.producer(i) for i in node.values) if n is not None and n.op in ops]
            node = nodes[0] if nodes else None
        if (
            node is None
            or node.op not in ops
            or node.name == layer.name
            or graph.only_user(node.name) is None
        ):
            continue
        if graph.position[node.name] > graph.position[layer.name]:
            return True
    return False


def combined_bias(editor: Editor, at: Node, bias: Any, more: list[str], channels: Any) -> Any:
    """Return one bias [C] as the sum of all per-channel additions; None if there is none."""
    for other in more:
        spec = editor.values[other].spec
        assert spec is not None
        flat = other
        if spec.shape != (channels,):
            size = next((d for d in spec.shape if d != 1), 1)
            flat = editor.insert(at, "view", other, size=(size,))
            if size != channels:
                flat = editor.insert(at, "expand", flat, size=(channels,))
        bias = flat if bias is None else editor.insert(at, "add", bias, flat, name="bias")
    return bias
