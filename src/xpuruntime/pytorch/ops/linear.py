"""linear, with bias and activation, and matmul."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from torch import Tensor

from ...errors import InputError
from ..formulas.linear import LINEAR, LINEAR_BACKWARD, MATMUL, MATMUL_BACKWARD
from ..numbered_policies import policy_number
from .activations import checked_activation, eager_activation, eager_derivative
from .library import TrainingOp, call, register
from .operands import float_operands

__all__ = ["linear", "matmul"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """Return act(x weight^T + bias). activation: ``none``, ``relu``, ``gelu``, ``gelu_tanh`` or ``silu``.

    x [..., inputs], weight [outputs, inputs], bias [outputs], as of ``torch.nn.functional.linear``.
    """
    word = checked_activation("linear", activation)
    x, weight, bias = float_operands("linear", x, weight, bias, optional=1)
    if x.dim() < 1 or weight.dim() != 2 or x.shape[-1] != weight.shape[1]:
        raise _mismatch("linear", "x [..., inputs] and weight [outputs, inputs]", x, weight)
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise _mismatch("linear", "bias [outputs] of weight [outputs, inputs]", bias, weight)
    if x.dim() == 1:
        return linear(x[None], weight, bias, word)[0]
    return call("linear", x, weight, bias, word, policy_number())[0]


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product, as ``torch.matmul``: batches broadcast, vectors are rows and columns."""
    a, b = float_operands("matmul", a, b)
    if not a.dim() or not b.dim() or a.shape[-1] != b.shape[-2 if b.dim() > 1 else 0]:
        raise _mismatch("matmul", "a [..., m, k] and b [..., k, n]", a, b)
    rows, columns = a.dim() == 1, b.dim() == 1
    y = call("matmul", a[None] if rows else a, b[:, None] if columns else b, policy_number())[0]
    y = y.squeeze(-2) if rows else y
    return y.squeeze(-1) if columns else y


def _mismatch(op: str, want: str, a: Tensor, b: Tensor) -> InputError:
    got = f"{list(a.shape)} and {list(b.shape)}"
    return InputError(f"pytorch.ops.{op}", f"needs {want}", got=got, do="Check the shapes.")


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, word: str) -> list[Tensor]:
    z = F.linear(x, weight, bias)
    return [z] if word == "none" else [eager_activation(word, z), z]


def _linear_backward(grad: Tensor, x: Tensor, weight: Tensor, z: Tensor | None, word: str) -> list[Tensor]:
    dz = grad
    if word != "none":
        assert z is not None
        wide = torch.promote_types(z.dtype, torch.float32)
        dz = (grad.to(wide) * eager_derivative(word, z.to(wide))).to(grad.dtype)
    rows = dz.flatten(0, -2)
    return [dz @ weight, rows.t() @ x.flatten(0, -2), rows.sum(0)]


def _linear_shapes(x: Tensor, weight: Tensor, bias: Tensor | None, word: str) -> list[Sequence[int]]:
    shape = (*x.shape[:-1], weight.shape[0])
    return [shape] if word == "none" else [shape, shape]


def _linear_gradient_shapes(grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> list[Sequence[int]]:
    return [x.shape, weight.shape, (weight.shape[0],)]


def _matmul(a: Tensor, b: Tensor) -> list[Tensor]:
    return [torch.matmul(a, b)]


def _matmul_backward(grad: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    return [(grad @ b.mT).sum_to_size(a.shape), (a.mT @ grad).sum_to_size(b.shape)]


def _matmul_gradient_shapes(grad: Tensor, a: Tensor, b: Tensor) -> list[Sequence[int]]:
    return [a.shape, b.shape]


def _matmul_shapes(a: Tensor, b: Tensor, *_: Any) -> list[Sequence[int]]:
    return [(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])]


register(
    TrainingOp(
        name="linear",
        family="matmul",
        forward=LINEAR,
        backward=LINEAR_BACKWARD,
        attributes={"activation": "str"},
        eager=_linear,
        eager_backward=_linear_backward,
        shapes=_linear_shapes,
        gradients=("x", "weight", "bias"),
        gradient_shapes=_linear_gradient_shapes,
        saved=("x", "weight", "result1"),
        second_gradient={"activation": "none"},  # of the sum before the activation
    )
)
register(
    TrainingOp(
        name="matmul",
        family="matmul",
        forward=MATMUL,
        backward=MATMUL_BACKWARD,
        attributes={},
        eager=_matmul,
        eager_backward=_matmul_backward,
        shapes=_matmul_shapes,
        gradients=("a", "b"),
        gradient_shapes=_matmul_gradient_shapes,
        saved=("a", "b"),
        rows=True,
    )
)
