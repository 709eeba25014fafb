"""recognize_activation: replace written-out activations by one op.

silu       x * sigmoid(x)                                  hardswish  x * hardsigmoid(x), x * clamp(x + 3, 0, 6) / 6
gelu       0.5 * x * (1 + erf(x / sqrt(2)))                mish       x * tanh(softplus(x))
gelu tanh  0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))     silu_mul   silu(gate) * up
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any as AnyType

from ..ir import Editor, Graph, Match, Node
from ..ir.match import Any, Number, Op, Pattern
from ._lib.pattern_rules import Make, PatternRule, apply_patterns
from .context import PassContext

__all__ = ["run"]

_X = Any("x")


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with activations as single ops."""
    return apply_patterns(graph, _RULES, context)


def _products(a: Pattern, b: Pattern, number: float) -> Iterator[Op]:
    """Yield ``a * b * number`` in every grouping; the matcher tries both operand orders of each product."""
    c = Number(number, rtol=1e-4)
    yield Op("mul", Op("mul", a, b), c)
    yield Op("mul", Op("mul", a, c), b)
    yield Op("mul", a, Op("mul", b, c))
    yield Op("div", Op("mul", a, b), Number(1 / number, rtol=1e-4))


def _scaled(x: Pattern, number: float) -> Iterator[Op]:
    yield Op("mul", x, Number(number, rtol=1e-4))
    yield Op("div", x, Number(1 / number, rtol=1e-4))


def _plus_one(x: Op) -> Op:
    return Op("add", x, Number(1.0))


def _cube() -> Iterator[Op]:
    yield Op("pow", _X, Number(3.0))
    yield Op("mul", Op("mul", _X, _X), _X)


def _gelu_tanh() -> Iterator[Op]:
    for cube in _cube():
        for small in _scaled(cube, 0.044715):
            for inner in _scaled(Op("add", _X, small), math.sqrt(2 / math.pi)):
                yield from _products(_X, _plus_one(Op("tanh", inner)), 0.5)
    # x * (1 + 0.044715 * x * x)
    factored = Op("add", Op("mul", Op("mul", _X, _X), Number(0.044715, rtol=1e-4)), Number(1.0))
    for inner in _scaled(Op("mul", _X, factored), math.sqrt(2 / math.pi)):
        yield from _products(_X, _plus_one(Op("tanh", inner)), 0.5)


def _hardswish() -> Iterator[Op]:
    yield Op("mul", _X, Op("hardsigmoid", _X, alpha=lambda a: abs(a - 1 / 6) < 1e-5, beta=0.5))
    yield from _products(_X, Op("clamp", Op("add", _X, Number(3.0)), Number(0.0), Number(6.0)), 1 / 6)


def _becomes(op: str, *operands: str, **attrs: str) -> Make:
    def make(editor: Editor, node: Node, match: Match) -> Node:
        values: dict[str, AnyType] = dict(attrs)
        return editor.replace(node, op, *(match[o] for o in operands or ("x",)), **values)

    return make


def _float(match: Match) -> bool | str:
    return match.root.spec.dtype.is_float or "not a float"


def _one_shape(match: Match) -> bool | str:
    specs = [match.graph.values[str(match[o])].spec for o in ("gate", "up")]
    return specs[0] == specs[1] or "gate and up have different shapes"


def _rules() -> Iterator[PatternRule]:
    def rule(pattern: Op, make: Make) -> PatternRule:
        return PatternRule(pattern, make, (_float,))

    yield rule(Op("mul", _X, Op("sigmoid", _X)), _becomes("silu"))
    for pattern in _hardswish():
        yield rule(pattern, _becomes("hardswish"))
    yield rule(Op("mul", _X, Op("tanh", Op("softplus", _X, beta=1.0, threshold=None))), _becomes("mish"))
    for inner in _scaled(_X, 1 / math.sqrt(2)):
        for pattern in _products(_X, _plus_one(Op("erf", inner)), 0.5):
            yield rule(pattern, _becomes("gelu"))
    for pattern in _gelu_tanh():
        yield rule(pattern, _becomes("gelu", approximate="tanh"))
    gated = Op("mul", Op("silu", Any("gate")), Any("up", kind="node"))
    yield PatternRule(gated, _becomes("silu_mul", "gate", "up"), (_float, _one_shape))


_RULES = tuple(_rules())
