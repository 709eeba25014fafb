"""swiglu and geglu."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ..formulas.gated import GATED, GATED_BACKWARD
from ..numbered_policies import policy_number
from .activations import eager_activation, eager_derivative
from .library import TrainingOp, call, register
from .operands import equal_shapes, float_operands

__all__ = ["geglu", "swiglu"]


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up for tensors of one shape."""
    return _gated("swiglu", gate, up, "silu")


def geglu(gate: Tensor, up: Tensor, approximate: str = "none") -> Tensor:
    """Return gelu(gate) * up for tensors of one shape. approximate: ``none`` or ``tanh``, as of ``torch.nn.functional.gelu``."""
    if approximate not in ("none", "tanh"):
        do = "Use 'none' or 'tanh'."
        raise InputError("pytorch.ops.geglu", "has no such approximation", got=repr(approximate), do=do)
    return _gated("geglu", gate, up, "gelu_tanh" if approximate == "tanh" else "gelu")


def _gated(op: str, gate: Tensor, up: Tensor, word: str) -> Tensor:
    gate, up = float_operands(op, gate, up)
    equal_shapes(op, gate, up)
    return call("gated", gate, up, word, policy_number())[0]


def _eager(gate: Tensor, up: Tensor, word: str) -> list[Tensor]:
    return [eager_activation(word, gate) * up]


def _eager_backward(grad: Tensor, gate: Tensor, up: Tensor, word: str) -> list[Tensor]:
    wide = torch.promote_types(gate.dtype, torch.float32)
    grad, wide_gate, wide_up = grad.to(wide), gate.to(wide), up.to(wide)
    slope = eager_derivative(word, wide_gate)
    return [
        (grad * slope * wide_up).to(gate.dtype),
        (grad * eager_activation(word, wide_gate)).to(up.dtype),
    ]


def _shapes(gate: Tensor, *_: Any) -> list[Sequence[int]]:
    return [gate.shape]


def _gradient_shapes(grad: Tensor, *_: Any) -> list[Sequence[int]]:
    return [grad.shape, grad.shape]


register(
    TrainingOp(
        name="gated",
        family="activation",
        forward=GATED,
        backward=GATED_BACKWARD,
        attributes={"activation": "str"},
        eager=_eager,
        eager_backward=_eager_backward,
        shapes=_shapes,
        gradients=("gate", "up"),
        gradient_shapes=_gradient_shapes,
        saved=("gate", "up"),
        rows=True,
    )
)
