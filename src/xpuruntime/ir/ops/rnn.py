"""Recurrent layers with ONNX's weights and gate order (LSTM: i o f c; GRU: z r h).

X is [length, batch, input], or [batch, length, input] with batch_first (ONNX layout 1); W is [directions, gates*hidden, input],
R [directions, gates*hidden, hidden], B [directions, 2*gates*hidden].
"""

from __future__ import annotations

from ...types import DimLike, TensorSpec
from ..schema import Mismatch, OpCall, OpEntry, op
from ._shapes import like, same
from .matmul import one_dtype

__all__ = ["ROWS"]

_ATTRS = (
    "hidden_size: int, direction: forward|reverse|bidirectional = forward, activations: strs = [], alpha: floats = [],"
    " beta: floats = [], clip: float? = none, batch_first: bool = false"
)


def _recurrent(c: OpCall) -> list[TensorSpec]:
    x, w, r = c.tensor(0), c.tensor(1), c.tensor(2)
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[c.op.name]
    directions = 2 if c["direction"] == "bidirectional" else 1
    hidden = c["hidden_size"]
    if not x.rank == w.rank == r.rank == 3:
        raise Mismatch("x, w and r must have rank 3", f"{x}, {w}, {r}")
    for spec, want in (
        (w, (directions, gates * hidden, x.shape[2])),
        (r, (directions, gates * hidden, hidden)),
    ):
        for a, b in zip(spec.shape, want, strict=True):
            same(a, b, "the weights and [directions, gates*hidden, size]")
    one_dtype(x, w, r)
    lengths = c.optional(4)
    batch, length = (x.shape[0], x.shape[1]) if c["batch_first"] else (x.shape[1], x.shape[0])
    if lengths is not None:
        if lengths.rank != 1:
            raise Mismatch("the lengths must have rank 1", str(lengths))
        same(lengths.shape[0], batch, "the number of lengths and the batch")
    sequence: tuple[DimLike, ...]
    state: tuple[DimLike, ...]
    if c["batch_first"]:
        sequence, state = (batch, length, directions, hidden), (batch, directions, hidden)
    else:
        sequence, state = (length, directions, batch, hidden), (directions, batch, hidden)
    return [like(x, sequence), *[like(x, state)] * (2 if c.op.name == "lstm" else 1)]


ROWS: tuple[OpEntry, ...] = (
    op(f"rnn(x, w, r, b?, lengths?, h0?; {_ATTRS}) -> y, h?", "rnn", _recurrent, onnx="RNN"),
    op(
        f"gru(x, w, r, b?, lengths?, h0?; {_ATTRS}, linear_before_reset: bool = false) -> y, h?",
        "rnn",
        _recurrent,
        onnx="GRU",
    ),
    op(
        f"lstm(x, w, r, b?, lengths?, h0?, c0?, peepholes?; {_ATTRS}, input_forget: bool = false) -> y, h?, c?",
        "rnn",
        _recurrent,
        onnx="LSTM",
    ),
)
