"""Lowerings of recurrent layers: every layer of the stack is one op, with both directions."""

from __future__ import annotations

from collections.abc import Sequence

from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]

_GATES: dict[str, Sequence[int]] = {"rnn": (0,), "gru": (1, 0, 2), "lstm": (0, 3, 1, 2)}
"""Positions in PyTorch's weights of the gates in the IR's order: z r n of a GRU, i o f g of an LSTM."""


def _ordered(n: AtenLoweringContext, op: str, weight: str) -> str:
    """Return a weight or bias of one direction with its gates in the IR's order and a leading dim for the direction."""
    order = _GATES[op]
    if len(order) > 1:
        size = int(n.spec(weight).shape[0]) // len(order)  # type: ignore[arg-type]
        parts = [n.b.slice(weight, dim=0, start=k * size, end=(k + 1) * size, step=1) for k in order]
        weight = str(n.b.cat(*parts, dim=0))
    return str(n.b.unsqueeze(weight, dims=[0]))


def _joined(n: AtenLoweringContext, values: Sequence[str], dim: int = 0) -> str:
    return values[0] if len(values) == 1 else str(n.b.cat(*values, dim=dim))


def _recurrent(op: str, states: int, **attrs: object) -> OpLowering:
    """Return the lowering of a stack of layers; ``states``: number of states of each."""

    def lower(n: AtenLoweringContext) -> Results:
        dropped, training = n["dropout"], n["train"]
        if training and dropped:
            raise NotLowered("dropout between its layers is not supported")
        b, params = n.b, [str(p) for p in n.ts("params")]
        sides, per_direction = 1 + n["bidirectional"], 2 + 2 * n["has_biases"]
        if len(params) != n["num_layers"] * sides * per_direction:
            raise NotLowered("projections (proj_size) are not supported")
        initial = [str(h) for h in n.ts("hx")] if states > 1 else [n.t("hx")]
        x = n.t("input")
        if n["batch_first"]:
            x = str(b.permute(x, dims=[1, 0, 2]))
        length, batch, _ = n.spec(x).shape
        hidden = n.spec(params[1]).shape[-1]
        lasts: list[list[str]] = [[] for _ in initial]
        for layer in range(n["num_layers"]):
            layer_params = params[layer * sides * per_direction : (layer + 1) * sides * per_direction]
            parts = [
                [_ordered(n, op, p) for p in layer_params[k::per_direction]] for k in range(per_direction)
            ]
            w, r, *biases = (_joined(n, p) for p in parts)
            bias = str(b.cat(*biases, dim=1)) if biases else None
            initial_states = [
                b.slice(h, dim=0, start=layer * sides, end=(layer + 1) * sides, step=1) for h in initial
            ]
            direction = "bidirectional" if sides > 1 else "forward"
            y, *final = b.call(
                op, x, w, r, bias, None, *initial_states, hidden_size=hidden, direction=direction, outputs=1 + states,
                **attrs if op != "rnn" else {"activations": [attrs["activation"]] * sides},
            )  # fmt: skip
            x = str(b.view(b.permute(y, dims=[0, 2, 1, 3]), size=[length, batch, sides * int(hidden)]))  # type: ignore[arg-type]
            for last, state in zip(lasts, final, strict=True):
                last.append(state)
        y = str(b.permute(x, dims=[1, 0, 2])) if n["batch_first"] else x
        return [y, *(_joined(n, last) for last in lasts)]

    return lower


LOWERINGS: dict[str, OpLowering] = {
    "gru.input": _recurrent("gru", 1, linear_before_reset=True),
    "lstm.input": _recurrent("lstm", 2),
    "rnn_relu.input": _recurrent("rnn", 1, activation="Relu"),
    "rnn_tanh.input": _recurrent("rnn", 1, activation="Tanh"),
}
