"""Gated activations: act(gate) * up. SwiGLU has silu, GEGLU has gelu."""

from __future__ import annotations

from .activations import activated, derivative
from .formula import Formula, Writer

__all__ = ["GATED", "GATED_BACKWARD"]


def _gated(w: Writer) -> list[str]:
    gate = activated(w, w.attributes["activation"], w.wide(w["gate"]))
    return [w.like(w.b.mul(gate, w.wide(w["up"])), "gate")]


def _gated_backward(w: Writer) -> list[str]:
    word, grad, gate = w.attributes["activation"], w.wide(w["grad"]), w.wide(w["gate"])
    results = []
    if w.attributes["wanted"][0]:
        slope = w.b.mul(derivative(w, word, gate), w.wide(w["up"]))
        results.append(w.like(w.b.mul(grad, slope), "gate"))
    if w.attributes["wanted"][1]:
        results.append(w.like(w.b.mul(grad, activated(w, word, gate)), "up"))
    return results


GATED = Formula("gated", ("gate", "up"), ("activation",), _gated)
GATED_BACKWARD = Formula("gated_backward", ("grad", "gate", "up"), ("activation", "wanted"), _gated_backward)
