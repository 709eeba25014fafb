"""Checks of operands and arguments that all training ops share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...errors import InputError

__all__ = ["equal_shapes", "flag", "float_operands", "real_number", "several_numbers", "whole_number"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DEVICES = ("cpu", "cuda", "meta")


def float_operands(
    op: str, first: torch.Tensor, *others: torch.Tensor | None, optional: int = 0, wider: bool = False
) -> list[Any]:
    """Return the operands after checking that they are dense floating-point tensors of one dtype on one device.

    optional: the last so many may be None. wider: the others may have a wider dtype than the first, and keep it.
    Under ``torch.autocast``, parameters of another float dtype are converted to the first operand's. Raises InputError.
    """
    who = f"pytorch.ops.{op}"
    _checked_float(who, first)
    checked: list[torch.Tensor | None] = [first]
    for at, other in enumerate(others):
        if other is None and at >= len(others) - optional:
            checked.append(None)
            continue
        _checked_float(who, other)
        assert other is not None
        if other.device != first.device:
            got = f"{first.device} and {other.device}"
            raise InputError(who, "needs its operands on one device", got=got, do="Move them to one first.")
        is_wider = torch.promote_types(first.dtype, other.dtype) is other.dtype
        if other.dtype is not first.dtype and not (wider and is_wider):
            if not torch.is_autocast_enabled(first.device.type):
                got = f"{first.dtype} and {other.dtype}"
                raise InputError(
                    who, "needs operands of one dtype", got=got, do="Convert them, or use autocast."
                )
            other = other.to(first.dtype)
        checked.append(other)
    return checked


def _checked_float(who: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor) or value.dtype not in _DTYPES:
        got = f"a tensor of {value.dtype}" if isinstance(value, torch.Tensor) else type(value).__name__
        do = "Give tensors of float16, bfloat16, float32 or float64."
        raise InputError(who, "needs a floating-point tensor", got=got, do=do)
    if value.layout is not torch.strided:
        do = "Convert it with .to_dense()."
        raise InputError(who, "needs a dense tensor", got=f"a tensor of layout {value.layout}", do=do)
    if value.device.type not in _DEVICES:
        do = "Move it to the host or a CUDA device."
        raise InputError(who, "computes on cpu and cuda", got=f"a tensor on {value.device}", do=do)


def equal_shapes(op: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise InputError unless two operands have one shape."""
    if a.shape != b.shape:
        got = f"{list(a.shape)} and {list(b.shape)}"
        raise InputError(
            f"pytorch.ops.{op}", "needs operands of one shape", got=got, do="Expand one of them."
        )


def flag(op: str, name: str, value: Any) -> bool:
    """Return an argument that is True or False. Raises InputError."""
    if not isinstance(value, bool):
        do = "Give True or False."
        raise InputError(f"pytorch.ops.{op}", f"{name} must be a bool", got=repr(value), do=do)
    return value


def whole_number(op: str, name: str, value: Any) -> int:
    """Return an argument that is an int. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        do = "Give a whole number."
        raise InputError(f"pytorch.ops.{op}", f"{name} must be an int", got=repr(value), do=do)
    return value


def real_number(op: str, name: str, value: Any) -> float:
    """Return an argument that is a number, as a float. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int | float | torch.SymFloat):
        raise InputError(
            f"pytorch.ops.{op}", f"{name} must be a number", got=repr(value), do="Give a number."
        )
    return float(value)


def several_numbers(op: str, name: str, value: Any, count: int = 1) -> tuple[int, ...]:
    """Return an argument that is a sequence of ints; one int is repeated ``count`` times. Raises InputError."""
    if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
        return (value,) * count
    if not isinstance(value, Sequence) or isinstance(value, str):
        do = "Give a whole number, or a list of them."
        raise InputError(f"pytorch.ops.{op}", f"{name} must be ints", got=repr(value), do=do)
    return tuple(whole_number(op, name, v) for v in value)
