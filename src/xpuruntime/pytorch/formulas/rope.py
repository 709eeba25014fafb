"""Rotary position embedding. Backward rotates the gradient by the opposite angles."""

from __future__ import annotations

from .formula import Formula, Writer

__all__ = ["ROPE", "ROPE_BACKWARD"]


def _rope(w: Writer) -> list[str]:
    return [w.b.rope(w["x"], w["cos"], w["sin"], interleaved=w.attributes["interleaved"])]


def _rope_backward(w: Writer) -> list[str]:
    opposite = w.b.neg(w["sin"])
    return [w.b.rope(w["grad"], w["cos"], opposite, interleaved=w.attributes["interleaved"])]


ROPE = Formula("rope", ("x", "cos", "sin"), ("interleaved",), _rope)
ROPE_BACKWARD = Formula("rope_backward", ("grad", "cos", "sin"), ("interleaved", "wanted"), _rope_backward)
