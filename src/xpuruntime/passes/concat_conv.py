"""concat_conv: merge small convolutions of parts of the channels, and move a norm and an activation before the concatenation.

cat(conv(a), conv(b)) of a, b = split(x)     ->  one convolution of x, with as many times the groups
act(batch_norm(cat(conv(a), conv(b))))       ->  cat(act(batch_norm(conv(a))), act(batch_norm(conv(b))))

MixNet (Tan and Le 2019) is written so. The parts of the second rule have filters of several sizes; their norms and activations become parts of
the convolutions, as in other networks. Both rules save launches, which dominate for small convolutions: larger ones stay as they are.
"""

from __future__ import annotations

import math
from typing import Any

from ..ir import Editor, Graph, Node
from ..types import TensorSpec
from ._lib.epilogue import activation_of
from ._lib.known import known_values
from .context import PassContext

__all__ = ["run"]

_MAX_FLOPS = 1 << 27
"""Arithmetic operations of a merged convolution: about one launch on a GPU."""


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with merged convolutions, if the context asks for library ops."""
    context = context or PassContext()
    if not context.library_ops:
        return graph
    known = known_values(graph)

    def rule(editor: Editor, node: Node) -> None:
        if node.op != "cat" or node.attrs["dim"] != 1 or not node.spec.is_static:
            return
        cat = graph.node(node.name)
        parts = [_part(graph, cat, v, known) for v in cat.values]
        layers = [p for p in parts if p is not None]
        if len(layers) < max(2, len(parts)):
            return
        members = (*layers, cat)
        small = _is_grouped(graph, layers) and _flops(graph, layers) <= _MAX_FLOPS
        if small and context.may_fuse(graph, members) and context.may_become("convolution", graph, members):
            _merge(editor, cat, layers)
        else:
            _move_before(editor, graph, cat, layers, known, context)

    return graph.rewrite(rule)


def _part(graph: Graph, cat: Node, value: str, known: frozenset[str]) -> Node | None:
    """Return the convolution with constant filters that only this concatenation reads; None if the value is no such result."""
    layer = graph.producer(value)
    if layer is None or layer.op != "convolution" or layer.attrs["transposed"] or layer.name in known:
        return None
    constant = all(v in known for v in layer.values[1:])
    return layer if constant and graph.only_user(value) is cat and cat.values.count(value) == 1 else None


def _is_grouped(graph: Graph, layers: list[Node]) -> bool:
    """Return whether equal convolutions read the equal parts of one value, in order."""
    split = graph.producer(str(layers[0].inputs[0]))
    if split is None or split.op != "split" or split.attrs["dim"] != 1 or len(set(split.attrs["sizes"])) != 1:
        return False
    if [layer.inputs[0] for layer in layers] != [v.name for v in split.outputs]:
        return False
    first, *others = ((layer.attrs, *(_spec(graph, v) for v in layer.inputs[1:])) for layer in layers)
    return all(other == first for other in others)


def _spec(graph: Graph, operand: Any) -> TensorSpec | None:
    return graph.spec(operand) if isinstance(operand, str) else None


def _flops(graph: Graph, layers: list[Node]) -> int:
    total = 0
    for layer in layers:
        filters = graph.spec(str(layer.inputs[1]))
        sizes = [*layer.spec.shape, *filters.shape[1:]]
        total += 2 * math.prod(d for d in sizes if isinstance(d, int))
    return total


def _merge(editor: Editor, cat: Node, layers: list[Node]) -> None:
    """Replace the concatenation by one convolution with the groups of all."""
    split = editor.graph.producer(str(layers[0].inputs[0]))
    assert split is not None
    current = [editor.current(layer) for layer in layers]
    operands: list[Any] = [
        None if values[0] is None else editor.insert(cat, "cat", *values, dim=0)
        for values in zip(*(layer.inputs[1:] for layer in current), strict=True)
    ]
    attrs = dict(layers[0].attrs) | {"groups": layers[0].attrs["groups"] * len(layers)}
    editor.replace(cat, "convolution", editor.current(split).inputs[0], *operands, absorbs=layers, **attrs)


def _move_before(
    editor: Editor, graph: Graph, cat: Node, layers: list[Node], known: frozenset[str], context: PassContext
) -> None:
    """Move the batch norm and the activation after a concatenation to its operands."""
    chain: list[Node] = []
    last = cat
    while len(chain) < 2 and (user := graph.only_user(last.name)) is not None and user.inputs[0] == last.name:
        is_norm = user.op == "batch_norm" and not chain and all(v in known for v in user.values[1:])
        if not is_norm and activation_of(graph, user) is None:
            break
        chain.append(user)
        last = user
        if not is_norm:
            break
    if not chain or not context.may_fuse(graph, (*layers, *chain)):
        return
    values = [str(editor.resolve(v)) for v in cat.values]
    for step in chain:
        operands = [_parts_of(editor, step, v, layers) for v in step.inputs[1:]]
        values = [
            editor.insert(step, step.op, value, *(o[i] for o in operands), **step.attrs)
            for i, value in enumerate(values)
        ]
    editor.replace(last, "cat", *values, dim=1, absorbs=(cat, *chain[:-1]))


def _parts_of(editor: Editor, at: Node, value: Any, layers: list[Node]) -> list[Any]:
    """Return the part of an operand per channel for each convolution."""
    if not isinstance(value, str) or at.op != "batch_norm":
        return [value] * len(layers)
    parts: list[Any] = editor.insert(
        at, "split", value, outputs=len(layers), sizes=[layer.spec.shape[1] for layer in layers], dim=0
    )
    return list(parts)
