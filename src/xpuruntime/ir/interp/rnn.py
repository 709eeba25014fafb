"""Recurrent layers with ONNX's equations and gate order, step by step, in both directions, with variable lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .activation import sigmoid
from .numbers import Array
from .rule import InterpRule, wide

__all__ = ["RULES"]

Activation: TypeAlias = Callable[[Array], Array]

# name -> (function of x, alpha, beta; default alpha; default beta). None: the function has no such parameter.
_ACTIVATIONS: dict[str, tuple[Callable[..., Array], float | None, float | None]] = {
    "relu": (lambda x: np.maximum(x, 0), None, None),
    "tanh": (np.tanh, None, None),
    "sigmoid": (sigmoid, None, None),
    "softsign": (lambda x: x / (1 + np.abs(x)), None, None),
    "softplus": (lambda x: np.logaddexp(0.0, x), None, None),
    "leakyrelu": (lambda x, a: np.where(x >= 0, x, a * x), 0.01, None),
    "thresholdedrelu": (lambda x, a: np.where(x >= a, x, 0), 1.0, None),
    "elu": (lambda x, a: np.where(x >= 0, x, a * np.expm1(x)), 1.0, None),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5),
}
_DEFAULT = {"rnn": ("Tanh",), "gru": ("Sigmoid", "Tanh"), "lstm": ("Sigmoid", "Tanh", "Tanh")}


def _activations(names: Sequence[str], alpha: Sequence[float], beta: Sequence[float]) -> list[Activation]:
    """Return the functions in order. Each consumes the next alpha and beta if it has these parameters."""
    alphas, betas = iter(alpha), iter(beta)
    functions: list[Activation] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise ValueError(f"no such activation: {name!r}")
        function, a, b = _ACTIVATIONS[name.lower()]
        numbers = [next(parameters, d) for parameters, d in ((alphas, a), (betas, b)) if d is not None]
        functions.append(lambda x, function=function, numbers=numbers: function(x, *numbers))  # type: ignore[misc]
    return functions


@dataclass(frozen=True)
class _Cell:
    """One direction of one layer: weights [gates*hidden, ...] and parameters of its step."""

    w: Array
    r: Array
    wb: Array
    rb: Array
    peepholes: Array
    functions: Sequence[Activation]
    clip: float | None
    option: bool  # GRU: linear_before_reset; LSTM: input_forget

    def cut(self, x: Array) -> Array:
        """Clip the inputs of gates. ONNX does not specify if an LSTM's cell state is also clipped before the output; ONNX Runtime and
        OpenVINO do not clip it.
        """
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)


Step: TypeAlias = Callable[[_Cell, Array, Array, Array], tuple[Array, Array]]


def _rnn_step(cell: _Cell, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    (f,) = cell.functions
    return f(cell.cut(x @ cell.w.T + h @ cell.r.T + cell.wb + cell.rb)), c


def _gru_step(cell: _Cell, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    f, g = cell.functions
    size = h.shape[1]
    from_x = x @ cell.w.T + cell.wb
    gates = from_x[:, : 2 * size] + h @ cell.r[: 2 * size].T + cell.rb[: 2 * size]
    z, r = np.split(f(cell.cut(gates)), 2, axis=1)
    rh, bias = cell.r[2 * size :], cell.rb[2 * size :]
    from_h = r * (h @ rh.T + bias) if cell.option else (r * h) @ rh.T + bias
    new = g(cell.cut(from_x[:, 2 * size :] + from_h))
    return (1 - z) * new + z * h, c


def _lstm_step(cell: _Cell, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    f, g, last = cell.functions
    i, o, forget, new = np.split(x @ cell.w.T + h @ cell.r.T + cell.wb + cell.rb, 4, axis=1)
    see_i, see_o, see_f = np.split(cell.peepholes, 3)
    i = f(cell.cut(i + see_i * c))
    forget = 1 - i if cell.option else f(cell.cut(forget + see_f * c))
    c = forget * c + i * g(cell.cut(new))
    return f(cell.cut(o + see_o * c)) * last(c), c


def _scan(
    step: Step, cell: _Cell, x: Array, h: Array, c: Array, lengths: Array, reverse: bool
) -> list[Array]:
    """Return [length, batch, hidden], last h, last c. Steps beyond a sample's length give 0 and keep its state."""
    y = np.zeros((x.shape[0], *h.shape))
    for t in range(x.shape[0]):
        alive = t < lengths
        at = np.where(alive, lengths - 1 - t, t) if reverse else np.full(lengths.shape, t)
        rows = np.arange(x.shape[1])
        new_h, new_c = step(cell, x[at, rows], h, c)
        h, c = (np.where(alive[:, None], new, old) for new, old in ((new_h, h), (new_c, c)))
        y[at, rows] = np.where(alive[:, None], h, 0.0)
    return [y, h, c]


