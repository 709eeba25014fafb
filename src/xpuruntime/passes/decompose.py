"""decompose: an op that nothing on the target computes is written out with plainer ones, by one table of expansions.

The context says which ops have kernels. Expansions compute in float32 where the op keeps narrower values, and round once at the end, as the op does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..ir import Editor, Graph, Node
from ..types import DType
from ._lib.context import Context
from ._lib.expansion import Expansion
from .expand_recurrent import expand_recurrent

__all__ = ["EXPANSIONS", "run"]


def run(graph: Graph, context: Context | None = None) -> Graph:
    """The graph without ops that have an expansion and no kernel; expansions may need expansion themselves."""
    has_kernel = (context or Context()).has_kernel

    def rule(editor: Editor, node: Node) -> None:
        expand = EXPANSIONS.get(node.op)
        if expand is not None and (len(node.outputs) == 1 or node.op in _SEVERAL) and not has_kernel(node.op):
            expand(Expansion(editor, node))

    for _ in range(8):
        made = graph.rewrite(rule)
        if made is graph:
            break
        graph = made
    return graph


_ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...], Mapping[str, Any]]] = {
    "relu6": ("clamp", (0.0, 6.0), {}),
    "gelu_tanh": ("gelu", (), {"approximate": "tanh"}),
}


def _with_epilogue(layer: str) -> Callable[[Expansion], None]:
    def expand(pen: Expansion) -> None:
        attrs = dict(pen.node.attrs)
        act = attrs.pop("act")
        y = pen(layer, *(i for i in pen.node.inputs[:3] if i is not None), **attrs)
        residual = pen.input(3)
        if act == "none":
            pen.last("add", y, residual) if residual is not None else pen.last("clone", y)
            return
        y = y if residual is None else pen("add", y, residual)
        op, numbers, more = _ACTIVATIONS.get(act, (act, (), {}))
        pen.last(op, y, *numbers, **more)

    return expand


def _linear(pen: Expansion) -> None:
    product = pen("permute", pen.input(1), dims=(1, 0))
    if pen.input(2) is None:
        pen.last("matmul", pen.input(0), product)
    else:
        pen.last("add", pen("matmul", pen.input(0), product), pen.input(2))


def _addmm(pen: Expansion) -> None:
    alpha, beta = pen.node.attrs["alpha"], pen.node.attrs["beta"]
    product = pen("mm", pen.input(1), pen.input(2))
    if beta == 0:
        pen.last("mul", product, alpha)
        return
    product = product if alpha == 1 else pen("mul", product, alpha)
    pen.last("add", product, pen.input(0) if beta == 1 else pen("mul", pen.input(0), beta))


def _silu_mul(pen: Expansion) -> None:
    pen.last("mul", pen("silu", pen.wide(0)), pen.wide(1))


def _norm_linear(pen: Expansion) -> None:
    x, weight, bias, residual, scale = (pen.input(i) for i in range(5))
    attrs = pen.node.attrs
    if scale is not None:
        shape = (pen.spec(x).shape[-1],)
        x = pen("rms_norm", x, scale, normalized_shape=shape, eps=attrs["eps"])
    if not attrs["gated"]:
        pen.last("fused_linear", x, weight, bias, residual, act=attrs["act"])
        return
    y = pen("linear", x, weight, *(() if bias is None else (bias,)))
    size = pen.node.spec.shape[-1]
    gate, through = pen.editor.insert(pen.node, "split", y, sizes=(size, size), dim=pen.node.spec.rank - 1)
    if attrs["act"] == "silu":
        pen.last("silu_mul", gate, through)
        return
    op, numbers, more = _ACTIVATIONS.get(attrs["act"], (attrs["act"], (), {}))
    pen.last("mul", gate if op == "none" else pen(op, gate, *numbers, **more), through)


def _rope_append(pen: Expansion) -> None:
    q, k, v, cos, sin, keys, values, places, positions = (pen.input(i) for i in range(9))
    more = () if positions is None else (positions,)
    turned = [pen("rope", x, cos, sin, *more, size=pen.node.attrs["size"]) for x in (q, k)]
    made = [turned[0]]
    for cache, new in ((keys, turned[1]), (values, v)):
        if pen.spec(places).rank == 1:
            made.append(pen("index_copy", cache, places, new, dim=2))
        else:
            batch, heads, length, size = pen.spec(new).shape
            at = pen("view", places, size=(pen.spec(places).shape[0], 1, length, 1))
            at = pen("expand", at, size=(batch, heads, length, size))
            made.append(pen("scatter", cache, at, new, dim=2))
    for old, new in zip(pen.node.outputs, made, strict=True):
        pen.editor.forward(old.name, new)


def _rope_attention(pen: Expansion) -> None:
    attrs = dict(pen.node.attrs)
    made = pen.editor.insert(
        pen.node, "rope_append", *(pen.input(i) for i in range(9)), size=attrs.pop("size")
    )
    mask = () if pen.input(9) is None else (pen.input(9),)
    y = pen("attention", *made, *mask, **attrs)
    for old, new in zip(pen.node.outputs, (y, *made[1:]), strict=True):
        pen.editor.forward(old.name, new)


def _trailing(pen: Expansion) -> tuple[int, ...]:
    rank = pen.node.spec.rank
    return tuple(range(rank - len(pen.node.attrs["normalized_shape"]), rank))


def _affine(pen: Expansion, y: str, weight: Any, bias: Any) -> None:
    """Y * weight + bias in the node's place."""
    if weight is not None and bias is not None:
        pen.last("add", pen("mul", y, weight), bias)
    elif weight is not None or bias is not None:
        pen.last("add" if weight is None else "mul", y, bias if weight is None else weight)
    else:
        pen.last("clone", y)


