"""Lowerings of ONNX Runtime's attention ops (``com.microsoft``): projected, quantized and multi-head, and rotary embedding."""

from __future__ import annotations

from typing import NamedTuple

from .....types import DimLike
from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext, OpLowering, Results, may_equal, numbers
from .heads import append_to_cache, attend, join_heads, padding_mask, split_heads, sum_masks, unpack_heads
from .indices import checked
from .quant import dequantized

__all__ = ["LOWERINGS"]


# ── Attention, QAttention: one product makes queries, keys and values ──


class _Projected(NamedTuple):
    """The positions of an op's operands."""

    mask: int
    past: int
    bias: int


def _projection(n: OnnxLoweringContext, joined: str, at: _Projected) -> Results:
    """Lower attention of ``joined``, whose last dim has the queries of all heads, then their keys, then their values."""
    if at.bias and n.opt(6) is not None:
        raise NotLowered("caches in a shared buffer are not supported")
    batch, length, total = n.spec_of(joined).shape
    (hidden,) = numbers([total], "its hidden size")
    sizes = [int(s) for s in n.attr("qkv_hidden_sizes") or [hidden // 3] * 3]
    parts = n.b.call("split", joined, outputs=3, sizes=sizes, dim=2)
    q, k, v = (split_heads(n, str(p), int(n.attr("num_heads"))) for p in parts)
    past: DimLike = 0
    if n.opt(at.past) is not None:
        past = n.spec(at.past).shape[3]
        caches = n.b.call("split", n.input(at.past), outputs=2, sizes=[1, 1], dim=0)
        k, v = (
            append_to_cache(n, str(n.b.squeeze(c, dims=[0])), new)
            for c, new in zip(caches, (k, v), strict=True)
        )
    bias = n.opt(at.bias) if at.bias else None
    mask = sum_masks(n, padding_mask(n, at.mask, batch, past + length), bias)
    y = attend(n, (q, k, v), mask, causal=bool(n.attr("unidirectional", 0)), offset=past)
    if not n.has_readers(1):
        return [y, None]
    return [y, str(n.b.cat(*(n.b.unsqueeze(c, dims=[0]) for c in (k, v)), dim=0))]


def _attention(n: OnnxLoweringContext) -> Results:
    if n.spec().rank != 3 or n.spec(1).rank != 2:
        raise NotLowered(f"an operand {n.spec()} with weights {n.spec(1)} is not supported")
    joined = n.b.matmul(n.x, n.input(1))
    if n.opt(2) is not None:
        joined = n.b.add(joined, n.vector(2, n.spec(1).shape[1], "bias"))
    return _projection(n, str(joined), _Projected(mask=3, past=4, bias=5))


def _quantized_attention(n: OnnxLoweringContext) -> Results:
    """Lower QAttention: the projection of integers, then attention in floats."""
    x = dequantized(n, n.x, n.input(3), n.opt(6))
    weight = dequantized(n, n.input(1), n.input(4), n.opt(7), axis=1)
    joined = n.b.add(n.b.matmul(x, weight), n.vector(2, n.spec(1).shape[-1], "bias"))
    inner = n.with_inputs(str(joined), *n.inputs[1:])
    return _projection(inner, str(joined), _Projected(mask=5, past=8, bias=0))


# ── MultiHeadAttention ──


def _multi_head(n: OnnxLoweringContext) -> Results:
    """Lower MultiHeadAttention: separate or packed queries, keys and values, of the text itself or of another one."""
    if n.opt(8) is not None or n.opt(9) is not None or n.has_readers(3):
        raise NotLowered("caches in a shared buffer, beams and scores as outputs are not supported")
    q, k, v = _multi_head_operands(n)
    past: DimLike = 0
    if n.opt(6) is not None:
        past = n.spec(6).shape[2]
        k, v = append_to_cache(n, n.input(6), k), append_to_cache(n, n.input(7), v)
    causal = bool(n.attr("unidirectional", 0))
    batch, _, length, _ = n.spec_of(q).shape
    keys = n.spec_of(k).shape[2]
    if causal and keys != past + length:
        # ONNX Runtime masks all queries but the last one.
        raise NotLowered("unidirectional attention needs as many keys as queries")
    mask = sum_masks(n, padding_mask(n, 4, batch, keys, negative=True), n.opt(5))
    return [attend(n, (q, k, v), mask, causal=causal, offset=past), k, v, None]


def _multi_head_operands(n: OnnxLoweringContext) -> tuple[str, str, str]:
    """Return queries, keys and values, [batch, heads, length, size]; the bias has one part for each of them."""
    heads, rank = int(n.attr("num_heads")), n.spec().rank
    if rank == 5:
        if n.opt(3) is not None:
            raise NotLowered("a bias of packed queries, keys and values is not supported")
        q, k, v = unpack_heads(n, n.x, 3)
        return q, k, v
    if n.opt(1) is None:
        raise NotLowered("queries without keys are not supported")
    if n.spec(1).rank == 5:
        if n.opt(3) is not None:
            raise NotLowered("a bias of packed keys and values is not supported")
        k, v = unpack_heads(n, n.input(1), 2)
        return split_heads(n, n.x, heads), k, v
    values = [n.x, n.input(1), n.input(2)]
    split = [n.spec(i).rank == 3 for i in range(3)]  # keys and values of another text may have heads already
    if n.opt(3) is not None:
        sizes = [s.shape[2] if s.rank == 3 else s.shape[1] * s.shape[3] for s in map(n.spec, range(3))]
        biases = n.b.call("split", n.input(3), outputs=3, sizes=sizes, dim=0)
        values = [
            str(n.b.add(v, b)) if plain else v for v, b, plain in zip(values, biases, split, strict=True)
        ]
    q, k, v = (split_heads(n, x, heads) if plain else x for x, plain in zip(values, split, strict=True))
    return q, k, v


# ── rotary embedding ──


def _rotary(n: OnnxLoweringContext) -> Results:
    """Lower RotaryEmbedding of com.microsoft: positions before the tables, a row for each example or one start for all."""
    if n.attr("scale", 1.0) != 1.0:
        raise NotLowered("scaled RotaryEmbedding is not supported")
    if n.spec(2).rank != 2 or not may_equal(n.spec(2).shape, n.spec(3).shape):
        raise NotLowered(f"tables {n.spec(2)} and {n.spec(3)} are not supported")
    n = n.with_operand(3, n.sized(n.input(3), n.spec(2).shape))
    spec, size, x = n.spec(), 2 * numbers(n.spec(2).shape[1:], "its size")[0], n.x
    if n.attr("rotary_embedding_dim", 0) not in (0, size):
        raise NotLowered(
            f"its rotary_embedding_dim is {n.attr('rotary_embedding_dim')}, and its tables rotate {size}"
        )
    if spec.rank == 3:
        (hidden,) = numbers(spec.shape[2:], "its hidden size")
        heads = int(n.attr("num_heads", 0)) or hidden // size
        if heads < 1 or hidden % heads or (not n.attr("rotary_embedding_dim", 0) and heads * size != hidden):
            raise NotLowered(f"{heads} heads of {size} elements do not make up {hidden}")
        x = split_heads(n, n.x, heads)
    elif not n.attr("rotary_embedding_dim", 0):
        if not may_equal(spec.shape[-1:], (size,)):
            raise NotLowered(f"its heads have {spec.shape[-1]} elements, and its tables rotate {size}")
        x = n.sized(x, (*spec.shape[:-1], size))
    positions = n.input(1)
    if n.spec(1).rank > 2:
        raise NotLowered(f"positions {n.spec(1)} are not supported")
    if n.spec(1).rank < 2:
        batch, length = spec.shape[0], spec.shape[1 if spec.rank == 3 else 2]
        steps = n.b.arange(start=0, end=length, step=1, dtype=n.spec(1).dtype)
        rows = n.b.add(n.b.unsqueeze(steps, dims=[0]), n.b.view(positions, size=[1, 1]))
        positions = str(n.b.expand(rows, size=[batch, length]))
    positions = checked(n, positions, n.spec(2).shape[0])
    y = n.b.rope(x, n.input(2), n.input(3), positions, interleaved=bool(n.attr("interleaved", 0)), size=size)
    return join_heads(n, str(y)) if spec.rank == 3 else str(y)


LOWERINGS: dict[str, OpLowering] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "QAttention": _quantized_attention,
    "RotaryEmbedding": _rotary,
}
