"""Compile-time known values: weights, constants, and results that depend on them alone."""

from __future__ import annotations

import math

from ...ir import OPS, Graph, Node
from ...ir.ops.control import AT_RUN_TIME
from ...types import TensorSpec
from ..context import PassContext

__all__ = ["elements", "few_rows", "is_known", "known_values", "splat"]


def elements(spec: TensorSpec | None) -> int | None:
    """Return the number of elements of a value; None with a symbolic dim."""
    if spec is None or not spec.is_static:
        return None
    return math.prod(int(d) for d in spec.shape if isinstance(d, int))


def known_values(graph: Graph) -> frozenset[str]:
    """Return the names of weights and of results that depend on weights and constants only."""
    known = set(graph.weight_names)
    for node in graph.nodes:
        if is_known(node, known):
            known.update(v.name for v in node.outputs)
    return frozenset(known)


def is_known(node: Node, known: set[str] | frozenset[str]) -> bool:
    """Return whether the node's operands are all known."""
    op = OPS[node.op]
    if node.op in AT_RUN_TIME or op.random or op.data_dependent:
        return False
    if any(v.spec is None for v in node.outputs):
        return False
    return all(v in known for v in node.values) and all(
        v.spec is not None and v.spec.is_static for v in node.outputs
    )


def splat(graph: Graph, operand: object) -> float | None:
    """Return the number that all elements of an operand have; None if they differ or are not known."""
    if isinstance(operand, bool | int | float):
        return float(operand)
    literal = graph.literal(operand) if isinstance(operand, str) else None
    if literal is None or not literal.size or not (literal.dtype.is_float or literal.dtype.is_integer):
        return None
    values = literal.numpy().reshape(-1)
    first = values[0]
    return float(first) if bool((values == first).all()) else None


def few_rows(node: Node, context: PassContext) -> bool:
    """Return whether a layer's result has floats in few rows."""
    spec = node.outputs[0].spec
    count, width = elements(spec), spec.shape[-1] if spec is not None and spec.rank else 0
    if spec is None or not count or not isinstance(width, int) or not spec.dtype.is_float:
        return False
    return count // width <= (context.few_rows_16_bits if spec.dtype.bits == 16 else context.few_rows)
