"""batch_norm, by the batch's statistics in training and by given ones otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ..formulas.batch_norm import (
    BATCH_NORM,
    BATCH_NORM_BACKWARD,
    BATCH_NORM_INFERENCE,
    BATCH_NORM_INFERENCE_BACKWARD,
)
from ..numbered_policies import policy_number
from .library import TrainingOp, call, register
from .operands import flag, float_operands, real_number

__all__ = ["batch_norm"]


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Return the batch norm of x [batch, channels, ...], as ``torch.nn.functional.batch_norm``.

    training: use the batch's statistics, and update running_mean and running_var in place, if they are given; otherwise use those.
    weight, bias and the statistics [channels] have the dtype of x, or float32 for x of 16 bits.
    """
    (x,) = float_operands("batch_norm", x)
    flag("batch_norm", "training", training)
    momentum, eps = (real_number("batch_norm", n, v) for n, v in (("momentum", momentum), ("eps", eps)))
    if x.dim() < 2:
        raise InputError(_WHO, "needs x [batch, channels, ...]", got=list(x.shape), do="Check the shapes.")
    parameters = [weight, bias, running_mean, running_var]
    _check(x, parameters)
    if (running_mean is None) != (running_var is None) or (running_mean is None and not training):
        what = "needs running_mean and running_var, or neither of them in training"
        raise InputError(_WHO, what, got="None", do="Give both.")
    wide = _float32_at_least(x.dtype)  # of all of them, so that they have one dtype
    weight, bias, mean, var = (None if p is None else p.to(wide) for p in parameters)
    if not training:
        return call("batch_norm_inference", x, weight, bias, mean, var, eps, policy_number())[0]
    if x.numel() == x.shape[1] and not isinstance(x.numel(), torch.SymInt):
        got, do = list(x.shape), "Give more samples, or call the module's eval()."
        raise InputError(_WHO, "needs more than one value per channel in training", got=got, do=do)
    results = call("batch_norm", x, weight, bias, mean, var, momentum, eps, policy_number())
    with torch.no_grad():
        for old, new in zip((running_mean, running_var), results[1:], strict=False):
            assert old is not None
            old.copy_(new.detach())
    return results[0]


_WHO = "pytorch.ops.batch_norm"


def _check(x: Tensor, parameters: Sequence[Tensor | None]) -> None:
    for p in parameters:
        if p is None:
            continue
        float_operands("batch_norm", p)
        if tuple(p.shape) != (x.shape[1],):
            got = f"{list(p.shape)} for x {list(x.shape)}"
            raise InputError(_WHO, "needs a value per channel", got=got, do="Check the shapes.")
        if p.device != x.device:
            got = f"{x.device} and {p.device}"
            raise InputError(_WHO, "needs its operands on one device", got=got, do="Move them to one first.")
        if p.dtype is not x.dtype and p.dtype is not _float32_at_least(x.dtype):
            got, do = f"{x.dtype} and {p.dtype}", "Convert them first."
            raise InputError(_WHO, "needs parameters of x's dtype, or float32 for 16 bits", got=got, do=do)


def _float32_at_least(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _dims(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def _along(value: Tensor, x: Tensor) -> Tensor:
    return value.view(1, -1, *[1] * (x.dim() - 2))


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return centered values and mean and variance by channel, in float32 at least."""
    wide = x.to(_float32_at_least(x.dtype))
    mean = wide.mean(_dims(x), keepdim=True)
    centered = wide - mean
    return centered, mean, centered.square().mean(_dims(x), keepdim=True)


def _affine(xhat: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = xhat if weight is None else xhat * _along(weight, xhat)
    return y if bias is None else y + _along(bias, xhat)


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> list[Tensor]:
    centered, mean, var = _statistics(x)
    results = [_affine(centered * (var + eps).rsqrt(), weight, bias).to(x.dtype)]
    if running_mean is None or running_var is None:
        return results
    count = x.numel() / max(x.shape[1], 1)
    for old, new in ((running_mean, mean), (running_var, var * (count / max(count - 1, 1)))):
        results.append(old * (1 - momentum) + new.flatten() * momentum)
    return results


def _backward(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> list[Tensor]:
    centered, _, var = _statistics(x)
    rstd = (var + eps).rsqrt()
    wide, xhat, dims = grad.to(centered.dtype), centered * rstd, _dims(x)
    product = wide * xhat
    dx = (wide - wide.mean(dims, keepdim=True) - xhat * product.mean(dims, keepdim=True)) * rstd
    return [_affine(dx, weight, None).to(x.dtype), *_parameter_gradients(product, wide, weight)]


def _parameter_gradients(product: Tensor, grad: Tensor, weight: Tensor | None) -> list[Tensor]:
    dtype = grad.dtype if weight is None else weight.dtype
    return [v.sum(_dims(v)).to(dtype) for v in (product, grad)]


def _inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> list[Tensor]:
    xhat = (x.to(mean.dtype) - _along(mean, x)) * (_along(var, x) + eps).rsqrt()
    return [_affine(xhat, weight, bias).to(x.dtype)]


def _inference_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> list[Tensor]:
    rstd = (_along(var, x) + eps).rsqrt()
    wide = grad.to(mean.dtype)
    product = wide * ((x.to(mean.dtype) - _along(mean, x)) * rstd)
    dx = _affine(wide * rstd, weight, None).to(x.dtype)
    return [dx, *_parameter_gradients(product, wide, weight)]


def _shapes(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    running_mean: Tensor | None = None,
    *_: Any,
) -> list[Sequence[int]]:
    return [x.shape, *([] if running_mean is None else [(x.shape[1],)] * 2)]


def _dtypes(x: Tensor, *_: Any) -> list[torch.dtype]:
    return [x.dtype, *[_float32_at_least(x.dtype)] * 2]


def _gradient_shapes(grad: Tensor, x: Tensor, *_: Any) -> list[Sequence[int]]:
    return [x.shape, (x.shape[1],), (x.shape[1],)]


register(
    TrainingOp(
        name="batch_norm",
        family="norm",
        forward=BATCH_NORM,
        backward=BATCH_NORM_BACKWARD,
        attributes={"momentum": "float", "eps": "float"},
        eager=_batch_norm,
        eager_backward=_backward,
        shapes=_shapes,
        dtypes=_dtypes,
        gradients=("x", "weight", "bias"),
        gradient_shapes=_gradient_shapes,
        gradient_dtypes=_dtypes,
        saved=("x", "weight"),
        backward_attributes={"eps": "float"},
        backward_values=lambda *args: (args[-1],),
        one_gradient=True,
    )
)
register(
    TrainingOp(
        name="batch_norm_inference",
        family="norm",
        forward=BATCH_NORM_INFERENCE,
        backward=BATCH_NORM_INFERENCE_BACKWARD,
        attributes={"eps": "float"},
        eager=_inference,
        eager_backward=_inference_backward,
        shapes=lambda x, *_: [x.shape],
        gradients=("x", "weight", "bias"),
        gradient_shapes=_gradient_shapes,
        gradient_dtypes=_dtypes,
        saved=("x", "weight", "mean", "var"),
    )
)
