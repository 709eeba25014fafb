"""recognize_norm: replace written-out normalizations over the last dim and softmax by one op.

    rms_norm    x * rsqrt(mean(x * x) + eps) * w                     (Zhang and Sennrich 2019)
    layer_norm  (x - mean(x)) * rsqrt(mean((x - mean(x))**2) + eps) * w + b      (Ba et al. 2016)
    softmax     exp(x - max(x)) / sum(exp(x - max(x)))

The single op computes its statistics in float32 or wider regardless of the storage type, as the written-out form does after a cast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any as AnyType

from ..ir import Editor, Graph, Match, Node
from ..ir.match import Any, Number, Op, Pattern
from ..types import TensorSpec
from ._lib.pattern_rules import PatternRule, apply_patterns
from .context import PassContext

__all__ = ["run"]

_X = Any("x")


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with norms as single ops."""
    graph = apply_patterns(graph, _CORES, context)  # first without weight and bias, then these one by one
    return apply_patterns(graph, _AFFINE, context)


def _mean(x: Pattern) -> Op:
    return Op("mean", x, keepdim=True, name="mean")


def _normalized(x: Pattern, square: Op) -> Iterator[Op]:
    """Yield ``x`` divided by the root of the mean of ``square``."""
    inner = Op("add", _mean(square), Number(name="eps"))
    yield Op("mul", x, Op("rsqrt", inner))
    yield Op("div", x, Op("sqrt", inner))


def _squares(x: Pattern) -> Iterator[Op]:
    yield Op("mul", x, x)
    yield Op("pow", x, Number(2.0))


def _spec(match: Match, name: str) -> TensorSpec | None:
    return match.graph.values[str(match[name])].spec if isinstance(match[name], str) else None


def _last_dim(match: Match) -> bool | str:
    """Return whether the mean is over x's last dim and the result has x's type."""
    x = _spec(match, "x")
    if x is None or x != match.root.outputs[0].spec or not x.dtype.is_float:
        return "the types of the result and x differ"
    means = [n for n in match.nodes if n.op in ("mean", "amax", "sum")]
    return all(n.attrs["dim"] == (x.rank - 1,) for n in means) or "not over the last dim alone"


def _eps(match: Match) -> float:
    literal = match.graph.literal(match["eps"])
    return float(literal.numpy().reshape(-1)[0]) if literal is not None else 0.0


def _make(op: str) -> AnyType:
    def make(editor: Editor, node: Node, match: Match) -> Node:
        return editor.replace(node, op, match["x"], normalized_shape=node.spec.shape[-1:], eps=_eps(match))

    return make


def _softmax(editor: Editor, node: Node, match: Match) -> Node:
    return editor.replace(node, "softmax", match["x"], dim=node.spec.rank - 1)


def _cores() -> Iterator[PatternRule]:
    centered = Op("sub", _X, Op("mean", _X, keepdim=True), shared=True)
    for square in _squares(centered):
        for pattern in _normalized(centered, square):
            yield PatternRule(pattern, _make("layer_norm"), (_last_dim,))
    deviation = Op("add", Op("var", _X, keepdim=True, correction=0.0, name="mean"), Number(name="eps"))
    yield PatternRule(
        Op("mul", centered, Op("rsqrt", deviation)), _make("layer_norm"), (_last_dim, _variance)
    )
    yield PatternRule(Op("div", centered, Op("sqrt", deviation)), _make("layer_norm"), (_last_dim, _variance))
    for square in _squares(_X):
        for pattern in _normalized(_X, square):
            yield PatternRule(pattern, _make("rms_norm"), (_last_dim,))
    power = Op("exp", Op("sub", _X, Op("amax", _X, keepdim=True)), shared=True)
    yield PatternRule(Op("div", power, Op("sum", power, keepdim=True)), _softmax, (_last_dim,))


def _variance(match: Match) -> bool | str:
    return match.node("mean").attrs["dim"] == (match.root.spec.rank - 1,) or "not over the last dim alone"


def _affine(norm: str, operand: str, position: int) -> PatternRule:
    """Return the rule for ``norm(x) * w``, or ``norm(x, w) + b``."""
    core = Op(norm, name="norm")
    pattern = Op("mul" if operand == "w" else "add", core, Any(operand))

    def fits(match: Match) -> bool | str:
        node, spec = match.node("norm"), _spec(match, operand)
        count = len([i for i in node.inputs if i is not None])
        if count != position or len(node.outputs) > 1:
            return "the norm has such an operand already"
        if spec is None or spec.dtype is not node.spec.dtype or node.spec != match.root.spec:
            return "the types of the norm, the operand and the result differ"
        if tuple(spec.shape) != tuple(node.attrs["normalized_shape"]) or spec.rank != 1:
            return "the operand is not one number per element of the last dim"
        return True

    def make(editor: Editor, node: Node, match: Match) -> Node:
        inner = match.node("norm")
        return editor.replace(node, norm, *inner.inputs[:position], match[operand], **inner.attrs)

    return PatternRule(pattern, make, (fits,))


_CORES = tuple(_cores())
_AFFINE = (_affine("rms_norm", "w", 1), _affine("layer_norm", "w", 1), _affine("layer_norm", "b", 2))
