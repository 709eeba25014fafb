"""Layers of random graphs, written in the forms that exporters use, with their weights. For tests of passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from xpuruntime.ir import GraphBuilder
from xpuruntime.types import DType, TensorSpec

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn
from .graph_draws import choose, pick

__all__ = ["LAYERS", "draw_order"]


def _new_weight(b: GraphBuilder, *shape: int) -> str:
    return b.weight(b.fresh("weight"), TensorSpec(shape, DType.FLOAT32))


def _activate(draw: DrawFn, b: GraphBuilder, x: str) -> str:
    """Add an activation, as one op or decomposed, or none."""
    match choose(
        draw, ("none", "relu", "silu", "gelu", "clamp", "written silu", "written gelu", "hardswish")
    ):
        case "none":
            return x
        case "clamp":
            return str(b.clamp(x, 0.0, 6.0))
        case "written silu":
            return str(b.mul(x, b.sigmoid(x)))
        case "written gelu":
            return str(b.mul(b.mul(x, 0.5), b.add(b.erf(b.div(x, 2.0**0.5)), 1.0)))
        case name:
            return str(b.call(name, x))


def _static_float(spec: TensorSpec, rank: int) -> bool:
    return spec.dtype is DType.FLOAT32 and spec.rank == rank and spec.is_static and 0 not in spec.shape


def _residual(draw: DrawFn, b: GraphBuilder, x: str) -> str:
    """Add another value of the same type, or nothing."""
    candidates = [n for n, v in b.values.items() if v.spec == b.spec(x) and n != x]
    return (
        str(b.add(*draw_order(draw, x, choose(draw, candidates))))
        if candidates and choose(draw, (True, False))
        else x
    )


def draw_order(draw: DrawFn, *values: str) -> tuple[str, ...]:
    """Return the values in a random order."""
    from hypothesis import strategies as st

    return tuple(draw(st.permutations(values)))


def _convolution_layer(draw: DrawFn, b: GraphBuilder) -> None:
    """Add a convolution, optionally with batch norm, residual and activation."""
    x = pick(draw, b, lambda s: _static_float(s, 4))
    channels = int(b.spec(x).shape[1])  # type: ignore[arg-type]
    out = int(choose(draw, (channels, 1, 3)))
    kernel = int(choose(draw, (1, 1, 3)))
    y = b.convolution(
        x, _new_weight(b, out, channels, kernel, kernel), *([_new_weight(b, out)] if choose(draw, (True, False)) else []),
        stride=[1, 1], padding=[kernel // 2] * 2, dilation=[1, 1],
    )  # fmt: skip
    if choose(draw, (True, False)):
        scale, shift, mean, deviation = (_new_weight(b, out) for _ in range(4))
        y = b.batch_norm(y, scale, shift, mean, b.mul(deviation, deviation), eps=choose(draw, (1e-5, 0.5)))
    _activate(draw, b, _residual(draw, b, y))


def _linear_layer(draw: DrawFn, b: GraphBuilder) -> None:
    """Add a matrix product with a weight in one of its forms, optionally with bias, residual and activation."""
    x = pick(draw, b, lambda s: _static_float(s, 2) or _static_float(s, 3))
    size = int(b.spec(x).shape[-1])  # type: ignore[arg-type]
    out = int(choose(draw, (size, 3)))
    match choose(draw, ("linear", "matmul", "permuted")):
        case "linear":
            y = b.linear(x, _new_weight(b, out, size))
        case "matmul":
            y = b.matmul(x, _new_weight(b, size, out))
        case _:
            y = b.matmul(x, b.permute(_new_weight(b, out, size), dims=[1, 0]))
    if choose(draw, (True, False)):
        y = b.add(*draw_order(draw, y, _new_weight(b, out)))
    _activate(draw, b, _residual(draw, b, y))


def _written_norm(draw: DrawFn, b: GraphBuilder) -> None:
    """Add a decomposed rms_norm or layer_norm."""
    x = pick(draw, b, lambda s: _static_float(s, 2) or _static_float(s, 3))
    last = b.spec(x).rank - 1
    centered = b.sub(x, b.mean(x, dim=last, keepdim=True)) if choose(draw, (True, False)) else x
    square = choose(draw, (lambda: b.mul(centered, centered), lambda: b.pow(centered, 2.0)))()
    spread = b.add(b.mean(square, dim=last, keepdim=True), 0.1)
    y = b.mul(centered, b.rsqrt(spread)) if choose(draw, (True, False)) else b.div(centered, b.sqrt(spread))
    b.mul(*draw_order(draw, y, _new_weight(b, int(b.spec(x).shape[-1]))))  # type: ignore[arg-type]


def _written_attention(draw: DrawFn, b: GraphBuilder) -> None:
    """Add softmax(q @ k.T * scale + mask) @ v over heads that a view creates, with or without repeated keys and values."""
    x = pick(draw, b, lambda s: _static_float(s, 3))
    batch, length, size = (int(d) for d in b.spec(x).shape)  # type: ignore[arg-type]
    heads, head_size = int(choose(draw, (2, 4))), int(choose(draw, (1, 4)))
    groups = int(choose(draw, (heads, heads, 1)))

    def projected(count: int) -> str:
        y = b.view(
            b.linear(x, _new_weight(b, count * head_size, size)), size=[batch, length, count, head_size]
        )
        return str(b.permute(y, dims=[0, 2, 1, 3]))

    def repeated(y: str) -> str:
        if groups == heads:
            return y
        y = b.expand(b.unsqueeze(y, dims=[2]), size=[batch, groups, heads // groups, length, head_size])
        return str(b.view(y, size=[batch, heads, length, head_size]))

    q, k, v = projected(heads), repeated(projected(groups)), repeated(projected(groups))
    scores = b.matmul(q, b.permute(k, dims=[0, 1, 3, 2]))
    scores = choose(draw, (lambda: b.div(scores, 3.0), lambda: b.mul(scores, 0.7), lambda: scores))()
    mask = choose(draw, ("none", "added", "bool"))
    if mask == "added":
        scores = b.add(scores, _new_weight(b, length, length))
    elif mask == "bool":
        causal_mask = b.constant(np.tril(np.ones((length, length), bool)))
        scores = b.where(causal_mask, scores, choose(draw, (float("-inf"), -3.4028234663852886e38)))
    y = b.permute(b.matmul(b.softmax(scores, dim=-1), v), dims=[0, 2, 1, 3])
    b.view(y, size=[batch, length, heads * head_size])


LAYERS: dict[str, Callable[[DrawFn, GraphBuilder], None]] = {
    "convolution_layer": _convolution_layer,
    "linear_layer": _linear_layer,
    "written_norm": _written_norm,
    "written_attention": _written_attention,
}
"""Layers by name."""
