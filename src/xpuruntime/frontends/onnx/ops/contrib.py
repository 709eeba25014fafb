"""Lowerings of ONNX Runtime's ops (``com.microsoft``) that its optimizers and exporters write in place of several ONNX ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....types import DType
from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results, numbers
from .conv import LOWERINGS as CONVOLUTIONS
from .matmul import gemm

__all__ = ["DEFAULT_DOMAIN", "LOWERINGS"]


# ── activations ──


def _gelu(approximate: str) -> OpLowering:
    """Return the lowering of Gelu, BiasGelu and FastGelu: the second operand is a bias."""

    def lower(n: OnnxLoweringContext) -> Results:
        x = n.x if n.opt(1) is None else n.b.add(n.x, n.input(1))
        return str(n.b.gelu(x, approximate=approximate))

    return lower


def _quick_gelu(n: OnnxLoweringContext) -> Results:
    return str(n.b.mul(n.x, n.b.sigmoid(n.b.mul(n.x, float(n.attr("alpha", 1.702))))))


def _bias_add(n: OnnxLoweringContext) -> Results:
    return str(n.b.add(n.b.add(n.x, n.input(1)), n.input(2)))


_ACTIVATIONS: dict[str, Callable[[OnnxLoweringContext, str, list[float]], Any]] = {
    "": lambda n, x, p: x,
    "Relu": lambda n, x, p: n.b.relu(x),
    "Sigmoid": lambda n, x, p: n.b.sigmoid(x),
    "Tanh": lambda n, x, p: n.b.tanh(x),
    "LeakyRelu": lambda n, x, p: n.b.leaky_relu(x, negative_slope=p[0] if p else 0.01),
    "HardSigmoid": lambda n, x, p: n.b.hardsigmoid(x, alpha=p[0], beta=p[1]),
    "Clip": lambda n, x, p: n.b.clamp(x, p[0], p[1]),
}
"""Activation of a fused op -> its lowering, with the activation's numbers."""


def _activated(n: OnnxLoweringContext, x: str, given: list[float]) -> str:
    name = n.attr("activation", "")
    if name not in _ACTIVATIONS:
        raise NotLowered(f"the activation {name!r} is not supported")
    try:
        return str(_ACTIVATIONS[name](n, x, given))
    except IndexError:
        raise NotLowered(f"the activation {name!r} lacks its numbers") from None


# ── products and convolutions ──


def _matmul(n: OnnxLoweringContext) -> Results:
    """Lower FusedMatMul: a product of matrices, either one transposed, times alpha."""
    if n.attr("transBatchA", 0) or n.attr("transBatchB", 0):
        raise NotLowered("transposed batches are not supported")
    sides = []
    for position, name in ((0, "transA"), (1, "transB")):
        value, rank = n.input(position), n.spec(position).rank
        if n.attr(name, 0) and rank > 1:
            value = str(n.b.permute(value, dims=[*range(rank - 2), rank - 1, rank - 2]))
        sides.append(value)
    y = str(n.b.matmul(*sides))
    alpha = float(n.attr("alpha", 1.0))
    return y if alpha == 1.0 else str(n.b.mul(y, alpha))


def _fused_gemm(n: OnnxLoweringContext) -> Results:
    given = [float(n.attr(a)) for a in ("activation_alpha", "activation_beta") if a in n.attrs]
    return _activated(n, str(gemm(n)), given)


def _fused_conv(n: OnnxLoweringContext) -> Results:
    """Lower FusedConv: a convolution, an addend (its fourth operand) and an activation."""
    inner = OnnxLoweringContext(
        n.b, "Conv", n.opset, n.inputs[:3], n.outputs, n.attrs, n._known, n.dtypes
    ) if len(n.inputs) > 3 else n  # fmt: skip
    y = str(CONVOLUTIONS["Conv"](inner))
    if n.opt(3) is not None:
        y = str(n.b.add(y, n.input(3)))
    return _activated(n, y, [float(v) for v in n.attr("activation_params", [])])


# ── normalizations ──


