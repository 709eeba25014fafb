"""Activations by word, on PyTorch's operators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation

from ...errors import InputError
from ..formulas.activations import ACTIVATIONS

__all__ = ["checked_activation", "eager_activation", "eager_derivative"]

_EAGER: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


def checked_activation(op: str, word: str, allowed: tuple[str, ...] = ("none", *ACTIVATIONS)) -> str:
    """Return the word of an activation. Raises InputError for an unknown one."""
    if word not in allowed:
        do = f"Use one of: {', '.join(allowed)}."
        raise InputError(f"pytorch.ops.{op}", "has no such activation", got=repr(word), do=do)
    return word


def eager_activation(word: str, z: torch.Tensor) -> torch.Tensor:
    """Return an activation of z."""
    return _EAGER[word](z)


def eager_derivative(word: str, z: torch.Tensor) -> torch.Tensor:
    """Return the derivative of an activation at z, differentiable again."""
    if word == "none":
        return torch.ones_like(z)
    if word == "relu":
        return (z > 0).to(z.dtype)
    if word == "silu":
        s = torch.sigmoid(z)
        return s * (1 + z * (1 - s))
    if word == "gelu":
        return 0.5 * (1 + torch.erf(z * 0.5**0.5)) + z * torch.exp(-0.5 * z * z) * (2 * torch.pi) ** -0.5
    slope = (2 / torch.pi) ** 0.5
    t = torch.tanh(slope * z * (1 + 0.044715 * z * z))
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * slope * (1 + 3 * 0.044715 * z * z)
