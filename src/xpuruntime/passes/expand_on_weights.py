"""expand_on_weights: write ops on weights alone as the arithmetic that runs once, when weights are loaded.

Models standardize or normalize weights, compute position biases by a small network, or pass a gate through a sigmoid, in every run. The
compiler makes weight recipes of the simple ops that remain. The arithmetic is in float64, so that a result is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from ..ir import Editor, Graph, Node
from ..types import DType, TensorSpec
from ._lib.expansion import Expansion
from ._lib.known import elements, known_values
from .context import PassContext
from .decompose import EXPANSIONS, group_norm_without_kernels

__all__ = ["run"]

_MAX_ELEMENTS = 1 << 24
"""Elements that an expansion reads or makes. Its float64 intermediates take host memory while weights are loaded."""
_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
_MOVES = frozenset(["select", "split"])
"""Ops that compute nothing, and have every dtype."""


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with the ops on weights written out that recipes compute in that form."""
    context = context or PassContext()
    weight_values = known_values(graph)
    if context.at_load is None or not any(
        n.op in _EXPANSIONS and n.values and weight_values.issuperset(n.values) for n in graph.nodes
    ):
        return graph  # most models have none
    refused: set[str] = set()
    while True:
        chosen = _chosen(graph, context.at_load(graph), context) - refused
        if not chosen:
            return graph
        made: dict[str, list[str]] = {}

        def rule(
            editor: Editor, node: Node, chosen: set[str] = chosen, made: dict[str, list[str]] = made
        ) -> None:
            if node.outputs and node.name in chosen:
                expansion = _Exact(editor, node)
                made[node.name] = expansion.made
                _EXPANSIONS[node.op](expansion)

        rewritten = graph.rewrite(rule)
        values, known = {v.name for n in rewritten.nodes for v in n.outputs}, context.at_load(rewritten)
        left = {
            name
            for name, parts in made.items()
            if any(v in values and v not in known for v in (name, *parts))
        }
        refused |= left  # recipes do not compute all of their parts
        graph = graph if left else rewritten


def _chosen(graph: Graph, known: Container[str], context: PassContext) -> set[str]:
    """Return the nodes to expand: recipes compute all that they read, and do not compute them."""
    return {
        n.name for n in graph.nodes
        if n.values and n.name not in known and all(v in known for v in n.values) and _fits(graph, n) and not context.is_forced(graph, n)
    }  # fmt: skip


class _Exact(Expansion):
    """An expansion in float64, with reductions of one dim each. ``made``: the values of the nodes that it inserted."""

    def __init__(self, editor: Editor, node: Node) -> None:
        super().__init__(editor, node)
        self.made: list[str] = []

    def __call__(self, op: str, *inputs: Any, **attrs: Any) -> str:
        """Insert a node; a reduction as several."""
        if op in ("sum", "amax", "mean"):
            return self._reduced(op, str(inputs[0]), attrs.get("dim"), attrs.get("keepdim", False))
        return self._inserted(op, *inputs, **attrs)

    def _inserted(self, op: str, *inputs: Any, **attrs: Any) -> str:
        value = super().__call__(op, *inputs, **attrs)
        self.made.append(value)
        return value

    def _reduced(self, op: str, x: str, dim: int | Sequence[int] | None, keepdim: bool) -> str:
        spec = self.spec(x)
        all_dims = tuple(range(spec.rank))
        dims = {d % spec.rank for d in ((dim,) if isinstance(dim, int) else dim or all_dims)}
        for d in sorted(dims):
            x = self._inserted("amax" if op == "amax" else "sum", x, dim=(d,), keepdim=True)
        if op == "mean":
            sizes = [s for s in spec.shape if isinstance(s, int)]  # complete, since known values are static
            x = self._inserted("div", x, float(math.prod(sizes[d] for d in dims)))
        return (
            x
            if keepdim
            else self._inserted("view", x, size=[s for d, s in enumerate(spec.shape) if d not in dims])
        )

    def wide(self, at: int) -> Any:
        """Return an operand in float64."""
        value = self.input(at)
        if not isinstance(value, str) or self.spec(value).dtype is DType.FLOAT64:
            return value
        return self("cast", value, dtype=DType.FLOAT64)

    def last(self, op: str, *inputs: Any, **attrs: Any) -> None:
        """Replace the node by this one, rounded once to the node's type."""
        dtype = self.node.spec.dtype
        if op in ("sum", "amax", "mean"):
            op, inputs, attrs = "clone", (self(op, *inputs, **attrs),), {}
        if any(isinstance(i, str) and self.spec(i).dtype is not dtype for i in inputs):
            self.editor.replace(self.node, "cast", self(op, *inputs, **attrs), dtype=dtype)
        else:
            self.editor.replace(self.node, op, *inputs, **attrs)


# ── which nodes ──


def _fits(graph: Graph, node: Node) -> bool:
    """Return whether the table has the op in this form, for sizes that loading can afford."""
    read, results = [graph.spec(v) for v in node.values], [v.spec for v in node.outputs]
    if node.op not in _EXPANSIONS or not all(s is not None and s.is_static for s in (*read, *results)):
        return False
    if node.op in _MOVES:
        return True
    if any(s is None or s.dtype not in _FLOATS for s in (*read, *results)):
        return False
    counts = [elements(s) or 0 for s in (*read, *results)]
    return min(counts) > 0 and sum(counts) <= _MAX_ELEMENTS and _FORMS.get(node.op, _any_form)(node, read)


