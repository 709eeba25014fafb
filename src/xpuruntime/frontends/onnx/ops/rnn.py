"""Lowerings of recurrent layers: the IR has ONNX's operands, weights and gate order."""

from __future__ import annotations

from typing import Any

from ...not_lowered import NotLowered
from .context import OnnxLoweringContext, OpLowering, Results, numbers

__all__ = ["LOWERINGS"]


def _recurrent(op: str, outputs: int, flag: str = "", flag_attr: str = "") -> OpLowering:
    def lower(n: OnnxLoweringContext) -> Results:
        clip = n.attr("clip")
        attrs: dict[str, Any] = {
            "hidden_size": n.attr("hidden_size") or numbers(n.spec(2).shape[-1:], "the hidden size")[0],
            "direction": n.attr("direction", "forward"),
            "activations": n.attr("activations") or [],
            "alpha": n.attr("activation_alpha") or [],
            "beta": n.attr("activation_beta") or [],
            "clip": None if clip is None else float(clip),
            "batch_first": bool(n.attr("layout", 0)),
        }
        if flag:
            attrs[flag] = bool(n.attr(flag_attr, 0))
        if "output_sequence" in n.attrs:
            raise NotLowered("output_sequence (opsets below 7) is not supported")
        return tuple(n.b.call(op, *n.inputs, outputs=outputs, **attrs))

    return lower


LOWERINGS: dict[str, OpLowering] = {
    "GRU": _recurrent("gru", 2, "linear_before_reset", "linear_before_reset"),
    "LSTM": _recurrent("lstm", 3, "input_forget", "input_forget"),
    "RNN": _recurrent("rnn", 2),
}
