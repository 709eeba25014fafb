"""What a bridge is: from the way that PyTorch writes an op's arguments to operands and attributes of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Adapt", "Adapted", "Answered", "Bridge", "Unfit", "listed", "named", "only"]


class Unfit(Exception):
    """Why a sample is no call of the op."""


Adapted: TypeAlias = tuple[list[Any], dict[str, Any]]
"""Operands and attributes."""
Answered: TypeAlias = tuple[list[Any], dict[str, Any], Any]
"""The same, and the right answer, where computing it was part of the way."""
Adapt: TypeAlias = Callable[[Any], Adapted]


@dataclass(frozen=True)
class Bridge:
    """``op``: ours. ``adapt``: sample to operands and attributes. ``answer``: what is right, where the OpInfo's own result is not
    of the op's form (arguments: sample, operands, attributes). ``info``: the OpInfo's name where the entry has its own.
    """

    op: str
    adapt: Callable[[Any], Adapted | Answered]
    answer: Callable[[Any, list[Any], dict[str, Any]], Any] | None = None
    variants: tuple[str, ...] = ("",)
    info: str = ""


def named(sample: Any, *names: str) -> dict[str, Any]:
    """Arguments after the input by name."""
    return dict(zip(names, sample.args, strict=False)) | dict(sample.kwargs)


def only(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """Raise Unfit for an argument that the op does not have and that says something."""
    for name in set(given) - set(names):
        if given[name] not in (None, False):
            raise Unfit(f"argument {name}")
    return {k: v for k, v in given.items() if k in names}


def listed(value: Any, n: int) -> list[int]:
    """One number per spatial dim; PyTorch lets one stand for all."""
    if isinstance(value, int):
        return [value] * n
    return list(value) * (n if len(value) == 1 else 1)