def _rms_norm(pen: Expansion) -> None:
    x = pen.wide(0)
    square = pen("mean", pen("mul", x, x), dim=_trailing(pen), keepdim=True)
    root = pen("rsqrt", pen("add", square, pen.node.attrs["eps"]))
    _affine(pen, pen("mul", x, root), pen.wide(1), None)


def _layer_norm(pen: Expansion) -> None:
    x, dims = pen.wide(0), _trailing(pen)
    centred = pen("sub", x, pen("mean", x, dim=dims, keepdim=True))
    square = pen("mean", pen("mul", centred, centred), dim=dims, keepdim=True)
    root = pen("rsqrt", pen("add", square, pen.node.attrs["eps"]))
    _affine(pen, pen("mul", centred, root), pen.wide(1), pen.wide(2))


def _batch_norm(pen: Expansion) -> None:
    spec = pen.node.spec
    along = (1, spec.shape[1], *(1,) * (spec.rank - 2)) if spec.rank > 1 else spec.shape
    scale, shift, mean, var = (
        None if pen.input(i) is None else pen("view", pen.wide(i), size=along) for i in (1, 2, 3, 4)
    )
    root = pen("rsqrt", pen("add", var, pen.node.attrs["eps"]))
    _affine(pen, pen("mul", pen("sub", pen.wide(0), mean), root), scale, shift)


def _group_norm(pen: Expansion) -> None:
    spec, groups = pen.node.spec, pen.node.attrs["groups"]
    rows = pen("view", pen.wide(0), size=(spec.shape[0], groups, -1))
    size = pen.spec(rows).shape[-1]
    y = pen(
        "view", pen("layer_norm", rows, normalized_shape=(size,), eps=pen.node.attrs["eps"]), size=spec.shape
    )
    along = (spec.shape[1], *(1,) * (spec.rank - 2))
    weight, bias = (None if pen.input(i) is None else pen("view", pen.wide(i), size=along) for i in (1, 2))
    _affine(pen, y, weight, bias)


def _softmax(pen: Expansion) -> None:
    dim = pen.node.attrs["dim"]
    x = pen.wide(0)
    x = x if pen.node.attrs["dtype"] is None else pen("cast", x, dtype=pen.node.attrs["dtype"])
    power = pen("exp", pen("sub", x, pen("amax", x, dim=dim, keepdim=True)))
    pen.last("div", power, pen("sum", power, dim=dim, keepdim=True))


def _log_softmax(pen: Expansion) -> None:
    dim = pen.node.attrs["dim"]
    x = pen.wide(0)
    x = x if pen.node.attrs["dtype"] is None else pen("cast", x, dtype=pen.node.attrs["dtype"])
    centred = pen("sub", x, pen("amax", x, dim=dim, keepdim=True))
    pen.last("sub", centred, pen("log", pen("sum", pen("exp", centred), dim=dim, keepdim=True)))


