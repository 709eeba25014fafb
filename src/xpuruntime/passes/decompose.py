"""decompose: expand ops without a kernel on the target into simpler ones, by one table of expansions.

The context decides which ops have kernels, and which nodes a policy expands. Expansions of narrow ops compute in float32 and round once at the end, as the op does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..ir import Editor, Graph, Node
from ..types import DType
from ._lib.expand_attention import expand_attention_backward, expand_attention_train
from ._lib.expand_batch_norm import expand_batch_norm_train
from ._lib.expand_integer_conv import expand_convolution_integer, expand_qlinear_convolution
from ._lib.expand_packed import expand_packed
from ._lib.expand_recurrent import expand_recurrent
from ._lib.expand_scatter import expand_scatter
from ._lib.expand_windows import (
    expand_avg_pool_backward,
    expand_convolution_backward,
    expand_max_pool_backward,
)
from ._lib.expansion import Expansion
from .context import PassContext

__all__ = ["EXPANSIONS", "group_norm_without_kernels", "run"]


def run(graph: Graph, context: PassContext | None = None) -> Graph:
    """Return the graph without ops that have an expansion and no kernel; expansions are expanded, too."""
    context = context or PassContext()
    has_kernel, expands = context.has_kernel, context.expands
    naive: set[str] = set()

    def rule(editor: Editor, node: Node) -> None:
        if expand_packed(editor, node) or expand_scatter(editor, node):
            return
        expand = EXPANSIONS.get(node.op)
        if expand is None or (len(node.outputs) > 1 and node.op not in _SEVERAL):
            return
        if node.name in naive if node.op in _NAIVE and expands else not has_kernel(node.op):
            expand(Expansion(editor, node))

    for _ in range(8):
        if expands is not None:
            naive = {n.name for n in graph.nodes if n.op in _NAIVE and expands(graph, n)}
        rewritten = graph.rewrite(rule)
        if rewritten is graph:
            break
        graph = rewritten
    return graph


_ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...], Mapping[str, Any]]] = {
    "relu6": ("clamp", (0.0, 6.0), {}),
    "gelu_tanh": ("gelu", (), {"approximate": "tanh"}),
}


def _with_epilogue(layer: str) -> Callable[[Expansion], None]:
    def expand(emit: Expansion) -> None:
        attrs = dict(emit.node.attrs)
        act = attrs.pop("act")
        y = emit(layer, *(i for i in emit.node.inputs[:3] if i is not None), **attrs)
        residual = emit.input(3)
        if act == "none":
            emit.last("add", y, residual) if residual is not None else emit.last("clone", y)
            return
        y = y if residual is None else emit("add", y, residual)
        op, numbers, more = _ACTIVATIONS.get(act, (act, (), {}))
        emit.last(op, y, *numbers, **more)

    return expand


def _linear(emit: Expansion) -> None:
    product = emit("permute", emit.input(1), dims=(1, 0))
    if emit.input(2) is None:
        emit.last("matmul", emit.input(0), product)
    else:
        emit.last("add", emit("matmul", emit.input(0), product), emit.input(2))


def _mm_wide(emit: Expansion) -> None:
    product = emit("mm", emit.wide(0), emit.wide(1))
    if emit.input(2) is None:
        emit.editor.forward(emit.node.name, product)
    else:
        emit.last("add", product, emit.input(2))


def _addmm(emit: Expansion) -> None:
    alpha, beta = emit.node.attrs["alpha"], emit.node.attrs["beta"]
    product = emit("mm", emit.input(1), emit.input(2))
    if beta == 0:
        emit.last("mul", product, alpha)
        return
    product = product if alpha == 1 else emit("mul", product, alpha)
    emit.last("add", product, emit.input(0) if beta == 1 else emit("mul", emit.input(0), beta))


def _silu_mul(emit: Expansion) -> None:
    emit.last("mul", emit("silu", emit.wide(0)), emit.wide(1))


def _norm_linear(emit: Expansion) -> None:
    x, weight, bias, residual, scale = (emit.input(i) for i in range(5))
    attrs = emit.node.attrs
    if scale is not None:
        shape = (emit.spec(x).shape[-1],)
        x = emit("rms_norm", x, scale, normalized_shape=shape, eps=attrs["eps"])
    if not attrs["gated"]:
        emit.last("fused_linear", x, weight, bias, residual, act=attrs["act"])
        return
    _gated(emit, emit("linear", x, weight, *(() if bias is None else (bias,))))


def _gated(emit: Expansion, y: str) -> None:
    """Emit the product of both halves of ``y``, the first one after the activation, as the result."""
    attrs, size = emit.node.attrs, emit.node.spec.shape[-1]
    gate, through = emit.editor.insert(emit.node, "split", y, sizes=(size, size), dim=emit.node.spec.rank - 1)
    if attrs["act"] == "silu":
        emit.last("silu_mul", gate, through)
        return
    op, numbers, more = _ACTIVATIONS.get(attrs["act"], (attrs["act"], (), {}))
    emit.last("mul", gate if op == "none" else emit(op, gate, *numbers, **more), through)


def _expert_linear(emit: Expansion) -> None:
    x, weight, ids = (str(emit.input(i)) for i in range(3))
    (rows, slots), (_, outputs, k), attrs = emit.spec(ids).shape, emit.spec(weight).shape, emit.node.attrs
    if emit.spec(x).rank == 2:
        x = emit("expand", emit("unsqueeze", x, dims=(1,)), size=(rows, slots, k))
    pairs = rows * slots
    chosen = emit("index_select", weight, emit("view", ids, size=(pairs,)), dim=0)
    y = emit("view", emit("bmm", chosen, emit("view", x, size=(pairs, k, 1))), size=(rows, slots, outputs))
    if attrs["gated"]:
        _gated(emit, y)
        return
    op, numbers, more = _ACTIVATIONS.get(attrs["act"], (attrs["act"], (), {}))
    emit.last("clone", y) if op == "none" else emit.last(op, y, *numbers, **more)


def _rope_append(emit: Expansion) -> None:
    q, k, v, cos, sin, keys, values, places, positions = (emit.input(i) for i in range(9))
    more = () if positions is None else (positions,)
    rotated = [emit("rope", x, cos, sin, *more, size=emit.node.attrs["size"]) for x in (q, k)]
    results = [rotated[0]]
    for cache, new in ((keys, rotated[1]), (values, v)):
        if emit.spec(places).rank == 1:
            results.append(emit("index_copy", cache, places, new, dim=2))
        else:
            batch, heads, length, size = emit.spec(new).shape
            at = emit("view", places, size=(emit.spec(places).shape[0], 1, length, 1))
            at = emit("expand", at, size=(batch, heads, length, size))
            results.append(emit("scatter", cache, at, new, dim=2))
    for old, new in zip(emit.node.outputs, results, strict=True):
        emit.editor.forward(old.name, new)


def _rope_attention(emit: Expansion) -> None:
    attrs = dict(emit.node.attrs)
    results = emit.editor.insert(
        emit.node, "rope_append", *(emit.input(i) for i in range(9)), size=attrs.pop("size")
    )
    mask = () if emit.input(9) is None else (emit.input(9),)
    y = emit("attention", *results, *mask, **attrs)
    for old, new in zip(emit.node.outputs, (y, *results[1:]), strict=True):
        emit.editor.forward(old.name, new)


def _paged_attention(emit: Expansion) -> None:
    """Emit attention over the rows that the tables name; the mask hides what a query does not see."""
    q, keys, values, tables, positions = (str(emit.input(i)) for i in range(5))
    attrs = emit.node.attrs
    size, window = attrs["block_size"], attrs["window"]
    (batch, _, length, _), listed = emit.spec(q).shape, emit.spec(tables).shape[1]
    rows, heads = emit.spec(keys).shape[:2]
    blocks = emit("clamp", emit("cast", tables, dtype=DType.INT64), 0, rows // size - 1)
    first = emit("mul", emit("view", blocks, size=(batch, listed, 1)), size)
    within = emit("view", emit("arange", end=size, dtype=DType.INT64), size=(1, 1, size))
    places = emit("view", emit("add", first, within), size=(batch * listed * size,))
    caches = []
    for cache in (keys, values):
        chosen = emit("index_select", cache, places, dim=0)
        chosen = emit("view", chosen, size=(batch, listed * size, heads, emit.spec(cache).shape[2]))
        caches.append(emit("permute", chosen, dims=(0, 2, 1, 3)))
    at = emit("view", emit("cast", positions, dtype=DType.INT64), size=(batch, 1, length, 1))
    each = emit("arange", end=listed * size, dtype=DType.INT64)
    seen = emit("le", each, at)
    if window:
        seen = emit("logical_and", seen, emit("gt", each, emit("sub", at, window)))
    if (biases := emit.input(5)) is not None:
        heads, last = emit.spec(q).shape[1], emit.spec(biases).shape[1] - 1
        index = emit("expand", each, size=(batch, 1, length, listed * size))
        index = emit("clamp", index if attrs["by_key"] else emit("sub", at, each), 0, last)
        flat = emit("view", index, size=(batch * length * listed * size,))
        chosen = emit("index_select", biases, flat, dim=1)
        chosen = emit("view", chosen, size=(heads, batch, length, listed * size))
        seen = emit("where", seen, emit("permute", chosen, dims=(1, 0, 2, 3)), -math.inf)
    emit.last("attention", q, *caches, seen, scale=attrs["scale"], softcap=attrs["softcap"])


def _trailing(emit: Expansion) -> tuple[int, ...]:
    rank = emit.node.spec.rank
    return tuple(range(rank - len(emit.node.attrs["normalized_shape"]), rank))


def _affine(emit: Expansion, y: str, weight: Any, bias: Any) -> None:
    """Replace the node by ``y * weight + bias``."""
    if weight is not None and bias is not None:
        emit.last("add", emit("mul", y, weight), bias)
    elif weight is not None or bias is not None:
        emit.last("add" if weight is None else "mul", y, bias if weight is None else weight)
    else:
        emit.last("clone", y)


def _rms_norm(emit: Expansion) -> None:
    x = emit.wide(0)
    square = emit("mean", emit("mul", x, x), dim=_trailing(emit), keepdim=True)
    root = emit("rsqrt", emit("add", square, emit.node.attrs["eps"]))
    _affine(emit, emit("mul", x, root), emit.wide(1), None)


def _layer_norm(emit: Expansion) -> None:
    _affine(emit, _standardized(emit, emit.wide(0), _trailing(emit)), emit.wide(1), emit.wide(2))


def _standardized(emit: Expansion, x: str, dims: tuple[int, ...]) -> str:
    """Return ``x`` with mean 0 and variance 1 over dims."""
    centered = emit("sub", x, emit("mean", x, dim=dims, keepdim=True))
    square = emit("mean", emit("mul", centered, centered), dim=dims, keepdim=True)
    return emit("mul", centered, emit("rsqrt", emit("add", square, emit.node.attrs["eps"])))


def _layer_norm_backward(emit: Expansion) -> None:
    """Write dx = rstd (h - mean(h) - xhat mean(h xhat)) with h = grad weight, and the sums over rows for weight and bias."""
    grad, x, mean, rstd, weight = (emit.wide(i) for i in range(5))
    adds = emit.node.op == "layer_norm_backward_add"
    rank, normalized = emit.node.spec.rank, len(emit.node.attrs["normalized_shape"])
    last, leading = tuple(range(rank - normalized, rank)), tuple(range(rank - normalized))
    xhat = emit("mul", emit("sub", x, mean), rstd)
    h = grad if weight is None else emit("mul", grad, weight)
    centered = emit("sub", h, emit("mean", h, dim=last, keepdim=True))
    along = emit("mul", xhat, emit("mean", emit("mul", h, xhat), dim=last, keepdim=True))
    results = [emit("mul", emit("sub", centered, along), rstd)]
    if adds:
        results = [emit("add", results[0], emit.wide(5))]
    totals = [emit("mul", grad, xhat), grad][: len(emit.node.outputs) - 1]
    results += [emit("sum", v, dim=leading, keepdim=False) if leading else v for v in totals]
    if adds:
        results.append(results[0])
    for old, new in zip(emit.node.outputs, results, strict=True):
        assert old.spec is not None
        same = emit.spec(new).dtype is old.spec.dtype
        emit.editor.forward(old.name, new if same else emit("cast", new, dtype=old.spec.dtype))


def _embedding_backward(emit: Expansion) -> None:
    """Add each gradient row to its row of a table of zeros."""
    attrs, size = emit.node.attrs, emit.node.spec.shape[1]
    rows = emit("view", emit.wide(0), size=(-1, size))
    indices = emit("view", emit.input(1), size=(-1,))
    dtype, count = emit.spec(rows).dtype, emit.spec(indices).shape[0]
    if attrs["padding_idx"] >= 0:
        keep = emit("view", emit("ne", indices, attrs["padding_idx"]), size=(-1, 1))
        rows = emit("where", keep, rows, 0.0)
    if attrs["scale_by_freq"]:
        ones = emit("full", size=(count,), value=1.0, dtype=dtype)
        zeros = emit("full", size=(attrs["num_weights"],), value=0.0, dtype=dtype)
        often = emit("index", emit("index_put", zeros, ones, indices, accumulate=True), indices)
        rows = emit("div", rows, emit("view", often, size=(-1, 1)))
    zeros = emit("full", size=(attrs["num_weights"], size), value=0.0, dtype=dtype)
    emit.last("index_put", zeros, rows, indices, accumulate=True)


def _batch_norm(emit: Expansion) -> None:
    spec = emit.node.spec
    along = (1, spec.shape[1], *(1,) * (spec.rank - 2)) if spec.rank > 1 else spec.shape
    scale, shift, mean, var = (
        None if emit.input(i) is None else emit("view", emit.wide(i), size=along) for i in (1, 2, 3, 4)
    )
    root = emit("rsqrt", emit("add", var, emit.node.attrs["eps"]))
    _affine(emit, emit("mul", emit("sub", emit.wide(0), mean), root), scale, shift)


def _layer_norm_of_rows(emit: Expansion, rows: str) -> str:
    shape = (emit.spec(rows).shape[-1],)
    return emit("layer_norm", rows, normalized_shape=shape, eps=emit.node.attrs["eps"])


def _group_norm(emit: Expansion, of_rows: Callable[[Expansion, str], str] = _layer_norm_of_rows) -> None:
    spec, groups = emit.node.spec, emit.node.attrs["groups"]
    rows = emit("view", emit.wide(0), size=(spec.shape[0], groups, -1))
    y = emit("view", of_rows(emit, rows), size=spec.shape)
    along = (spec.shape[1], *(1,) * (spec.rank - 2))
    weight, bias = (None if emit.input(i) is None else emit("view", emit.wide(i), size=along) for i in (1, 2))
    _affine(emit, y, weight, bias)


def _softmax(emit: Expansion) -> None:
    dim = emit.node.attrs["dim"]
    x = emit.wide(0)
    x = x if emit.node.attrs["dtype"] is None else emit("cast", x, dtype=emit.node.attrs["dtype"])
    power = emit("exp", emit("sub", x, emit("amax", x, dim=dim, keepdim=True)))
    emit.last("div", power, emit("sum", power, dim=dim, keepdim=True))


def _log_softmax(emit: Expansion) -> None:
    dim = emit.node.attrs["dim"]
    x = emit.wide(0)
    x = x if emit.node.attrs["dtype"] is None else emit("cast", x, dtype=emit.node.attrs["dtype"])
    centered = emit("sub", x, emit("amax", x, dim=dim, keepdim=True))
    emit.last("sub", centered, emit("log", emit("sum", emit("exp", centered), dim=dim, keepdim=True)))


def _var(emit: Expansion) -> None:
    dims, attrs = emit.node.attrs["dim"], emit.node.attrs
    x = emit.wide(0)
    count = math.prod(int(emit.spec(x).shape[d]) for d in dims)
    centered = emit("sub", x, emit("mean", x, dim=dims, keepdim=True))
    total = emit("sum", emit("mul", centered, centered), dim=dims, keepdim=attrs["keepdim"])
    divisor = max(count - attrs["correction"], 0.0)
    emit.last("div", total, divisor)


def _attention(emit: Expansion) -> None:
    """Expand attention without softcap and causal mask, which need kernels. Keys of grouped heads are repeated."""
    q, k, v, mask = (emit.wide(i) for i in range(4))
    attrs = emit.node.attrs
    if attrs["causal"] or attrs["softcap"]:
        return
    heads, groups = emit.spec(q).shape[1], emit.spec(k).shape[1]
    if heads != groups:
        if not (isinstance(heads, int) and isinstance(groups, int)):
            return
        k, v = (_repeated(emit, x, heads // groups) for x in (k, v))
    scale = attrs["scale"] if attrs["scale"] is not None else 1 / math.sqrt(int(emit.spec(q).shape[3]))  # type: ignore[arg-type]
    scores = emit("mul", emit("matmul", q, emit("permute", k, dims=(0, 1, 3, 2))), scale)
    if mask is not None:
        hides = emit.spec(mask).dtype is DType.BOOL
        scores = emit("where", mask, scores, -math.inf) if hides else emit("add", scores, mask)
    weights = emit("softmax", scores, dim=3)
    if mask is not None:  # a fully masked row gives 0
        weights = emit("where", emit("isnan", weights), 0.0, weights)
    emit.last("matmul", weights, v)


def _repeated(emit: Expansion, x: str, times: int) -> str:
    """Return [batch, heads, length, size] with each head repeated."""
    batch, heads, length, size = emit.spec(x).shape
    expanded = emit("unsqueeze", x, dims=(2,))
    expanded = emit("expand", expanded, size=(batch, heads, times, length, size))
    return emit("view", expanded, size=(batch, heads * times, length, size))


def _rope(emit: Expansion) -> None:
    """Expand rope over the halves of the whole last dim, with tables by position or per element of the batch."""
    attrs, x, spec = emit.node.attrs, emit.wide(0), emit.node.spec
    size = spec.shape[-1]
    if attrs["interleaved"] or spec.rank != 4 or attrs["size"] not in (0, size) or not isinstance(size, int):
        return
    tables = []
    for i in (1, 2):
        table = emit.wide(i)
        if emit.input(3) is not None:
            table = emit("embedding", table, emit.input(3))
        if emit.spec(table).rank == 3:
            table = emit("unsqueeze", table, dims=(1,))
        tables.append(emit("cat", table, table, dim=emit.spec(table).rank - 1))
    low = emit("slice", x, dim=3, start=0, end=size // 2)
    high = emit("slice", x, dim=3, start=size // 2, end=size)
    rotated = emit("cat", emit("neg", high), low, dim=3)
    emit.last("add", emit("mul", x, tables[0]), emit("mul", rotated, tables[1]))


def group_norm_without_kernels(emit: Expansion) -> None:
    """Expand a group norm to arithmetic alone, without a layer norm, for which most targets have a kernel."""
    _group_norm(emit, lambda emit, rows: _standardized(emit, rows, (2,)))


EXPANSIONS: Mapping[str, Callable[[Expansion], None]] = {
    "fused_linear": _with_epilogue("linear"),
    "fused_convolution": _with_epilogue("convolution"),
    "linear": _linear,
    "addmm": _addmm,
    "mm": lambda emit: emit.last("matmul", emit.input(0), emit.input(1)),
    "mm_wide": _mm_wide,
    "bmm": lambda emit: emit.last("matmul", emit.input(0), emit.input(1)),
    "silu_mul": _silu_mul,
    "norm_linear": _norm_linear,
    "expert_linear": _expert_linear,
    "rope_append": _rope_append,
    "rope_attention": _rope_attention,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "layer_norm_backward_add": _layer_norm_backward,
    "embedding_backward": _embedding_backward,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "var": _var,
    "attention": _attention,
    "paged_attention": _paged_attention,
    "attention_train": expand_attention_train,
    "attention_backward": expand_attention_backward,
    "convolution_backward": expand_convolution_backward,
    "convolution_integer": expand_convolution_integer,
    "qlinear_convolution": expand_qlinear_convolution,
    "max_pool_backward": expand_max_pool_backward,
    "avg_pool_backward": expand_avg_pool_backward,
    "batch_norm_train": expand_batch_norm_train,
    "rope": _rope,
    "rnn": expand_recurrent,
    "gru": expand_recurrent,
    "lstm": expand_recurrent,
}
"""Op -> its expansion."""
_SEVERAL = frozenset(
    [
        "layer_norm_backward", "layer_norm_backward_add", "rope_append", "rope_attention", "attention_train", "attention_backward", "convolution_backward", "batch_norm_train",
        "rnn", "gru", "lstm",
    ]
)  # fmt: skip
"""Ops with several results."""
_NAIVE = frozenset(["attention_train", "attention_backward"])
"""Ops whose expansion is the kernel ``naive`` of a policy where no kernel has that name: ``PassContext.expands`` chooses between it and kernels."""
