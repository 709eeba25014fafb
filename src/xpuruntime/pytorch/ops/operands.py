"""Checks of operands that all training ops share."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import InputError

__all__ = ["equal_shapes", "float_operands"]


def float_operands(op: str, first: torch.Tensor, *others: torch.Tensor | None) -> list[Any]:
    """Return the operands after checking that they are floating-point tensors of one dtype on one device.

    Under ``torch.autocast``, parameters of another float dtype are converted to the first operand's. Raises InputError.
    """
    who = f"pytorch.ops.{op}"
    if not isinstance(first, torch.Tensor) or not first.is_floating_point():
        raise InputError(who, "needs a floating-point tensor", got=_shown(first), do="Convert it first.")
    checked: list[torch.Tensor | None] = [first]
    for other in others:
        if other is None:
            checked.append(None)
            continue
        if not isinstance(other, torch.Tensor) or not other.is_floating_point():
            raise InputError(who, "needs floating-point tensors", got=_shown(other), do="Convert it first.")
        if other.device != first.device:
            got = f"{first.device} and {other.device}"
            raise InputError(who, "needs its operands on one device", got=got, do="Move them to one first.")
        if other.dtype is not first.dtype:
            if not torch.is_autocast_enabled(first.device.type):
                got = f"{first.dtype} and {other.dtype}"
                raise InputError(
                    who, "needs operands of one dtype", got=got, do="Convert them, or use autocast."
                )
            other = other.to(first.dtype)
        checked.append(other)
    return checked


def _shown(value: Any) -> str:
    return f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__


def equal_shapes(op: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise InputError unless two operands have one shape."""
    if a.shape != b.shape:
        got = f"{list(a.shape)} and {list(b.shape)}"
        raise InputError(
            f"pytorch.ops.{op}", "needs operands of one shape", got=got, do="Expand one of them."
        )
