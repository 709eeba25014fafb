"""Transforms of tensors that are active: those of ``torch.func``, and forward-mode differentiation."""

from __future__ import annotations

import torch
from torch._C import _functorch

__all__ = ["active_transform", "is_vmap_alone"]


def active_transform() -> str:
    """Return the reason why a call stays with PyTorch's own operators, which have every transform; empty if no transform is active."""
    if _functorch.maybe_current_level() is not None:
        return "a transform of torch.func is active"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    return ""


def is_vmap_alone() -> bool:
    """Return True if the active transforms are ``torch.vmap`` only."""
    levels = _functorch.get_interpreter_stack() or ()
    return all(level.key() == _functorch.TransformType.Vmap for level in levels) and (
        torch.autograd.forward_ad._current_level < 0
    )
