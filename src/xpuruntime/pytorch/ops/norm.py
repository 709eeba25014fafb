"""layer_norm and rms_norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from torch import Tensor

from ...errors import InputError
from ..formulas.norm import LAYER_NORM, LAYER_NORM_BACKWARD, RMS_NORM, RMS_NORM_BACKWARD
from ..numbered_policies import policy_number
from .library import TrainingOp, call, register
from .operands import float_operands, real_number, several_numbers

__all__ = ["layer_norm", "rms_norm"]


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int] | int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return the layer norm of x over its last dims, as ``torch.nn.functional.layer_norm``. x, weight, bias: one float dtype."""
    x, weight, bias = float_operands("layer_norm", x, weight, bias, optional=2)
    dims = _dims("layer_norm", x, normalized_shape, weight, bias)
    eps = real_number("layer_norm", "eps", eps)
    return call("layer_norm", x, weight, bias, dims, eps, policy_number())[0]


def rms_norm(
    x: Tensor, normalized_shape: Sequence[int] | int, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Return the RMS norm of x over its last dims, as ``torch.nn.functional.rms_norm``. eps: by default that of the dtype that it computes in, float32 for 16 bits."""
    x, weight = float_operands("rms_norm", x, weight, optional=1)
    dims = _dims("rms_norm", x, normalized_shape, weight)
    if eps is None:
        eps = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
    eps = real_number("rms_norm", "eps", eps)
    return call("rms_norm", x, weight, dims, eps, policy_number())[0]


def _dims(op: str, x: Tensor, normalized_shape: Sequence[int] | int, *parameters: Tensor | None) -> int:
    shape = several_numbers(op, "normalized_shape", normalized_shape)
    if not shape or tuple(x.shape[x.dim() - len(shape) :]) != shape:
        raise InputError(
            f"pytorch.ops.{op}",
            "normalized_shape must be the last dims of x",
            got=f"{list(shape)} of {list(x.shape)}",
            do="Give x.shape[-n:].",
        )
    for parameter in parameters:
        if parameter is not None and tuple(parameter.shape) != shape:
            raise InputError(
                f"pytorch.ops.{op}",
                "weight and bias must have normalized_shape",
                got=f"{list(parameter.shape)} and {list(shape)}",
                do="Check the shapes.",
            )
    return len(shape)


def _shapes(x: Tensor, *_: Any) -> list[Sequence[int]]:
    return [x.shape]


def _gradient_shapes(
    grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> list[Sequence[int]]:
    return [x.shape, _last(x, dims), _last(x, dims)]


def _rms_gradient_shapes(
    grad: Tensor, x: Tensor, weight: Tensor | None, dims: int, eps: float
) -> list[Sequence[int]]:
    return [x.shape, _last(x, dims)]


def _last(x: Tensor, dims: int) -> tuple[int, ...]:
    return tuple(x.shape[x.dim() - dims :])


def _wide(*tensors: Tensor | None) -> list[Tensor | None]:
    return [t.float() if t is not None and t.dtype in (torch.float16, torch.bfloat16) else t for t in tensors]


def _layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float) -> list[Tensor]:
    return [F.layer_norm(x, _last(x, dims), weight, bias, eps)]


def _rms_norm(x: Tensor, weight: Tensor | None, dims: int, eps: float) -> list[Tensor]:
    return [F.rms_norm(x, _last(x, dims), weight, eps)]


def _sums(value: Tensor, dims: int, like: Tensor | None) -> Tensor:
    total = value.sum(dim=tuple(range(value.dim() - dims))) if value.dim() > dims else value
    return total if like is None else total.to(like.dtype)


def _layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, dims: int, eps: float
) -> list[Tensor]:
    wide_grad, wide_x, wide_weight = _wide(grad, x, weight)
    assert wide_grad is not None
    assert wide_x is not None
    last = tuple(range(-dims, 0))
    centered = wide_x - wide_x.mean(last, keepdim=True)
    rstd = (centered.square().mean(last, keepdim=True) + eps).rsqrt()
    xhat = centered * rstd
    h = wide_grad if wide_weight is None else wide_grad * wide_weight
    dx = rstd * (h - h.mean(last, keepdim=True) - xhat * (h * xhat).mean(last, keepdim=True))
    return [dx.to(x.dtype), _sums(wide_grad * xhat, dims, weight), _sums(wide_grad, dims, bias)]


def _rms_norm_backward(grad: Tensor, x: Tensor, weight: Tensor | None, dims: int, eps: float) -> list[Tensor]:
    wide_grad, wide_x, wide_weight = _wide(grad, x, weight)
    assert wide_grad is not None
    assert wide_x is not None
    last = tuple(range(-dims, 0))
    rstd = (wide_x.square().mean(last, keepdim=True) + eps).rsqrt()
    xhat = wide_x * rstd
    h = wide_grad if wide_weight is None else wide_grad * wide_weight
    dx = rstd * (h - xhat * (h * xhat).mean(last, keepdim=True))
    return [dx.to(x.dtype), _sums(wide_grad * xhat, dims, weight)]


_ATTRIBUTES = {"dims": "int", "eps": "float"}

register(
    TrainingOp(
        name="layer_norm",
        family="norm",
        forward=LAYER_NORM,
        backward=LAYER_NORM_BACKWARD,
        attributes=_ATTRIBUTES,
        eager=_layer_norm,
        eager_backward=_layer_norm_backward,
        shapes=_shapes,
        gradients=("x", "weight", "bias"),
        gradient_shapes=_gradient_shapes,
        saved=("x", "weight", "bias"),
    )
)
register(
    TrainingOp(
        name="rms_norm",
        family="norm",
        forward=RMS_NORM,
        backward=RMS_NORM_BACKWARD,
        attributes=_ATTRIBUTES,
        eager=_rms_norm,
        eager_backward=_rms_norm_backward,
        shapes=_shapes,
        gradients=("x", "weight"),
        gradient_shapes=_rms_gradient_shapes,
        saved=("x", "weight"),
    )
)