def _layer(
    kind: str,
    step: Step,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    h0: Array | None,
    c0: Array | None,
    peepholes: Array | None,
    direction: str,
    activations: Sequence[str],
    alpha: Sequence[float],
    beta: Sequence[float],
    clip: float | None,
    batch_first: bool,
    option: bool,
) -> tuple[Array, Array, Array]:
    """Return y, last h, last c of all directions."""
    if batch_first:
        x = x.swapaxes(0, 1)
        h0, c0 = (None if s is None else s.swapaxes(0, 1) for s in (h0, c0))
    directions, hidden = r.shape[0], r.shape[2]
    gates = w.shape[1]
    b = np.zeros((directions, 2 * gates)) if b is None else b
    peepholes = np.zeros((directions, 3 * hidden)) if peepholes is None else peepholes
    empty = np.zeros((directions, x.shape[1], hidden))
    h0, c0 = (empty if s is None else s for s in (h0, c0))
    lengths = np.full(x.shape[1], x.shape[0]) if lengths is None else lengths.astype(np.int64)
    names = tuple(activations) or _DEFAULT[kind] * directions
    per_direction = len(_DEFAULT[kind])
    functions = _activations(names, alpha, beta)
    results = []
    for d in range(directions):
        cell = _Cell(
            w[d],
            r[d],
            b[d, :gates],
            b[d, gates:],
            peepholes[d],
            functions[d * per_direction : (d + 1) * per_direction],
            clip,
            option,
        )
        reverse = direction == "reverse" or d == 1
        results.append(_scan(step, cell, x, h0[d], c0[d], lengths, reverse))
    y = np.stack([result[0] for result in results], axis=1)  # [length, directions, batch, hidden]
    h, c = (np.stack([result[i] for result in results]) for i in (1, 2))
    if batch_first:
        return y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
    return y, h, c


def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    h0: Array | None,
    *,
    direction: str,
    activations: Sequence[str],
    alpha: Sequence[float],
    beta: Sequence[float],
    clip: float | None,
    batch_first: bool,
) -> tuple[Array, Array]:
    """Compute h = f(x W' + h R' + b)."""
    y, h, _ = _layer(
        "rnn", _rnn_step, x, w, r, b, lengths, h0, None, None,
        direction, activations, alpha, beta, clip, batch_first, False,
    )  # fmt: skip
    return y, h


def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    h0: Array | None,
    *,
    direction: str,
    activations: Sequence[str],
    alpha: Sequence[float],
    beta: Sequence[float],
    clip: float | None,
    batch_first: bool,
    linear_before_reset: bool,
) -> tuple[Array, Array]:
    """Compute z, r = f(...); new = g(... r ...); h = (1 - z) new + z h. Gates z r h."""
    y, h, _ = _layer(
        "gru", _gru_step, x, w, r, b, lengths, h0, None, None,
        direction, activations, alpha, beta, clip, batch_first, linear_before_reset,
    )  # fmt: skip
    return y, h


def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    lengths: Array | None,
    h0: Array | None,
    c0: Array | None,
    peepholes: Array | None,
    *,
    direction: str,
    activations: Sequence[str],
    alpha: Sequence[float],
    beta: Sequence[float],
    clip: float | None,
    batch_first: bool,
    input_forget: bool,
) -> tuple[Array, Array, Array]:
    """Compute i, o, f = f(...); c = f c + i g(...); h = o h(c). Gates i o f c; peepholes i o f; input_forget couples f = 1 - i."""
    return _layer(
        "lstm", _lstm_step, x, w, r, b, lengths, h0, c0, peepholes,
        direction, activations, alpha, beta, clip, batch_first, input_forget,
    )  # fmt: skip


RULES: dict[str, InterpRule] = {"rnn": wide(rnn), "gru": wide(gru), "lstm": wide(lstm)}
