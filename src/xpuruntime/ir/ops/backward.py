"""Gradient ops of core ATen. A gradient has the shape and dtype of its tensor."""

from __future__ import annotations

from ...types import TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import like
from .pool import WINDOW

__all__ = ["ROWS"]


def _of_second(c: OpCall) -> TensorSpec:
    return like(c.tensor(1))


def _convolution(c: OpCall) -> list[TensorSpec]:
    grad, x, weight = c.tensor(0), c.tensor(1), c.tensor(2)
    channels = weight.shape[1] * c["groups"] if c["transposed"] else weight.shape[0]
    return [like(x), like(weight), like(grad, (channels,))]


def _layer_norm(c: OpCall) -> list[TensorSpec]:
    x, shape = c.tensor(1), c["normalized_shape"]
    return [like(x), *(like(c.optional(at) or x, shape) for at in (4, 5))]


def _layer_norm_add(c: OpCall) -> list[TensorSpec]:
    x, residual = c.tensor(1), c.tensor(5)
    if residual != x:
        raise Mismatch("the residual must be as x", f"{residual} and {x}")
    return [
        *_layer_norm(c)[:1],
        *(like(c.tensor(4), c["normalized_shape"]) for _ in range(2)),
        TensorSpec(x.shape, c["narrow"]),
    ]


def _group_norm(c: OpCall) -> list[TensorSpec]:
    x = c.tensor(1)
    channels = like(x, (x.shape[1],))
    return [like(x), channels, channels]


def _embedding(c: OpCall) -> TensorSpec:
    grad = c.tensor(0)
    return like(grad, (c["num_weights"], grad.shape[-1]))


ROWS: tuple[OpEntry, ...] = (
    op(
        "convolution_backward(grad, x, weight; stride: ints, padding: ints, dilation: ints, groups: int = 1,"
        " transposed: bool = false, output_padding: ints = []) -> grad_x, grad_weight, grad_bias",
        "conv",
        _convolution,
        aten="convolution_backward",
    ),
    op(
        f"avg_pool_backward(grad, x; {WINDOW}, count_include_pad: bool = true, divisor: int? = none) -> grad_x",
        "pool",
        _of_second,
        aten="avg_pool2d_backward",
    ),
    op(
        f"max_pool_backward(grad, x, indices; {WINDOW}) -> grad_x",
        "pool",
        _of_second,
        aten="max_pool2d_with_indices_backward",
    ),
    op(
        "adaptive_avg_pool_backward(grad, x) -> grad_x",
        "pool",
        _of_second,
        aten="_adaptive_avg_pool2d_backward",
    ),
    op(
        "layer_norm_backward(grad, x, mean, rstd, weight?, bias?; normalized_shape: dims)"
        " -> grad_x, grad_weight?, grad_bias?",
        "norm",
        _layer_norm,
        aten="native_layer_norm_backward",
    ),
    op(
        "layer_norm_backward_add(grad, x, mean, rstd, weight, residual; normalized_shape: dims, narrow: dtype)"
        " -> grad_x, grad_weight, grad_bias, narrow_grad_x",
        "norm",
        _layer_norm_add,
        meaning="layer_norm_backward with residual added to grad_x, which is also converted",
    ),
    op(
        "group_norm_backward(grad, x, mean, rstd, weight?; groups: int) -> grad_x, grad_weight?, grad_bias?",
        "norm",
        _group_norm,
        aten="native_group_norm_backward",
    ),
    op(
        "embedding_backward(grad, indices; num_weights: dim, padding_idx: int = -1, scale_by_freq: bool = false) -> grad_weight",
        "embedding",
        _embedding,
        aten="embedding_dense_backward",
    ),
)
