"""Pins: a library's kernel together with the algorithm that it must use: ``{"kernel": "cublasLt", "algorithm": 21}``.

The normal form of a pinned kernel is one word, ``cublasLt[algorithm=21]``. Files may use either form wherever a kernel's name is
allowed. A pinned kernel is a separate candidate that is chosen only if a policy names it. A rule that forbids the plain kernel also
forbids the pinned one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from ..vocabulary import nearest

__all__ = ["MAX_PIN", "PINS", "parted", "pinned", "plain_kernel", "shown_kernel"]

PINS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cublasLt": {
            "algorithm": "a cuBLASLt algorithm id, as receipts show it",
            "choice": "index from 0 among the algorithms with that id, or among all, in the order of cuBLASLt's heuristic",
        },
        "cudnn": {
            "engine": "a cuDNN engine's global index, as receipts show it",
            "choice": "index from 0 among the configurations of that engine, or among all that compute in the model's type, in the order of cuDNN's heuristic",
        },
    }
)
"""The pins of each kernel, name to meaning. Values are integers from 0."""

MAX_PIN = 2**31 - 1
_PINNED = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,63})\[([a-z]+=[0-9]{1,10}(?:,[a-z]+=[0-9]{1,10})*)\]")


def pinned(kernel: str, values: Mapping[str, int]) -> str:
    """Return the word of a kernel with pins; without pins, the kernel's own name."""
    inner = ",".join(f"{k}={v}" for k, v in sorted(values.items()))
    return f"{kernel}[{inner}]" if inner else kernel


def parted(name: str) -> tuple[str, dict[str, int]]:
    """Split a word into the kernel and its pins, the inverse of ``pinned``. A name of another form has no pins."""
    match = _PINNED.fullmatch(name)
    if match is None:
        return name, {}
    pairs = (pair.split("=") for pair in match[2].split(","))
    return match[1], {k: int(v) for k, v in pairs}


def plain_kernel(name: str) -> str:
    """Return the kernel without its pins: ``cublasLt`` for ``cublasLt[algorithm=21]``."""
    return parted(name)[0]


def shown_kernel(name: str) -> object:
    """Return the form for files: a mapping if there are pins."""
    kernel, values = parted(name)
    return {"kernel": kernel, **values} if values else name


def problems(kernel: str, values: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Yield each mistake in the pins: (name, what is wrong, what to do)."""
    allowed = PINS.get(kernel, {})
    for name, value in values.items():
        if name not in allowed:
            has = f"Pins of {kernel}: {', '.join(allowed)}" if allowed else f"{kernel} has no pins"
            yield name, "no such pin", f"{nearest(name, allowed)}{has}."
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PIN:
            yield name, f"must be an integer from 0 to {MAX_PIN}", f"It is {allowed[name]}."