def _any_form(node: Node, read: Sequence[TensorSpec]) -> bool:
    return True


def _own_dtype(node: Node, read: Sequence[TensorSpec]) -> bool:
    return node.attrs["dtype"] in (None, read[0].dtype)


_FORMS: Mapping[str, Callable[[Node, Sequence[TensorSpec]], bool]] = {
    "sum": lambda node, read: len(node.attrs["dim"] or ()) != 1 and _own_dtype(node, read),
    "amax": lambda node, read: len(node.attrs["dim"] or ()) != 1,
    "mean": _own_dtype,
    "softmax": lambda node, read: read[0].rank > 0 and _own_dtype(node, read),
    "vector_norm": lambda node, read: node.attrs["ord"] in (1.0, 2.0, math.inf),
    "pow": lambda node, read: len(read) == 1 and node.inputs[1] in _POWERS,
    **dict.fromkeys(("linear", "matmul", "mm", "bmm"), lambda node, read: min(s.rank for s in read[:2]) > 1),
}
"""Op -> whether its expansion fits a node."""


# ── expansions ──


def _reduction(op: str) -> Callable[[Expansion], None]:
    def expand(emit: Expansion) -> None:
        emit.last(op, emit.wide(0), dim=emit.node.attrs["dim"], keepdim=emit.node.attrs["keepdim"])

    return expand


def _absolute(emit: Expansion, x: str) -> str:
    return emit("maximum", x, emit("neg", x))


def _vector_norm(emit: Expansion) -> None:
    x, order = emit.wide(0), emit.node.attrs["ord"]
    how = {"dim": emit.node.attrs["dim"], "keepdim": emit.node.attrs["keepdim"]}
    if order == 2:
        emit.last("sqrt", emit("sum", emit("mul", x, x), **how))
    else:
        emit.last("sum" if order == 1 else "amax", _absolute(emit, x), **how)


def _sigmoid(emit: Expansion) -> str:
    return emit("reciprocal", emit("add", emit("exp", emit("neg", emit.wide(0))), 1.0))


def _clamp(emit: Expansion) -> None:
    x, low, high = emit.wide(0), emit.wide(1), emit.wide(2)
    if low is not None:
        x = emit("maximum", x, low)
    if high is not None:
        x = emit(
            "neg", emit("maximum", emit("neg", x), emit("neg", high) if isinstance(high, str) else -high)
        )
    emit.last("clone", x)


def _minimum(emit: Expansion) -> None:
    x, y = (emit("neg", v) if isinstance(v, str) else -v for v in (emit.wide(0), emit.wide(1)))
    emit.last("neg", emit("maximum", x, y))


_POWERS: Mapping[float, Callable[[Expansion, str], str]] = {
    2: lambda emit, x: emit("mul", x, x),
    3: lambda emit, x: emit("mul", emit("mul", x, x), x),
    -1: lambda emit, x: emit("reciprocal", x),
}
"""Exponent -> what computes the power."""


def _linear(emit: Expansion) -> None:
    y = emit("matmul", emit.wide(0), emit("permute", emit.wide(1), dims=(1, 0)))
    emit.last("clone", y) if emit.input(2) is None else emit.last("add", y, emit.wide(2))


def _product(emit: Expansion) -> None:
    emit.last("matmul", emit.wide(0), emit.wide(1))


def _select(emit: Expansion) -> None:
    dim, index = emit.node.attrs["dim"], emit.node.attrs["index"]
    start = index % int(emit.spec(emit.input(0)).shape[dim])
    part = emit("slice", emit.input(0), dim=dim, start=start, end=start + 1)
    emit.last("view", part, size=emit.node.spec.shape)


def _split(emit: Expansion) -> None:
    start = 0
    for value, size in zip(emit.node.outputs, emit.node.attrs["sizes"], strict=True):
        part = emit("slice", emit.input(0), dim=emit.node.attrs["dim"], start=start, end=start + size)
        emit.editor.forward(value.name, part)
        start += size


_EXPANSIONS: Mapping[str, Callable[[Expansion], None]] = {
    **{
        op: EXPANSIONS[op]
        for op in ("batch_norm", "batch_norm_train", "layer_norm", "rms_norm", "softmax", "var")
    },
    **{op: _reduction(op) for op in ("sum", "amax", "mean")},
    "group_norm": group_norm_without_kernels,
    "vector_norm": _vector_norm,
    "pow": lambda emit: emit.last("clone", _POWERS[emit.node.inputs[1]](emit, emit.wide(0))),  # type: ignore[index]
    "abs": lambda emit: emit.last("clone", _absolute(emit, emit.wide(0))),
    "sigmoid": lambda emit: emit.last("clone", _sigmoid(emit)),
    "silu": lambda emit: emit.last("mul", emit.wide(0), _sigmoid(emit)),
    "clamp": _clamp,
    "minimum": _minimum,
    "linear": _linear,
    "matmul": _product,
    "mm": _product,
    "bmm": _product,
    "select": _select,
    "split": _split,
}
"""Op -> its expansion to ops that recipes have."""