def _skip_norm(*, rms: bool) -> OpLowering:
    """Return the lowering of SkipLayerNormalization and its RMS form: the norm of x + skip + bias; the sum is the last output."""

    def lower(n: OnnxLoweringContext) -> Results:
        if n.has_readers(1) or n.has_readers(2):
            raise NotLowered("its statistics as outputs are not supported")
        total, bias = n.b.add(n.x, n.input(1)), n.opt(3 if rms else 4)
        if bias is not None:
            total = n.b.add(total, bias)
        shape, eps = n.spec().shape[-1:], float(n.attr("epsilon", 1e-12))
        if rms:
            y = n.b.rms_norm(total, n.input(2), normalized_shape=shape, eps=eps)
        else:
            affine = [n.input(2)] if n.opt(3) is None else [n.input(2), n.input(3)]
            y = n.b.layer_norm(total, *affine, normalized_shape=shape, eps=eps)
        return [str(y), None, None, str(total)]

    return lower


def _simplified_norm(n: OnnxLoweringContext) -> Results:
    """Lower SimplifiedLayerNormalization: an RMS norm over the dims from ``axis`` on."""
    if n.has_readers(1):
        raise NotLowered("its statistics as outputs are not supported")
    shape = n.spec().shape[n.axis(-1) :]
    return str(n.b.rms_norm(n.x, n.input(1), normalized_shape=shape, eps=float(n.attr("epsilon", 1e-5))))


def _embed_norm(n: OnnxLoweringContext) -> Results:
    """Lower EmbedLayerNormalization: the norm of the sum of word, position and segment embeddings."""
    ids, segments = n.x, n.opt(1)
    length = n.spec().shape[1]
    if n.opt(8) is not None:
        positions = n.b.embedding(n.input(3), n.input(8))
    else:
        table = n.b.call("slice", n.input(3), dim=0, start=0, end=length, step=1)
        positions = n.b.unsqueeze(table, dims=[0])
    total = n.b.add(n.b.embedding(n.input(2), ids), positions)
    if segments is not None:
        total = n.b.add(total, n.b.embedding(n.input(4), segments))
    shape = n.spec(2).shape[-1:]
    y = n.b.layer_norm(
        total, n.input(5), n.input(6), normalized_shape=shape, eps=float(n.attr("epsilon", 1e-12))
    )
    count = None
    if n.has_readers(1):
        if n.opt(7) is None:
            raise NotLowered("its count of masked words without a mask is not supported")
        count = str(n.b.cast(n.b.sum(n.input(7), dim=[1], keepdim=False), dtype=DType.INT32))
    return [str(y), count, str(total)]


# ── attention ──


