"""Activations and their derivatives, on values of at least float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from .formula import Writer

__all__ = ["ACTIVATIONS", "activated", "derivative"]

_SQRT_2_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def _gelu_derivative(w: Writer, z: str) -> str:
    """Write Phi(z) + z phi(z)."""
    b = w.b
    cdf = b.mul(b.add(b.erf(b.mul(z, 1 / math.sqrt(2))), 1.0), 0.5)
    pdf = b.mul(b.exp(b.mul(b.mul(z, z), -0.5)), 1 / math.sqrt(2 * math.pi))
    result: str = b.add(cdf, b.mul(z, pdf))
    return result


def _gelu_tanh_derivative(w: Writer, z: str) -> str:
    """Write s + z s (1 - s) v' with s = sigmoid(v), v = 2 sqrt(2 / pi) (z + 0.044715 z^3): (1 + tanh(v / 2)) / 2 is s.

    1 - s is sigmoid(-v), which does not cancel where s is near 1.
    """
    b = w.b
    square = b.mul(z, z)
    v = b.mul(b.mul(z, b.add(b.mul(square, _CUBIC), 1.0)), 2 * _SQRT_2_PI)
    slope = b.mul(b.add(b.mul(square, 3 * _CUBIC), 1.0), 2 * _SQRT_2_PI)
    s = b.sigmoid(v)
    result: str = b.add(s, b.mul(b.mul(z, slope), b.mul(s, b.sigmoid(b.neg(v)))))
    return result


def _silu_derivative(w: Writer, z: str) -> str:
    """Write s (1 + z (1 - s)) with s = sigmoid(z)."""
    b = w.b
    s = b.sigmoid(z)
    result: str = b.mul(s, b.add(b.mul(z, b.sub(1.0, s)), 1.0))
    return result


def _relu_derivative(w: Writer, z: str) -> str:
    return w.cast(w.b.gt(z, 0.0), w.spec(z).dtype)


ACTIVATIONS: Mapping[str, tuple[Callable[[Writer, str], str], Callable[[Writer, str], str]]] = {
    "relu": (lambda w, z: w.b.relu(z), _relu_derivative),
    "gelu": (lambda w, z: w.b.gelu(z), _gelu_derivative),
    "gelu_tanh": (lambda w, z: w.b.gelu(z, approximate="tanh"), _gelu_tanh_derivative),
    "silu": (lambda w, z: w.b.silu(z), _silu_derivative),
}
"""Word -> functions that write the activation of a value, and its derivative there."""


def activated(w: Writer, word: str, z: str) -> str:
    """Return the activation of a value; ``none`` leaves it unchanged."""
    return z if word == "none" else ACTIVATIONS[word][0](w, z)


def derivative(w: Writer, word: str, z: str) -> str:
    """Return the derivative of an activation at a value."""
    return ACTIVATIONS[word][1](w, z)
