"""Bridges from the arguments of a PyTorch op to operands and attributes of IR ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Adapt", "Adapted", "Answered", "Bridge", "NotComparable", "listed", "named", "only"]


class NotComparable(Exception):
    """The reason why a sample is not a call of the op."""


Adapted: TypeAlias = tuple[list[Any], dict[str, Any]]
"""Operands and attributes."""
Answered: TypeAlias = tuple[list[Any], dict[str, Any], Any]
"""The same with the expected answer, if the conversion had to compute it."""
Adapt: TypeAlias = Callable[[Any], Adapted]


@dataclass(frozen=True)
class Bridge:
    """``op``: the IR op. ``adapt``: converts a sample to operands and attributes. ``answer``: the expected result, if the OpInfo's own result does not
    have the op's form (arguments: sample, operands, attributes). ``info``: the OpInfo's name if the entry has a different one.
    """

    op: str
    adapt: Callable[[Any], Adapted | Answered]
    answer: Callable[[Any, list[Any], dict[str, Any]], Any] | None = None
    variants: tuple[str, ...] = ("",)
    info: str = ""


def named(sample: Any, *names: str) -> dict[str, Any]:
    """Return arguments after the input by name."""
    return dict(zip(names, sample.args, strict=False)) | dict(sample.kwargs)


def only(kwargs: dict[str, Any], *names: str) -> dict[str, Any]:
    """Raise NotComparable for an argument with a value that the op does not support."""
    for name in set(kwargs) - set(names):
        if kwargs[name] not in (None, False):
            raise NotComparable(f"argument {name}")
    return {k: v for k, v in kwargs.items() if k in names}


def listed(value: Any, n: int) -> list[int]:
    """Return one number per spatial dim; PyTorch accepts one for all."""
    if isinstance(value, int):
        return [value] * n
    return list(value) * (n if len(value) == 1 else 1)