def _var(pen: Expansion) -> None:
    dims, attrs = pen.node.attrs["dim"], pen.node.attrs
    x = pen.wide(0)
    count = math.prod(int(pen.spec(x).shape[d]) for d in dims)
    centred = pen("sub", x, pen("mean", x, dim=dims, keepdim=True))
    total = pen("sum", pen("mul", centred, centred), dim=dims, keepdim=attrs["keepdim"])
    left = max(count - attrs["correction"], 0.0)
    pen.last("div", total, left)


def _attention(pen: Expansion) -> None:
    """Without cap and causal mask, which need kernels of their own; keys of groups are repeated for every head."""
    q, k, v, mask = (pen.wide(i) for i in range(4))
    attrs = pen.node.attrs
    if attrs["causal"] or attrs["softcap"]:
        return
    heads, groups = pen.spec(q).shape[1], pen.spec(k).shape[1]
    if heads != groups:
        if not (isinstance(heads, int) and isinstance(groups, int)):
            return
        k, v = (_repeated(pen, x, heads // groups) for x in (k, v))
    scale = attrs["scale"] if attrs["scale"] is not None else 1 / math.sqrt(int(pen.spec(q).shape[3]))  # type: ignore[arg-type]
    scores = pen("mul", pen("matmul", q, pen("permute", k, dims=(0, 1, 3, 2))), scale)
    if mask is not None:
        hides = pen.spec(mask).dtype is DType.BOOL
        scores = pen("where", mask, scores, -math.inf) if hides else pen("add", scores, mask)
    weights = pen("softmax", scores, dim=3)
    if mask is not None:  # a row that sees nothing gives 0
        weights = pen("where", pen("isnan", weights), 0.0, weights)
    pen.last("matmul", weights, v)


def _repeated(pen: Expansion, x: str, times: int) -> str:
    """[batch, heads, length, size] with each head so many times."""
    batch, heads, length, size = pen.spec(x).shape
    each = pen("unsqueeze", x, dims=(2,))
    each = pen("expand", each, size=(batch, heads, times, length, size))
    return pen("view", each, size=(batch, heads * times, length, size))


def _rope(pen: Expansion) -> None:
    """In halves of the whole last dim, by tables that each position names or that are there for each place."""
    attrs, x, spec = pen.node.attrs, pen.wide(0), pen.node.spec
    size = spec.shape[-1]
    if attrs["interleaved"] or spec.rank != 4 or attrs["size"] not in (0, size) or not isinstance(size, int):
        return
    tables = []
    for i in (1, 2):
        table = pen.wide(i)
        if pen.input(3) is not None:
            table = pen("embedding", table, pen.input(3))
        if pen.spec(table).rank == 3:
            table = pen("unsqueeze", table, dims=(1,))
        tables.append(pen("cat", table, table, dim=pen.spec(table).rank - 1))
    low = pen("slice", x, dim=3, start=0, end=size // 2)
    high = pen("slice", x, dim=3, start=size // 2, end=size)
    turned = pen("cat", pen("neg", high), low, dim=3)
    pen.last("add", pen("mul", x, tables[0]), pen("mul", turned, tables[1]))


EXPANSIONS: Mapping[str, Callable[[Expansion], None]] = {
    "fused_linear": _with_epilogue("linear"),
    "fused_convolution": _with_epilogue("convolution"),
    "linear": _linear,
    "addmm": _addmm,
    "mm": lambda pen: pen.last("matmul", pen.input(0), pen.input(1)),
    "bmm": lambda pen: pen.last("matmul", pen.input(0), pen.input(1)),
    "silu_mul": _silu_mul,
    "norm_linear": _norm_linear,
    "rope_append": _rope_append,
    "rope_attention": _rope_attention,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "var": _var,
    "attention": _attention,
    "rope": _rope,
    "rnn": expand_recurrent,
    "gru": expand_recurrent,
    "lstm": expand_recurrent,
}
"""How ops are written out."""
_SEVERAL = frozenset(["rope_append", "rope_attention", "rnn", "gru", "lstm"])
"""Those with several results."""
