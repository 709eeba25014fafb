"""Sizes of symbolic dims from a policy's ``fixed_shapes``: by symbol, or as the shape of an input."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from ...errors import PolicyError
from ...types import Dim, TensorSpec

__all__ = ["fixed_sizes"]


def fixed_sizes(
    specs: Sequence[TensorSpec], fixed: Mapping[str, int | Sequence[int]], who: str
) -> dict[str, int]:
    """Return sizes by symbol. ``fixed``: ``{"batch": 1}`` or ``{"x": [1, 3, 224, 224]}``. Raises PolicyError."""
    inputs = {s.name: s for s in specs}
    symbols = {s for spec in specs for s in spec.symbols}
    sizes: dict[str, int] = {}
    for key, value in fixed.items():
        if key in symbols and isinstance(value, int):
            sizes[key] = value
        elif key in inputs and not isinstance(value, int):
            sizes |= _sizes_of_input(inputs[key], tuple(value), who)
        else:
            near = difflib.get_close_matches(key, [*symbols, *inputs], n=1)
            raise PolicyError(
                who,
                "fixed_shapes names neither a symbolic dim (with a size) nor an input (with a shape)",
                got=f"{key!r}: {value!r}",
                do=(f"Did you mean {near[0]!r}? " if near else "")
                + f"Symbols are {', '.join(sorted(symbols)) or 'none'}; inputs are {', '.join(inputs)}.",
            )
    return sizes


def _sizes_of_input(spec: TensorSpec, shape: tuple[int, ...], who: str) -> dict[str, int]:
    wrong = len(shape) != spec.rank or any(
        isinstance(want, int) and want != have for want, have in zip(spec.shape, shape, strict=False)
    )
    if wrong:
        raise PolicyError(
            who,
            f"fixed_shapes contradicts input {spec.name!r}",
            got=list(shape),
            do=f"Give a shape that fits {spec}.",
        )
    return {
        symbol: have
        for want, have in zip(spec.shape, shape, strict=True)
        if isinstance(want, Dim) and len(want.symbols) == 1
        for symbol in want.symbols
    }
