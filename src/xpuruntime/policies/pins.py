"""Pins: a kernel of a library together with the algorithm that it shall take: ``{"kernel": "cublasLt", "algorithm": 21}``.

In normal form a pinned kernel is one word, ``cublasLt[algorithm=21]``; it stands wherever a kernel's name does, in files in either form. It is
a candidate of its own beside the plain kernel, taken only where a policy names it. A rule that forbids the plain kernel forbids it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from .vocabulary import nearest

__all__ = ["MOST", "PINS", "parted", "pinned", "plain_kernel", "shown_kernel"]

PINS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cublasLt": {
            "algorithm": "an id of cuBLASLt's, as receipts name it",
            "choice": "which of those with that id, or of all, in the order of its heuristic, from 0",
        },
        "cudnn": {"engine": "a global index of cuDNN's engines, as receipts name it"},
    }
)
"""What may be pinned, by kernel: name to meaning. Values are whole numbers from 0."""

MOST = 2**31 - 1
_PINNED = re.compile(r"([A-Za-z_][A-Za-z0-9_-]{0,63})\[([a-z]+=[0-9]{1,10}(?:,[a-z]+=[0-9]{1,10})*)\]")


def pinned(kernel: str, values: Mapping[str, int]) -> str:
    """Return the word of a kernel with pins; the kernel's own where there are none."""
    inner = ",".join(f"{k}={v}" for k, v in sorted(values.items()))
    return f"{kernel}[{inner}]" if inner else kernel


def parted(name: str) -> tuple[str, dict[str, int]]:
    """Return the inverse of ``pinned``: a kernel and its pins. A name that is of no such form has none."""
    match = _PINNED.fullmatch(name)
    if match is None:
        return name, {}
    pairs = (pair.split("=") for pair in match[2].split(","))
    return match[1], {k: int(v) for k, v in pairs}


def plain_kernel(name: str) -> str:
    """``cublasLt`` for ``cublasLt[algorithm=21]``."""
    return parted(name)[0]


def shown_kernel(name: str) -> object:
    """Return as files write it: a mapping where there are pins."""
    kernel, values = parted(name)
    return {"kernel": kernel, **values} if values else name


def problems(kernel: str, values: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """What is wrong with pins: (name, what, what to do)."""
    known = PINS.get(kernel, {})
    for name, value in values.items():
        if name not in known:
            has = f"{kernel} takes {', '.join(known)}" if known else f"{kernel} has nothing to pin"
            yield name, "no such pin", f"{nearest(name, known)}{has}."
        elif isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
            yield name, f"must be a whole number from 0 to {MOST}", f"It is {known[name]}."
