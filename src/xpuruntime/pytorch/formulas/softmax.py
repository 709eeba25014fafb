"""Softmax over one dim."""

from __future__ import annotations

from .formula import Formula, Writer

__all__ = ["SOFTMAX", "SOFTMAX_BACKWARD"]


def _softmax(w: Writer) -> list[str]:
    return [w.b.softmax(w["x"], dim=w.attributes["dim"])]


def _softmax_backward(w: Writer) -> list[str]:
    """Write dx = y (grad - sum(grad y))."""
    b, grad, y = w.b, w.wide(w["grad"]), w.wide(w["y"])
    total = b.sum(b.mul(grad, y), dim=[w.attributes["dim"]], keepdim=True)
    return [w.like(b.mul(y, b.sub(grad, total)), "y")]


SOFTMAX = Formula("softmax", ("x",), ("dim",), _softmax)
SOFTMAX_BACKWARD = Formula("softmax_backward", ("grad", "y"), ("dim", "wanted"), _softmax_backward)