def _split_heads(n: OnnxLoweringContext, x: str, heads: int) -> str:
    batch, length, hidden = n.spec_of(x).shape
    split = n.b.view(x, size=[batch, length, heads, hidden // heads])
    return str(n.b.permute(split, dims=[0, 2, 1, 3]))


def _join_heads(n: OnnxLoweringContext, y: str) -> str:
    batch, heads, length, size = n.spec_of(y).shape
    return str(n.b.view(n.b.permute(y, dims=[0, 2, 1, 3]), size=[batch, length, heads * size]))


def _mask(n: OnnxLoweringContext, position: int, keys: Any) -> str | None:
    """Return a padding mask as numbers that are added to the scores: one per key and example, or the number of keys of each example."""
    if n.opt(position) is None:
        return None
    spec = n.spec(position)
    mask = n.input(position)
    if spec.rank == 1 and spec.shape[0] == n.spec().shape[0]:
        ends = n.b.arange(start=0, end=keys, step=1, dtype=spec.dtype)
        seen = n.b.lt(ends, n.b.unsqueeze(mask, dims=[1]))
    elif spec.rank in (2, 3) and spec.shape[-1] == keys:
        seen = n.b.ne(mask, 0)
    else:
        raise NotLowered(f"a mask {spec} is not supported")
    low = n.b.constant(np.asarray(float(n.attr("mask_filter_value", -10000.0)), n.spec().dtype.numpy))
    zero = n.b.constant(np.asarray(0.0, n.spec().dtype.numpy))
    added = n.b.where(seen, zero, low)
    return str(n.b.unsqueeze(added, dims=[1, 2] if spec.rank < 3 else [1]))


def _scores(n: OnnxLoweringContext, q: str, k: str, v: str, mask: str | None, bias: str | None) -> str:
    """Return attention over heads, joined."""
    if mask is not None and bias is not None:
        mask = str(n.b.add(mask, bias))
    scale = n.attr("scale") or None
    y = n.b.attention(
        q,
        k,
        v,
        mask if mask is not None else bias,
        causal=bool(n.attr("unidirectional", 0)),
        causal_offset=0,
        scale=None if scale is None else float(scale),
        softcap=0.0,
    )
    return _join_heads(n, str(y))


def _attention(n: OnnxLoweringContext) -> Results:
    """Lower Attention of com.microsoft: one product makes queries, keys and values."""
    if n.opt(4) is not None or n.has_readers(1) or n.attr("do_rotary", 0):
        raise NotLowered("caches and rotation inside Attention are not supported")
    heads, (hidden,) = int(n.attr("num_heads")), numbers(n.spec(1).shape[1:], "its hidden size")
    sizes = [int(s) for s in n.attr("qkv_hidden_sizes") or [hidden // 3] * 3]
    joined = n.b.matmul(n.x, n.input(1))
    if n.opt(2) is not None:
        joined = n.b.add(joined, n.input(2))
    parts = n.b.call("split", joined, outputs=3, sizes=sizes, dim=2)
    q, k, v = (_split_heads(n, str(p), heads) for p in parts)
    return [_scores(n, q, k, v, _mask(n, 3, n.spec().shape[1]), n.opt(5)), None]


def _multi_head(n: OnnxLoweringContext) -> Results:
    """Lower MultiHeadAttention on separate queries, keys and values without a cache."""
    if any(n.opt(i) is not None for i in range(6, 10)) or n.has_readers(1) or n.has_readers(3):
        raise NotLowered("caches and inner results of MultiHeadAttention are not supported")
    if n.opt(1) is None or n.opt(2) is None or any(n.spec(i).rank != 3 for i in range(3)):
        raise NotLowered("packed queries, keys and values are not supported")
    if n.attr("unidirectional", 0) and n.spec().shape[1] != n.spec(1).shape[1]:
        # ONNX Runtime masks all queries but the last one.
        raise NotLowered("unidirectional attention needs as many keys as queries")
    heads, values = int(n.attr("num_heads")), [n.x, n.input(1), n.input(2)]
    if n.opt(3) is not None:
        sizes = [n.spec(i).shape[2] for i in range(3)]
        biases = n.b.call("split", n.input(3), outputs=3, sizes=sizes, dim=0)
        values = [str(n.b.add(v, b)) for v, b in zip(values, biases, strict=True)]
    q, k, v = (_split_heads(n, value, heads) for value in values)
    return [_scores(n, q, k, v, _mask(n, 4, n.spec(1).shape[1]), n.opt(5)), None, None]


def _rotary(n: OnnxLoweringContext) -> Results:
    """Lower RotaryEmbedding of com.microsoft: positions before the tables, one row of them or one start for all."""
    if n.attr("scale", 1.0) != 1.0 or n.attr("is_packed_batching", 0):
        raise NotLowered("scaled and packed RotaryEmbedding is not supported")
    spec, positions = n.spec(), n.spec(1)
    if positions.rank != 2:
        raise NotLowered("RotaryEmbedding with one start for all positions is not supported")
    size = 2 * numbers(n.spec(2).shape[1:], "its size")[0]
    x = n.x
    if spec.rank == 3:
        heads = int(n.attr("num_heads", 0)) or numbers(spec.shape[2:], "its hidden size")[0] // size
        x = _split_heads(n, n.x, heads)
    y = n.b.rope(x, n.input(2), n.input(3), n.input(1), interleaved=bool(n.attr("interleaved", 0)), size=size)
    return _join_heads(n, str(y)) if spec.rank == 3 else str(y)


LOWERINGS: dict[str, OpLowering] = {
    "Attention": _attention,
    "BiasAdd": _bias_add,
    "BiasGelu": _gelu("none"),
    "EmbedLayerNormalization": _embed_norm,
    "FastGelu": _gelu("tanh"),
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _matmul,
    "Gelu": _gelu("none"),
    "MultiHeadAttention": _multi_head,
    "QuickGelu": _quick_gelu,
    "RotaryEmbedding": _rotary,
    "SimplifiedLayerNormalization": _simplified_norm,
    "SkipLayerNormalization": _skip_norm(rms=False),
    "SkipSimplifiedLayerNormalization": _skip_norm(rms=True),
    "TransposeMatMul": _matmul,
}

DEFAULT_DOMAIN: dict[str, OpLowering] = {"SimplifiedLayerNormalization": _simplified_norm}
"""Ops that ONNX Runtime's optimizer writes in the default domain, although ONNX does not define them."""
