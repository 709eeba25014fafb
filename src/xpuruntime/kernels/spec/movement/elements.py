"""Elements that move: whether their bytes can, and a value's bits."""

from __future__ import annotations

import numpy as np

from ....codegen.loops.boxes import element_bytes
from ....decisions import Reason, Support
from ....types import DType, TensorSpec

__all__ = ["STATUS", "bits_of", "static", "why_not_movable"]


STATUS = 64
"""Bytes of scratch that a stage asks for so that it can say what it cannot compute (``fail`` of templates/movement.h)."""


def static(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape, all of it known."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def why_not_movable(*specs: TensorSpec) -> Support | None:
    """Return why elements cannot move: text, or less than a byte each. None when they can."""
    for spec in specs:
        if not element_bytes(spec.dtype):
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"{spec.dtype.value} elements do not have whole bytes"
            )
    return None


def bits_of(value: object, dtype: DType) -> str:
    """Return a number as a C literal of the bits that an element moves as."""
    from ....ir.interp.numbers import to

    raw = np.ascontiguousarray(to(np.asarray(value), dtype)).reshape(1)
    unit = raw.view(np.uint8)[: element_bytes(dtype)]
    return f"0x{int.from_bytes(unit.tobytes(), 'little'):x}ull"
