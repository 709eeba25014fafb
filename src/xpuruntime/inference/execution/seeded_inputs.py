"""Seeded inputs for a model without example inputs. The same seed gives the same arrays on every machine.

A symbolic dim gets a size by its name where the name is known, otherwise 1. Integers stay small, so that an
index into a small table is valid; masks are ones, bytes are any. Users can give shapes or real inputs instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

from ...errors import InputError
from ...protocols import Array
from ...types import Dim, DimLike, DType, TensorSpec

__all__ = ["sample_feeds", "sample_symbols"]

# Sizes by the words that exporters use for symbols; first match wins.
_SYMBOL_SIZES: tuple[tuple[str, int], ...] = (
    (r"past|cache", 0),
    (r"seq|len|token|time|frame", 16),
    (r"height|width|\bh\b|\bw\b|size", 64),
)


def _symbol_size(name: str) -> int:
    return next((size for pattern, size in _SYMBOL_SIZES if re.search(pattern, name, re.IGNORECASE)), 1)


def sample_symbols(inputs: Iterable[TensorSpec], symbols: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return a size for every symbol in the inputs' shapes: the given size, else one by name; spatial dims of images get 64."""
    sizes: dict[str, int] = {}
    for spec in inputs:
        for axis, d in enumerate(spec.shape):
            for symbol in sorted(d.symbols) if isinstance(d, Dim) else ():
                image = spec.rank == 4 and axis >= 2 and spec.dtype.is_float
                sizes.setdefault(symbol, 64 if image else _symbol_size(symbol))
    return sizes | dict(symbols or {})


def sample_feeds(
    inputs: Iterable[TensorSpec], *, seed: int = 0, symbols: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Return one array per input. ``symbols`` fixes sizes of symbolic dims. Raises InputError for an unknown symbol or a
    shape that does not fit into memory.
    """
    specs = tuple(inputs)
    known = {s for spec in specs for s in spec.symbols}
    for name in symbols or {}:
        if name not in known:
            raise InputError(
                "inputs",
                "no symbolic dim of that name",
                got=repr(name),
                do=f"Name one of {', '.join(sorted(known)) or 'none: every dim of this model is fixed'}.",
            )
    sizes = sample_symbols(specs, symbols)
    return {spec.name: _sample(spec, sizes, seed + i) for i, spec in enumerate(specs)}


def _sample(spec: TensorSpec, sizes: Mapping[str, int], seed: int) -> Array:
    shape = tuple(max(0, _size(d, sizes)) for d in spec.shape)
    try:
        return _values(spec, shape, seed)
    except (MemoryError, OverflowError, ValueError) as error:  # the last two: sizes that NumPy cannot address
        raise InputError(
            f"input {spec.name!r}",
            "is too large to be made here",
            got=f"shape {list(shape)} of {spec.dtype.value}: {error}",
            do="Give smaller sizes with --shape NAME=SIZE (symbols= in Python)."
            if spec.symbols
            else "Give the input itself.",
        ) from error


def _values(spec: TensorSpec, shape: tuple[int, ...], seed: int) -> Array:
    random = np.random.default_rng(seed)
    name = spec.name.lower()
    if spec.dtype is DType.STRING:
        return np.full(shape, "text", dtype=object)
    if spec.dtype is DType.BOOL:
        return np.ones(shape, bool) if "mask" in name else random.random(shape) < 0.5
    if spec.dtype.is_integer:
        if "mask" in name:
            return np.ones(shape, spec.dtype.numpy)
        image = spec.dtype is DType.UINT8 and spec.rank >= 3
        wide = image or "byte" in name
        return random.integers(0, 256 if wide and spec.dtype.bits >= 8 else 2, shape).astype(spec.dtype.numpy)
    if spec.dtype.is_complex:
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(spec.dtype.numpy)
    return random.standard_normal(shape).astype(spec.dtype.numpy)


def _size(d: DimLike, sizes: Mapping[str, int]) -> int:
    value = d.substitute(sizes) if isinstance(d, Dim) else d
    if isinstance(value, Dim):
        raise InputError(
            "inputs", "a symbolic dim has no size", got=str(value), do="Give it with --shape NAME=SIZE."
        )
    return value
