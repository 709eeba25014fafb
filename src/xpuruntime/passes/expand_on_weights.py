"""expand_on_weights: write ops on weights alone as the arithmetic that runs once, when weights are loaded.

Models standardize or normalize weights, compute position biases by a small network, or pass a gate through a sigmoid, in every run. The
compiler makes weight recipes of the simple ops that remain. The arithmetic is in float64, so that a result is rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..ir import Editor, Graph, Node
from ..types import DType, TensorSpec
from ._lib.expansion import Expansion
from ._lib.known import elements
from .context import PassContext
from .decompose import EXPANSIONS

__all__ = ["run"]

_MAX_GROWTH = 16
"""Elements of a large result per element that is read. More are cheaper to compute in each run than to keep."""
_SMALL = 1 << 20
"""Elements of a result that may have grown more: a position bias of a small network."""
_MAX_PRODUCTS = 1 << 33
"""Multiplications of a matrix product while weights are loaded: about a second."""
_FLOATS = (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32, DType.FLOAT64)
_MOVES = frozenset(["select", "split"])
"""Ops that compute nothing, and have every dtype."""


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph with the ops on weights written out from which only ops of recipes remain."""
    context = context or PassContext()
    while True:
        chosen = _chosen(graph, context)

        def rule(editor: Editor, node: Node, chosen: frozenset[str] = chosen) -> None:
            if node.outputs and node.name in chosen:
                _EXPANSIONS[node.op](_Exact(editor, node))

        rewritten = graph.rewrite(rule)
        if rewritten is graph:
            return graph
        graph = rewritten


def _chosen(graph: Graph, context: PassContext) -> frozenset[str]:
    """Return the nodes to expand: all that they read is a weight, a constant, or computed from them by a recipe."""
    ready, chosen = set(graph.weight_names), set[str]()
    for node in graph.nodes:
        if not all(v in ready for v in node.values):
            continue
        if node.values and _fits(graph, node) and not context.is_forced(graph, node):
            chosen.add(node.name)
        elif node.op != "constant" and not context.at_load(node.op):
            continue
        ready.update(v.name for v in node.outputs)
    return frozenset(chosen)


class _Exact(Expansion):
    """An expansion that computes in float64."""

    def wide(self, at: int) -> Any:
        """Return an operand in float64."""
        value = self.input(at)
        if not isinstance(value, str) or self.spec(value).dtype is DType.FLOAT64:
            return value
        return self("cast", value, dtype=DType.FLOAT64)

    def last(self, op: str, *inputs: Any, **attrs: Any) -> None:
        """Replace the node by this one, rounded once to the node's type."""
        dtype = self.node.spec.dtype
        if any(isinstance(i, str) and self.spec(i).dtype is not dtype for i in inputs):
            self.editor.replace(self.node, "cast", self(op, *inputs, **attrs), dtype=dtype)
        else:
            self.editor.replace(self.node, op, *inputs, **attrs)


# ── which nodes ──


def _fits(graph: Graph, node: Node) -> bool:
    """Return whether the table has the op in this form, and the result is not much larger than what is read."""
    read, results = [graph.spec(v) for v in node.values], [v.spec for v in node.outputs]
    if node.op not in _EXPANSIONS or not all(s is not None and s.is_static for s in (*read, *results)):
        return False
    if node.op in _MOVES:
        return True
    if any(s is None or s.dtype not in _FLOATS for s in (*read, *results)):
        return False
    count = sum(elements(s) or 0 for s in read)
    form = _FORMS.get(node.op, _any_form)
    return (elements(node.spec) or 0) <= max(_MAX_GROWTH * count, _SMALL) and form(node, read)


def _any_form(node: Node, read: Sequence[TensorSpec]) -> bool:
    return True


def _own_dtype(node: Node, read: Sequence[TensorSpec]) -> bool:
    return node.attrs["dtype"] in (None, read[0].dtype)


def _few_products(node: Node, read: Sequence[TensorSpec]) -> bool:
    width = read[0].shape[-1] if read[0].rank else 1
    return read[1].rank > 1 and read[0].rank > 1 and (elements(node.spec) or 0) * int(width) <= _MAX_PRODUCTS  # type: ignore[arg-type]


_FORMS: Mapping[str, Callable[[Node, Sequence[TensorSpec]], bool]] = {
    "sum": lambda node, read: len(node.attrs["dim"] or ()) != 1 and _own_dtype(node, read),
    "amax": lambda node, read: len(node.attrs["dim"] or ()) != 1,
    "mean": _own_dtype,
    "softmax": _own_dtype,
    "vector_norm": lambda node, read: node.attrs["ord"] in (1.0, 2.0, math.inf),
    "pow": lambda node, read: len(read) == 1 and node.inputs[1] in _POWERS,
    "matmul": lambda node, read: node.spec.dtype is not DType.FLOAT64 and _few_products(node, read),
    **dict.fromkeys(("linear", "mm", "bmm"), _few_products),
}
"""Op -> whether its expansion fits a node."""


# ── expansions ──


def _dims(emit: Expansion) -> tuple[int, ...]:
    """Return the dims that a reduction reduces."""
    dims = emit.node.attrs["dim"]
    return tuple(range(emit.spec(emit.input(0)).rank)) if dims is None or dims == () else tuple(dims)


def _over_dims(emit: Expansion, op: str, x: str) -> str:
    """Return a reduction of one dim after the other, each kept with size 1."""
    for dim in _dims(emit):
        x = emit(op, x, dim=(dim,), keepdim=True)
    return x


def _in_shape(emit: Expansion, y: str) -> None:
    emit.last("view", y, size=emit.node.spec.shape)


def _mean(emit: Expansion) -> None:
    x = emit.wide(0)
    sizes = [d for d in emit.spec(x).shape if isinstance(d, int)]  # complete, since known values are static
    count = float(math.prod(sizes[d] for d in _dims(emit)))
    _in_shape(emit, emit("div", _over_dims(emit, "sum", x), count))


def _absolute(emit: Expansion, x: str) -> str:
    return emit("maximum", x, emit("neg", x))


def _vector_norm(emit: Expansion) -> None:
    x, order = emit.wide(0), emit.node.attrs["ord"]
    if order == 2:
        _in_shape(emit, emit("sqrt", _over_dims(emit, "sum", emit("mul", x, x))))
    else:
        _in_shape(emit, _over_dims(emit, "sum" if order == 1 else "amax", _absolute(emit, x)))


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
    0.5: lambda emit, x: emit("sqrt", x),
    -0.5: lambda emit, x: emit("rsqrt", x),
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
    _in_shape(emit, emit("slice", emit.input(0), dim=dim, start=start, end=start + 1))


def _split(emit: Expansion) -> None:
    start = 0
    for value, size in zip(emit.node.outputs, emit.node.attrs["sizes"], strict=True):
        part = emit("slice", emit.input(0), dim=emit.node.attrs["dim"], start=start, end=start + size)
        emit.editor.forward(value.name, part)
        start += size


_EXPANSIONS: Mapping[str, Callable[[Expansion], None]] = {
    **{
        op: EXPANSIONS[op]
        for op in ("batch_norm", "batch_norm_train", "group_norm", "layer_norm", "rms_norm", "softmax", "var")
    },
    "sum": lambda emit: _in_shape(emit, _over_dims(emit, "sum", emit.wide(0))),
    "amax": lambda emit: _in_shape(emit, _over_dims(emit, "amax", emit.wide(0))),
    "mean": _mean,
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
