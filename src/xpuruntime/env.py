"""The environment variables that xpuruntime reads: one table, documented by ``xpu doctor``.

Behaviour belongs to policy files; what stands here is only where things are, how much of the machine
may be used, and the environment's place in a policy's precedence (argument > file > environment > built-in).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from .errors import PolicyError

__all__ = ["VARIABLES", "Variable", "get", "get_bytes", "get_int", "get_path", "get_seconds"]


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: its name, default text and meaning."""

    name: str
    default: str
    meaning: str


VARIABLES: dict[str, Variable] = {
    v.name: v
    for v in (
        Variable("XPU_CACHE_DIR", "", "folder of the store; empty: the user's cache folder"),
        Variable("XPU_CACHE_BYTES", "4GiB", "largest total size of the store"),
        Variable("XPU_CACHE_MODE", "rw", "rw, ro (read, never write) or off"),
        Variable("XPU_NUM_THREADS", "", "threads per session; empty: every core this process may use"),
        Variable("XPU_POLICY", "", "policy file that applies where neither argument nor file decides"),
        Variable("XPU_ENGINE", "", "engine that applies where neither argument nor policy names one"),
        Variable("XPU_DEVICE", "", "device that applies where neither argument nor policy names one"),
        Variable(
            "XPU_KERNELS",
            "",
            "modules and .py files that register kernels, separated by commas; imported when a policy names one",
        ),
        Variable("XPU_AUTO_SECONDS", "20", "time bound of engine='auto' for one model, in seconds"),
        Variable("XPU_LIBCUBLAS", "", "path of the cuBLAS library, instead of the usual search"),
        Variable("XPU_LIBCUBLASLT", "", "path of the cuBLASLt library, instead of the usual search"),
        Variable("XPU_LIBCUDNN", "", "path of the cuDNN library, instead of the usual search"),
        Variable("XPU_LIBCUDA", "", "path of the CUDA driver library, instead of the usual search"),
        Variable("XPU_LIBCUPTI", "", "path of the CUPTI library, instead of the usual search"),
        Variable("XPU_LIBNVRTC", "", "path of the NVRTC library, instead of the usual search"),
        Variable("XPU_LIBNVTX", "", "path of the NVTX library, instead of the usual search"),
        Variable("XPU_LIBONEDNN", "", "path of the oneDNN library, instead of the usual search"),
        Variable(
            "XPU_NVTX",
            "",
            "ranges for NVIDIA's tools: runs, or calls (each kernel too, launched by itself); empty: none",
        ),
        Variable(
            "XPU_DEBUG",
            "0",
            "what xpu logs on stderr: 0 warnings, 1 plans and tracebacks, 2 builds too (in Python: the logger xpuruntime)",
        ),
    )
}


def get(name: str) -> str:
    """The text of a variable in the table, or its default. Unknown names are a programming error (KeyError)."""
    variable = VARIABLES[name]
    return os.environ.get(name, "").strip() or variable.default


def _bad(name: str, kind: str) -> PolicyError:
    return PolicyError(
        f"environment {name}",
        f"must be {kind}",
        got=repr(os.environ.get(name)),
        do=f"Unset it or set it to {kind} ({VARIABLES[name].meaning}).",
    )


def get_int(name: str) -> int | None:
    """A variable as a positive integer, or None when it is empty."""
    text = get(name)
    if not text:
        return None
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise _bad(name, "a positive integer")
    return int(text)


_UNITS = {
    "": 1,
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}


def parse_bytes(text: str) -> int:
    """``"512 MiB"`` -> 536870912. Raises ValueError for anything that is not a number with a known unit."""
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(digits) :].strip().lower()
    if unit not in _UNITS:
        raise ValueError(f"unknown unit {unit!r}; use one of {', '.join(u for u in _UNITS if u)}")
    value = float(digits) * _UNITS[unit]
    if not 0 <= value < 2**60:
        raise ValueError("must be between 0 and 2**60 bytes")
    return int(value)


def get_bytes(name: str) -> int:
    """A variable as a number of bytes; takes units (``512MiB``, ``4GiB``, ``1GB``)."""
    try:
        return parse_bytes(get(name))
    except ValueError as error:
        raise _bad(name, "a size such as 4GiB") from error


def get_seconds(name: str) -> float:
    """A variable as a positive number of seconds."""
    try:
        seconds = float(get(name))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _bad(name, "a positive number of seconds")
    return seconds


def get_path(name: str) -> Path | None:
    """A variable as a path with ``~`` expanded, or None when it is empty."""
    text = get(name)
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:  # "~somebody" without such a user
        raise _bad(name, "a path") from error
