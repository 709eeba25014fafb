"""Elements as bits: which dtypes can move, and a constant's bits."""

from __future__ import annotations

from ....codegen.loops.boxes import element_bytes
from ....decisions import Reason, Support
from ....types import TensorSpec

__all__ = ["STATUS", "static", "why_not_movable"]


STATUS = 64
"""Bytes of scratch in which a stage reports an error of its inputs (``fail`` of templates/movement.h)."""


def static(spec: TensorSpec) -> tuple[int, ...]:
    """Return a static shape as integers."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def why_not_movable(*specs: TensorSpec) -> Support | None:
    """Return the refusal of elements without whole bytes (text, 4-bit numbers); None if all can move."""
    for spec in specs:
        if not element_bytes(spec.dtype):
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"{spec.dtype.value} elements do not have whole bytes"
            )
    return None
