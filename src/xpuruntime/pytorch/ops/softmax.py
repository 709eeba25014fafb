"""Softmax and its gradient, for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ..formulas.softmax import SOFTMAX, SOFTMAX_BACKWARD
from ..numbered_policies import policy_number
from .library import TrainingOp, call, register
from .operands import float_operands

__all__ = ["softmax"]


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Return the softmax of x along a dim, as ``torch.nn.functional.softmax``."""
    (x,) = float_operands("softmax", x)
    rank = max(x.dim(), 1)
    if isinstance(dim, bool) or not isinstance(dim, int) or not -rank <= dim < rank:
        do = f"Give {-rank} to {rank - 1}."
        raise InputError("pytorch.ops.softmax", "has no such dim", got=repr(dim), do=do)
    return call("softmax", x, dim % max(x.dim(), 1) - x.dim(), policy_number())[0]


def _softmax(x: Tensor, dim: int) -> list[Tensor]:
    return [torch.softmax(x, dim)]


def _softmax_backward(grad: Tensor, y: Tensor, dim: int) -> list[Tensor]:
    wide = torch.promote_types(y.dtype, torch.float32)
    grad, wide_y = grad.to(wide), y.to(wide)
    return [(wide_y * (grad - (grad * wide_y).sum(dim, keepdim=True))).to(y.dtype)]


def _shapes(x: Tensor, *_: Any) -> list[Sequence[int]]:
    return [x.shape]


register(
    TrainingOp(
        name="softmax",
        family="softmax",
        forward=SOFTMAX,
        backward=SOFTMAX_BACKWARD,
        attributes={"dim": "int"},
        eager=_softmax,
        eager_backward=_softmax_backward,
        shapes=_shapes,
        gradients=("x",),
        gradient_shapes=_shapes,
        saved=("result0",),
        rows=True,
    )
)
