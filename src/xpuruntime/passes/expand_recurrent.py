"""Recurrent layers written out step by step, for targets without a kernel of theirs: a product for all steps, and a few ops for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..types import DType
from ._lib.expansion import Expansion

__all__ = ["expand_recurrent"]

_PLAIN = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}


def expand_recurrent(pen: Expansion) -> None:
    """Write the layer out where its length is known and it has no more than activations of its own choice."""
    node, attrs = pen.node, pen.node.attrs
    sides = 2 if attrs["direction"] == "bidirectional" else 1
    names = [a.lower() for a in attrs["activations"]] or list(_PLAIN[node.op]) * sides
    odd = attrs["clip"] is not None or attrs["alpha"] or attrs["beta"] or attrs.get("input_forget")
    if odd or pen.input(4) is not None or pen.input(7) is not None:
        return
    if not set(names) <= {"relu", "sigmoid", "tanh"}:
        return
    time = 1 if attrs["batch_first"] else 0
    x = pen.wide(0)
    length, batch = pen.spec(x).shape[time], pen.spec(x).shape[1 - time]
    if not isinstance(length, int) or not length:
        return
    if time:
        x = pen("permute", x, dims=(1, 0, 2))
    each = len(names) // sides
    made: list[list[str]] = []
    for side in range(sides):
        backward = attrs["direction"] == "reverse" or side == 1
        layer = _Layer(pen, side, names[side * each : (side + 1) * each], batch)
        made.append(layer.run(x, length, backward))
    y = _stacked(pen, [m[0] for m in made], 1)
    if time:
        y = pen("permute", y, dims=(2, 0, 1, 3))
    results = [y]
    for k in range(1, len(node.outputs)):
        state = _stacked(pen, [m[k] for m in made], 0)
        results.append(pen("permute", state, dims=(1, 0, 2)) if time else state)
    for old, new in zip(node.outputs, results, strict=True):
        kind = DType.FLOAT32 if old.spec is None else old.spec.dtype
        pen.editor.forward(old.name, new if pen.spec(new).dtype is kind else pen("cast", new, dtype=kind))


def _stacked(pen: Expansion, values: Sequence[str], dim: int) -> str:
    parts = [pen("unsqueeze", v, dims=(dim,)) for v in values]
    return parts[0] if len(parts) == 1 else pen("cat", *parts, dim=dim)


class _Layer:
    """One direction."""

    def __init__(self, pen: Expansion, side: int, functions: Sequence[str], batch: Any) -> None:
        self.pen, self.side, self.functions = pen, side, functions
        node = pen.node
        self.op, self.size = node.op, int(node.attrs["hidden_size"])
        self.w, self.r = (pen("select", pen.wide(i), dim=0, index=side) for i in (1, 2))
        rows = pen.spec(self.r).shape[0]
        self.of_x: tuple[str, ...] = ()
        self.of_h: tuple[str, ...] = ()
        if pen.input(3) is not None:
            bias = pen("select", pen.wide(3), dim=0, index=side)
            self.of_x = (pen("slice", bias, dim=0, start=0, end=rows, step=1),)
            self.of_h = (pen("slice", bias, dim=0, start=rows, end=2 * rows, step=1),)
        kind = pen.spec(self.w).dtype
        self.begin = [
            pen("full", size=(batch, self.size), value=0.0, dtype=kind)
            if pen.input(i) is None
            else pen("select", pen.wide(i), dim=1 if node.attrs["batch_first"] else 0, index=side)
            for i in (5, 6)[: 2 if self.op == "lstm" else 1]
        ]

    def run(self, x: str, length: int, backward: bool) -> list[str]:
        """All states in order, and the last of each."""
        pen = self.pen
        given = pen("linear", x, self.w, *self.of_x)
        states, seen = list(self.begin), [""] * length
        for t in reversed(range(length)) if backward else range(length):
            states = _STEPS[self.op](self, pen("select", given, dim=0, index=t), *states)
            seen[t] = states[0]
        return [_stacked(pen, seen, 0), *states]

    def gates(self, value: str) -> list[str]:
        """Its parts, one for each gate."""
        count = int(self.pen.spec(value).shape[-1]) // self.size  # type: ignore[arg-type]
        cut = {"dim": 1, "step": 1}
        return [
            self.pen("slice", value, start=k * self.size, end=(k + 1) * self.size, **cut)
            for k in range(count)
        ]


def _rnn(layer: _Layer, x: str, h: str) -> list[str]:
    pen = layer.pen
    return [pen(layer.functions[0], pen("add", x, pen("linear", h, layer.r, *layer.of_h)))]


def _lstm(layer: _Layer, x: str, h: str, c: str) -> list[str]:
    pen, (gate, new, last) = layer.pen, layer.functions
    i, o, f, g = layer.gates(pen("add", x, pen("linear", h, layer.r, *layer.of_h)))
    kept = pen("mul", pen(gate, f), c)
    c = pen("add", kept, pen("mul", pen(gate, i), pen(new, g)))
    return [pen("mul", pen(gate, o), pen(last, c)), c]


def _gru(layer: _Layer, x: str, h: str) -> list[str]:
    pen, (gate, new) = layer.pen, layer.functions
    xz, xr, xn = layer.gates(x)
    if pen.node.attrs["linear_before_reset"]:
        hz, hr, hn = layer.gates(pen("linear", h, layer.r, *layer.of_h))
        reset = pen(gate, pen("add", xr, hr))
        inner = pen("mul", reset, hn)
    else:
        two = 2 * layer.size
        cut = [
            pen("slice", layer.r, dim=0, start=a, end=b, step=1)
            for a, b in ((0, two), (two, two + layer.size))
        ]
        bias = [
            pen("slice", v, dim=0, start=a, end=b, step=1)
            for v in layer.of_h
            for a, b in ((0, two), (two, two + layer.size))
        ]
        hz, hr = layer.gates(pen("linear", h, cut[0], *bias[:1]))
        reset = pen(gate, pen("add", xr, hr))
        inner = pen("linear", pen("mul", reset, h), cut[1], *bias[1:])
    z = pen(gate, pen("add", xz, hz))
    n = pen(new, pen("add", xn, inner))
    return [pen("add", n, pen("mul", z, pen("sub", h, n)))]


_STEPS: Mapping[str, Callable[..., list[str]]] = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}
