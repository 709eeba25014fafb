"""Normalizations. Results have the operand's dtype; statistics, too, unless an attribute asks for float32."""

from __future__ import annotations

from collections.abc import Sequence

from ...types import HALF_FLOATS, DimLike, DType, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import broadcast, like, same, text

__all__ = ["ROWS"]


def _float(x: TensorSpec) -> TensorSpec:
    if not (x.dtype.is_float or x.dtype.is_complex):
        raise Mismatch("needs floats", x.dtype.value)
    return x


def _trailing(c: OpCall, x: TensorSpec, positions: Sequence[int]) -> tuple[DimLike, ...]:
    """Return the dims before the normalized ones, after checking normalized_shape, weight and bias."""
    shape = c["normalized_shape"]
    n = len(shape)
    if not n or n > x.rank:
        raise Mismatch("normalized_shape must be the last dims of x", f"{text(shape)} of {x}")
    for a, b in zip(x.shape[-n:], shape, strict=True):
        same(a, b, "normalized_shape and x's last dims")
    for position in positions:
        scale = c.optional(position)
        if scale is not None and broadcast(scale.shape, tuple(shape)) != tuple(shape):
            raise Mismatch("weight and bias must broadcast to normalized_shape", f"{scale} to {text(shape)}")
    return (*x.shape[:-n], *(1,) * n)


def _layer_norm(c: OpCall) -> list[TensorSpec]:
    x = _float(c.tensor())
    statistics = _statistics(c, x, _trailing(c, x, (1, 2)))
    return [like(x), statistics, statistics]


def _rms_norm(c: OpCall) -> list[TensorSpec]:
    x = _float(c.tensor())
    return [like(x), _statistics(c, x, _trailing(c, x, (1,)))]


def _statistics(c: OpCall, x: TensorSpec, shape: tuple[DimLike, ...]) -> TensorSpec:
    wide = c["wide_statistics"] and x.dtype in HALF_FLOATS
    return TensorSpec(shape, DType.FLOAT32 if wide else x.dtype)


def _channels(c: OpCall, x: TensorSpec, positions: Sequence[int]) -> None:
    if x.rank < 2:
        raise Mismatch("x must be [N, C, ...]", str(x))
    for position in positions:
        spec = c.optional(position)
        if spec is not None:
            if spec.rank != 1:
                raise Mismatch("a value per channel must have rank 1", str(spec))
            same(spec.shape[0], x.shape[1], "its dim and x's channels")


def _group_norm(c: OpCall) -> list[TensorSpec]:
    x, groups = _float(c.tensor()), c["groups"]
    _channels(c, x, (1, 2))
    if groups < 1 or (isinstance(x.shape[1], int) and x.shape[1] % groups):
        raise Mismatch("groups must divide the channels", f"{groups} for {x}")
    return [like(x), *[like(x, (x.shape[0], groups))] * 2]


def _instance_norm(c: OpCall) -> TensorSpec:
    x = _float(c.tensor())
    _channels(c, x, (1, 2))
    return like(x)


def _batch_norm(c: OpCall) -> TensorSpec:
    x = _float(c.tensor())
    _channels(c, x, (1, 2, 3, 4))
    return like(x)


def _batch_norm_train(c: OpCall) -> list[TensorSpec]:
    x = _float(c.tensor())
    _channels(c, x, (1, 2, 3, 4))
    running = [c.optional(3) or like(x, (x.shape[1],)), c.optional(4) or like(x, (x.shape[1],))]
    return [like(x), *[like(x, (x.shape[1],))] * 2, *(like(r) for r in running)]


def _lrn(c: OpCall) -> TensorSpec:
    x = _float(c.tensor())
    if x.rank < 2 or c["size"] < 1:
        raise Mismatch("x must be [N, C, ...] and size positive", f"{x}, {c['size']}")
    return like(x)


ROWS: tuple[OpEntry, ...] = (
    op(
        "layer_norm(x, weight?, bias?; normalized_shape: dims, eps: float = 1e-05, wide_statistics: bool = false) -> y, mean?, rstd?",
        "norm",
        _layer_norm,
        aten="native_layer_norm",
        onnx="LayerNormalization",
    ),
    op(
        "rms_norm(x, weight?; normalized_shape: dims, eps: float = 1e-06, wide_statistics: bool = false) -> y, rstd?",
        "norm",
        _rms_norm,
        aten="rms_norm _fused_rms_norm",
        onnx="RMSNormalization",
        meaning="x * rsqrt(mean(x*x) + eps) * weight",
    ),
    op(
        "group_norm(x, weight?, bias?; groups: int, eps: float = 1e-05) -> y, mean?, rstd?",
        "norm",
        _group_norm,
        aten="native_group_norm",
        onnx="GroupNormalization",
    ),
    op(
        "instance_norm(x, weight?, bias?; eps: float = 1e-05) -> y",
        "norm",
        _instance_norm,
        onnx="InstanceNormalization",
    ),
    op(
        "batch_norm(x, weight?, bias?, mean, var; eps: float = 1e-05) -> y",
        "norm",
        _batch_norm,
        aten="_native_batch_norm_legit_no_training",
        onnx="BatchNormalization",
        meaning="with the given statistics",
    ),
    op(
        "batch_norm_train(x, weight?, bias?, running_mean?, running_var?; momentum: float = 0.1, eps: float = 1e-05)"
        " -> y, mean?, rstd?, new_mean?, new_var?",
        "norm",
        _batch_norm_train,
        aten="_native_batch_norm_legit _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional",
        meaning="with the batch's statistics; new_* are the running statistics after the step (unbiased variance)",
    ),
    op(
        "local_response_norm(x; size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0) -> y",
        "norm",
        _lrn,
        onnx="LRN",
        meaning="ONNX's LRN: alpha is divided by size; the window covers (size-1)//2 channels before and size//2 after",
    ),
)
