"""The signature that a graph was captured for: a call's shapes and numbers, the gradients that exist, and the settings of optimizers."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.utils import _pytree

__all__ = ["call_signature", "flatten", "leaves_with_gradients", "optimizer_settings", "unflatten"]


def flatten(value: Any) -> tuple[list[Any], Any]:
    """Return the leaves of nested arguments or results, and their structure."""
    leaves, structure = _pytree.tree_flatten(value)
    return leaves, structure


def unflatten(leaves: Sequence[Any], structure: Any) -> Any:
    """Return nested values from leaves."""
    return _pytree.tree_unflatten(leaves, structure)


def call_signature(leaves: Sequence[Any], structure: Any) -> Hashable | None:
    """Return shapes, dtypes, devices and numbers of a call; None if an argument is neither a tensor nor hashable."""
    parts: list[Any] = [str(structure), torch.is_grad_enabled(), torch.is_autocast_enabled("cuda")]
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            parts.append((leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad))
        else:
            try:
                hash(leaf)
            except TypeError:
                return None
            parts.append((type(leaf), leaf))
    return tuple(parts)


def leaves_with_gradients(device: torch.device) -> list[torch.Tensor]:
    """Return every parameter on a device that has a gradient. It walks all objects of the process: call it once per capture."""
    return [
        o
        for o in gc.get_objects()
        if issubclass(type(o), torch.Tensor)  # isinstance would read __class__ of proxies
        and o.requires_grad
        and o.is_leaf
        and o.device == device
        and o.grad is not None
    ]


def optimizer_settings(optimizers: Sequence[torch.optim.Optimizer]) -> Hashable:
    """Return the numbers of the optimizers' groups, such as the learning rate: a graph holds them as constants."""
    return tuple(
        (id(o), key, value)
        for o in optimizers
        for group in o.param_groups
        for key, value in group.items()
        if isinstance(value, int | float | bool | str | tuple) and key != "params"
    )
