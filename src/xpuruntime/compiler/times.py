"""Kernel times: measured times of kernels by call, in a file that ``compile`` reads.

A file has what was measured on one target (instruction set) with one number of threads::

    {"format": "xpuruntime kernel times", "version": 1, "target": "cpu:x86-64-v4", "threads": 2,
     "calls": {"9f86d081884c7d65": {"op": "linear", "times_us": {"gemv": 11.5, "generated": 14.0}}}}

A call is identified by ``call_key``: op, attributes, operands and results with their layouts. Times decide only if the policy names no kernel
and every usable kernel of the call was measured (``policies.choose``).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import FormatError
from ..kernels.kernel import NodeCall, Operand
from ..storage.files import read_regular
from ..types import TensorSpec

__all__ = ["KernelTimes", "call_key"]

FORMAT, VERSION = "xpuruntime kernel times", 1
_NONE: Mapping[str, float] = MappingProxyType({})


def call_key(call: NodeCall) -> str:
    """Return 16 hexadecimal digits of the sha256 of all that determines a call's code: op, attributes, types, layouts, weights."""

    def text(spec: TensorSpec) -> str:
        layout = "" if spec.is_dense or spec.layout is None else f"{spec.layout.order}{spec.layout.alloc}"
        return f"{spec.dtype.value}{list(spec.shape)}{layout}"

    operands = [
        f"{'weight ' if o.is_weight else ''}{text(o.spec)}{'' if o.const is None else o.const}"
        if isinstance(o, Operand)
        else repr(o)
        for o in call.inputs
    ]
    parts = [call.op, str(call.attrs), *operands, "->", *map(text, call.outputs)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Microseconds by call: ``calls[call_key(call)][kernel]``. Empty if nothing was measured.

    target, threads: those of the measurement. The times are not used for other targets.
    """

    target: str = ""
    threads: int = 0
    calls: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, call: NodeCall, target: str) -> Mapping[str, float]:
        """Return the times of a call by kernel (``gemv``); empty if it was not measured."""
        return self.calls.get(call_key(call), _NONE) if self.calls and target == self.target else _NONE

    @property
    def digest(self) -> str:
        """sha256 of the content; ``""`` if it is empty."""
        if not self.calls:
            return ""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the content of a file."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "target": self.target,
            "threads": self.threads,
            "calls": {k: {"times_us": dict(v)} for k, v in sorted(self.calls.items())},
        }

    @classmethod
    def load(cls, source: KernelTimes | Mapping[str, Any] | str | os.PathLike[str] | None) -> KernelTimes:
        """Load from a file's path or its content. Raises FormatError."""
        if source is None:
            return cls()
        if isinstance(source, cls):
            return source
        who = "kernel times"
        data: Any = source
        if isinstance(source, str | os.PathLike):
            who = f"kernel times {Path(source).name!r}"
            try:
                data = json.loads(read_regular(source).decode("utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise FormatError(who, "cannot be read", got=error, do="Check the path.") from error
        if not isinstance(data, Mapping) or data.get("format") != FORMAT or data.get("version") != VERSION:
            raise FormatError(
                who,
                f'must be a file of format "{FORMAT}", version {VERSION}',
                got=f"{data.get('format')!r}, version {data.get('version')!r}"
                if isinstance(data, Mapping)
                else type(data).__name__,
                do="Measure again with this release.",
            )
        calls = data.get("calls")
        if not isinstance(data.get("target"), str) or not isinstance(calls, Mapping):
            raise FormatError(who, "has no target or no calls", do="Measure again with this release.")
        times = {str(key): _times(who, str(key), row) for key, row in calls.items()}
        threads = data.get("threads", 0)
        return cls(data["target"], threads if type(threads) is int else 0, times)


def _times(who: str, key: str, row: Any) -> dict[str, float]:
    times = row.get("times_us") if isinstance(row, Mapping) else None
    if not isinstance(times, Mapping):
        raise FormatError(who, f"call {key} has no times_us", got=row, do="Measure again.")
    for kernel, us in times.items():
        if type(us) not in (int, float) or not math.isfinite(us) or us <= 0:
            raise FormatError(
                who,
                f"call {key}: the time of {kernel} must be a positive number",
                got=us,
                do="Measure again.",
            )
    return {str(k): float(v) for k, v in times.items()}
