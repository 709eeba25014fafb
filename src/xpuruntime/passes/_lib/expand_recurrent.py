"""Expansion of recurrent layers into steps, for targets without a kernel: one product for all steps, and a few ops per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...types import DType
from .expansion import Expansion

__all__ = ["expand_recurrent"]

_PLAIN = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}


def expand_recurrent(emit: Expansion) -> None:
    """Expand the layer if its length is static and its activations are plain. Otherwise leave it unchanged."""
    node, attrs = emit.node, emit.node.attrs
    sides = 2 if attrs["direction"] == "bidirectional" else 1
    names = [a.lower() for a in attrs["activations"]] or list(_PLAIN[node.op]) * sides
    unsupported = attrs["clip"] is not None or attrs["alpha"] or attrs["beta"] or attrs.get("input_forget")
    if unsupported or emit.input(4) is not None or emit.input(7) is not None:
        return
    if not set(names) <= {"relu", "sigmoid", "tanh"}:
        return
    time = 1 if attrs["batch_first"] else 0
    x = emit.wide(0)
    length, batch = emit.spec(x).shape[time], emit.spec(x).shape[1 - time]
    if not isinstance(length, int) or not length:
        return
    if time:
        x = emit("permute", x, dims=(1, 0, 2))
    count = len(names) // sides
    directions: list[list[str]] = []
    for side in range(sides):
        backward = attrs["direction"] == "reverse" or side == 1
        layer = _Direction(emit, side, names[side * count : (side + 1) * count], batch)
        directions.append(layer.run(x, length, backward))
    y = _stacked(emit, [m[0] for m in directions], 1)
    if time:
        y = emit("permute", y, dims=(2, 0, 1, 3))
    results = [y]
    for k in range(1, len(node.outputs)):
        state = _stacked(emit, [m[k] for m in directions], 0)
        results.append(emit("permute", state, dims=(1, 0, 2)) if time else state)
    for old, new in zip(node.outputs, results, strict=True):
        dtype = DType.FLOAT32 if old.spec is None else old.spec.dtype
        emit.editor.forward(
            old.name, new if emit.spec(new).dtype is dtype else emit("cast", new, dtype=dtype)
        )


def _stacked(emit: Expansion, values: Sequence[str], dim: int) -> str:
    parts = [emit("unsqueeze", v, dims=(dim,)) for v in values]
    return parts[0] if len(parts) == 1 else emit("cat", *parts, dim=dim)


class _Direction:
    """One direction of a layer."""

    def __init__(self, emit: Expansion, side: int, functions: Sequence[str], batch: Any) -> None:
        self.emit, self.side, self.functions = emit, side, functions
        node = emit.node
        self.op, self.size = node.op, int(node.attrs["hidden_size"])
        self.w, self.r = (emit("select", emit.wide(i), dim=0, index=side) for i in (1, 2))
        rows = emit.spec(self.r).shape[0]
        self.input_bias: tuple[str, ...] = ()
        self.recurrent_bias: tuple[str, ...] = ()
        if emit.input(3) is not None:
            bias = emit("select", emit.wide(3), dim=0, index=side)
            self.input_bias = (emit("slice", bias, dim=0, start=0, end=rows, step=1),)
            self.recurrent_bias = (emit("slice", bias, dim=0, start=rows, end=2 * rows, step=1),)
        kind = emit.spec(self.w).dtype
        self.begin = [
            emit("full", size=(batch, self.size), value=0.0, dtype=kind)
            if emit.input(i) is None
            else emit("select", emit.wide(i), dim=1 if node.attrs["batch_first"] else 0, index=side)
            for i in (5, 6)[: 2 if self.op == "lstm" else 1]
        ]

    def run(self, x: str, length: int, backward: bool) -> list[str]:
        """Return the states of all steps in order, then the last state of each kind."""
        emit = self.emit
        projected = emit("linear", x, self.w, *self.input_bias)
        states, outputs = list(self.begin), [""] * length
        for t in reversed(range(length)) if backward else range(length):
            states = _STEPS[self.op](self, emit("select", projected, dim=0, index=t), *states)
            outputs[t] = states[0]
        return [_stacked(emit, outputs, 0), *states]

    def gates(self, value: str) -> list[str]:
        """Return the parts of a value, one per gate."""
        count = int(self.emit.spec(value).shape[-1]) // self.size  # type: ignore[arg-type]
        cut = {"dim": 1, "step": 1}
        return [
            self.emit("slice", value, start=k * self.size, end=(k + 1) * self.size, **cut)
            for k in range(count)
        ]


def _rnn(layer: _Direction, x: str, h: str) -> list[str]:
    emit = layer.emit
    return [emit(layer.functions[0], emit("add", x, emit("linear", h, layer.r, *layer.recurrent_bias)))]


def _lstm(layer: _Direction, x: str, h: str, c: str) -> list[str]:
    emit, (gate, new, last) = layer.emit, layer.functions
    i, o, f, g = layer.gates(emit("add", x, emit("linear", h, layer.r, *layer.recurrent_bias)))
    remembered = emit("mul", emit(gate, f), c)
    c = emit("add", remembered, emit("mul", emit(gate, i), emit(new, g)))
    return [emit("mul", emit(gate, o), emit(last, c)), c]


def _gru(layer: _Direction, x: str, h: str) -> list[str]:
    emit, (gate, new) = layer.emit, layer.functions
    xz, xr, xn = layer.gates(x)
    if emit.node.attrs["linear_before_reset"]:
        hz, hr, hn = layer.gates(emit("linear", h, layer.r, *layer.recurrent_bias))
        reset = emit(gate, emit("add", xr, hr))
        inner = emit("mul", reset, hn)
    else:
        two = 2 * layer.size
        cut = [
            emit("slice", layer.r, dim=0, start=a, end=b, step=1)
            for a, b in ((0, two), (two, two + layer.size))
        ]
        bias = [
            emit("slice", v, dim=0, start=a, end=b, step=1)
            for v in layer.recurrent_bias
            for a, b in ((0, two), (two, two + layer.size))
        ]
        hz, hr = layer.gates(emit("linear", h, cut[0], *bias[:1]))
        reset = emit(gate, emit("add", xr, hr))
        inner = emit("linear", emit("mul", reset, h), cut[1], *bias[1:])
    z = emit(gate, emit("add", xz, hz))
    n = emit(new, emit("add", xn, inner))
    return [emit("add", n, emit("mul", z, emit("sub", h, n)))]


_STEPS: Mapping[str, Callable[..., list[str]]] = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}
