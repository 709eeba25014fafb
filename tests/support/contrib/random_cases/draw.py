"""Seeded draws of cases: odd sizes, optional operands, attributes, and numbers that are not finite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..case import Case

__all__ = ["DRAWS", "Draw", "case", "draws", "trimmed", "window"]


class Draw:
    """Random numbers of one case. special: some floats are not finite. empty: some dims are 0."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.special = self.chance(0.2)
        self.empty = self.chance(0.1)

    def chance(self, p: float = 0.5) -> bool:
        return bool(self.random.random() < p)

    def pick(self, *options: Any) -> Any:
        return options[int(self.random.integers(len(options)))]

    def dim(self) -> int:
        return int(self.pick(0, 1, 2, 3) if self.empty else self.pick(1, 1, 2, 3, 5, 7, 11))

    def some(self) -> int:
        """Return the size of a dim that is not 0."""
        return int(self.pick(1, 2, 3, 5, 7))

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        return tuple(self.dim() for _ in range(self.pick(1, 2, 3, 4) if rank is None else rank))

    def floats(
        self, *shape: int, dtype: Any = np.float32, scale: float = 1.0, fine: bool = False
    ) -> np.ndarray:
        """Return floats; ``fine``: all are finite."""
        x = (self.random.standard_normal(shape) * scale).astype(dtype)
        if self.special and not fine and x.size and self.chance():
            x.reshape(-1)[int(self.random.integers(x.size))] = self.pick(np.nan, np.inf, -np.inf, -0.0)
        return np.asarray(x)

    def codes(self, *shape: int, dtype: Any = np.uint8) -> np.ndarray:
        info = np.iinfo(dtype)
        return np.asarray(self.random.integers(info.min, info.max + 1, shape), dtype)

    def scale(self, n: int | None = None) -> np.ndarray:
        """Return one scale, or one for each column."""
        return np.asarray(self.random.uniform(0.005, 0.06, () if n is None else (n,)), np.float32)

    def zero(self, dtype: Any, n: int | None = None) -> np.ndarray:
        return self.codes(*(() if n is None else (n,)), dtype=dtype)

    def byte(self) -> Any:
        return self.pick(np.uint8, np.int8)

    def like(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape that broadcasts to another."""
        dims = tuple(d if self.chance(0.7) else 1 for d in shape)
        return dims[self.pick(0, 0, 1) if len(dims) > 1 else 0 :]


DRAWS: dict[str, Callable[[Draw], Case]] = {}
"""Op -> a function that draws a case of it."""


def draws(*names: str) -> Callable[[Callable[[Draw, str], Case]], Callable[[Draw, str], Case]]:
    """Register a function for these ops."""

    def register(function: Callable[[Draw, str], Case]) -> Callable[[Draw, str], Case]:
        for name in names:
            DRAWS[name] = lambda d, name=name: function(d, name)  # type: ignore[misc]
        return function

    return register


def case(
    name: str,
    operands: Iterable[Any],
    attributes: dict[str, Any] | None = None,
    outputs: Sequence[int] = (0,),
    weights: Sequence[int] = (),
    domain: str = "com.microsoft",
) -> Case:
    """Return a case whose operands are fed, except for the weights."""
    operands = tuple(operands)
    fed = tuple(i for i, o in enumerate(operands) if o is not None and i not in weights)
    return Case(name, operands, attributes or {}, fed, tuple(outputs), domain)


def trimmed(operands: Iterable[Any]) -> list[Any]:
    """Return the operands without absent ones at the end."""
    present = list(operands)
    while present and present[-1] is None:
        present.pop()
    return present


def window(d: Draw, kernel: Sequence[int], pool: bool = False) -> dict[str, Any]:
    """Return attributes of a convolution or a pool with this kernel."""
    r = len(kernel)
    at = {}
    if d.chance(0.6) or pool:
        at["kernel_shape"] = list(kernel)
    if d.chance(0.5):
        at["strides"] = [d.pick(1, 2, 3) for _ in range(r)]
    if d.chance(0.5):
        at["pads"] = [d.pick(0, 1) if k > 1 else 0 for k in kernel * 2]
    elif d.chance(0.4):
        at["auto_pad"] = d.pick("SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    if d.chance(0.3):
        at["dilations"] = [d.pick(1, 2) for _ in range(r)]
    return at
