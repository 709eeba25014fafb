"""The environment variables that xpuruntime reads, in one table that ``xpu doctor`` prints.

Behavior belongs in policy files. These variables only say where files are, how much of the machine may be used, and which
policy defaults apply (precedence: argument > file > environment > built-in).
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
        Variable("XPU_CACHE_BYTES", "4GiB", "maximum total size of the store"),
        Variable("XPU_CACHE_MODE", "rw", "mode of the store: rw, ro (read-only) or off"),
        Variable(
            "XPU_NUM_THREADS", "", "CPU threads per session; empty: every core that this process may use"
        ),
        Variable(
            "XPU_POLICY", "", "policy file for everything that no argument and no other policy file sets"
        ),
        Variable("XPU_ENGINE", "", "default engine, if no argument and no policy names one"),
        Variable("XPU_DEVICE", "", "default device, if no argument and no policy names one"),
        Variable(
            "XPU_KERNELS",
            "",
            "modules and .py files that register kernels, separated by commas; imported when a policy names a kernel that is not built in",
        ),
        Variable("XPU_AUTO_SECONDS", "20", "seconds that engine='auto' may spend on measuring one model"),
        Variable("XPU_LIBCUBLAS", "", "path of the cuBLAS library, instead of the usual search"),
        Variable("XPU_LIBCUBLASLT", "", "path of the cuBLASLt library, instead of the usual search"),
        Variable("XPU_LIBCUDNN", "", "path of the cuDNN library, instead of the usual search"),
        Variable("XPU_LIBCUDA", "", "path of the CUDA driver library, instead of the usual search"),
        Variable("XPU_LIBCUPTI", "", "path of the CUPTI library, instead of the usual search"),
        Variable("XPU_LIBNCCL", "", "path of the NCCL library, instead of the usual search"),
        Variable("XPU_LIBNVRTC", "", "path of the NVRTC library, instead of the usual search"),
        Variable("XPU_LIBNVTX", "", "path of the NVTX library, instead of the usual search"),
        Variable("XPU_LIBONEDNN", "", "path of the oneDNN library, instead of the usual search"),
        Variable(
            "XPU_NVTX",
            "",
            "NVTX ranges for NVIDIA's tools: runs, or calls (also one per kernel, each launched individually); empty: none",
        ),
        Variable(
            "XPU_PROGRESS",
            "on",
            "a line on stderr, if that is a terminal, while a model is opened or compiled for more than 2 s: on or off",
        ),
        Variable(
            "XPU_DEBUG",
            "0",
            "what xpu logs on stderr: 0 warnings, 1 also plans and tracebacks, 2 also builds (in Python: the logger xpuruntime)",
        ),
    )
}


def get(name: str) -> str:
    """Return the text of a variable, or its default. Raises KeyError for a name that is not in the table."""
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
    """Return a variable as a positive integer, or None when it is empty."""
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
    """Parse a size such as ``"512 MiB"`` (536870912). Raises ValueError for anything but a number with a known unit."""
    digits = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = text.strip()[len(digits) :].strip().lower()
    if unit not in _UNITS:
        raise ValueError(f"unknown unit {unit!r}; use one of {', '.join(u for u in _UNITS if u)}")
    value = float(digits) * _UNITS[unit]
    if not 0 <= value < 2**60:
        raise ValueError("must be between 0 and 2**60 bytes")
    return int(value)


def get_bytes(name: str) -> int:
    """Return a variable as a number of bytes; takes units (``512MiB``, ``4GiB``, ``1GB``)."""
    try:
        return parse_bytes(get(name))
    except ValueError as error:
        raise _bad(name, "a size such as 4GiB") from error


def get_seconds(name: str) -> float:
    """Return a variable as a positive number of seconds."""
    try:
        seconds = float(get(name))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _bad(name, "a positive number of seconds")
    return seconds


def get_path(name: str) -> Path | None:
    """Return a variable as a path with ``~`` expanded, or None when it is empty."""
    text = get(name)
    try:
        return Path(text).expanduser() if text else None
    except RuntimeError as error:  # "~name" of a user that does not exist
        raise _bad(name, "a path") from error
