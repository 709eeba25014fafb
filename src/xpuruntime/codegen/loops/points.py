"""Text fragments of kernels on single elements or rows: C types, numbers, index arithmetic, element addresses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...types import DType, TensorSpec
from ..c_types import STORAGE
from .boxes import Box

__all__ = [
    "STORAGE",
    "address",
    "argument",
    "decimal",
    "for_tasks",
    "number",
    "offset",
    "outer_dims",
    "storage",
    "table",
    "unravel",
]


def storage(dtype: DType) -> str:
    """Return the prelude's storage type. Raises KeyError for a dtype that kernels only move."""
    return STORAGE[dtype]


def argument(name: str, position: int, spec: TensorSpec, *, written: bool = False) -> str:
    """Return the line that declares a typed argument."""
    const = "" if written else "const "
    kind = storage(spec.dtype)
    return f"{const}{kind} *const {name} = ({const}{kind} *)args[{position}];"


def number(value: float | int | bool) -> str:
    """Return a number as a C literal: integers exact, floats as doubles."""
    if isinstance(value, bool | int):
        if value == -(2**63):
            return "(-(int64_t)9223372036854775807 - 1)"
        return f"(uint64_t){int(value)}u" if value >= 2**63 else f"(int64_t){int(value)}"
    if math.isnan(value):
        return '__builtin_nan("")'
    if math.isinf(value):
        return "__builtin_inf()" if value > 0 else "-__builtin_inf()"
    return float(value).hex()


def decimal(value: float) -> str:
    """Return a float as a C literal of decimal digits."""
    return repr(value) if math.isfinite(value) else number(float(value))


def table(kind: str, name: str, values: Sequence[float | int]) -> str:
    """Return a constant table."""
    body = ", ".join(number(v) for v in values) or "0"
    return f"static const {kind} {name}[] = {{{body}}};"


def unravel(shape: Sequence[int], what: str = "task", prefix: str = "i") -> list[str]:
    """Return lines that split a row-major index into indices ``i0``, ``i1`` ..."""
    lines: list[str] = []
    below = 1
    for d in reversed(range(len(shape))):
        quotient = what if below == 1 else f"{what} / {below}"
        lines.insert(0, f"const int64_t {prefix}{d} = {quotient}{f' % {shape[d]}' if d else ''};")
        below *= max(shape[d], 1)
    return lines


def address(box: Box, names: Sequence[str]) -> str:
    """Return the address of an element: ``in0 + 3 + i0 * 4``."""
    return " + ".join([box.arg, *_steps(box, names)])


def offset(box: Box, names: Sequence[str]) -> str:
    """Return the offset of an element in its argument: ``3 + i0 * 4``."""
    return " + ".join(_steps(box, names)) or "0"


def _steps(box: Box, names: Sequence[str]) -> list[str]:
    steps = zip(names, box.strides, strict=True)
    return [
        *([str(box.offset)] if box.offset else []),
        *(name if stride == 1 else f"{name} * {stride}" for name, stride in steps if stride and name != "0"),
    ]


def outer_dims(shape: Sequence[int], dim: int) -> tuple[int, ...]:
    """Return the shape without a dim."""
    return (*shape[:dim], *shape[dim + 1 :])


def for_tasks(lines: Sequence[str]) -> str:
    """Return a loop over the kernel's tasks."""
    return "\n".join(["for (int64_t task = begin; task < end; ++task) {", *(f"  {x}" for x in lines), "}"])
