"""mixture: a layer's mixture of experts in a decoder's graph. A router chooses experts for each row, and only their weights are read.

Scores are computed in float32, as in the references.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir import GraphBuilder
from ..types import DType
from .checkpoint.experts import ExpertSizes
from .families.family import ACTIVATIONS

__all__ = ["mixture"]

Weight = Callable[[str], str]
"""Returns the value of a weight by its name in the layer."""


def mixture(b: GraphBuilder, e: ExpertSizes, x: str, weight: Weight, activation: str) -> str:
    """Return the sum of the chosen experts' outputs, weighted by their scores, and of the shared expert's. ``x``: [rows, hidden]."""
    scores, ids = _routed(b, e, b.linear(x, weight(e.names["router"])))
    up = b.expert_linear(
        x, _matrices(b, e, weight, ("gate_up",) if "gate_up" in e.names else ("gate", "up")), ids
    )
    gate, through = b.split(up, sizes=[e.inner, e.inner], dim=2)
    y = b.expert_linear(_gated(b, activation, gate, through), _matrices(b, e, weight, ("down",)), ids)
    dtype = b.spec(x).dtype
    y = y if dtype is DType.FLOAT32 else b.cast(y, dtype=DType.FLOAT32)
    y = b.sum(b.mul(y, b.unsqueeze(scores, dims=[2])), dim=[1])
    y = y if dtype is DType.FLOAT32 else b.cast(y, dtype=dtype)
    return str(y if not e.shared else b.add(y, _shared(b, e, x, weight, activation)))


def _routed(b: GraphBuilder, e: ExpertSizes, logits: str) -> tuple[str, str]:
    """Return the scores and the numbers of the chosen experts, [rows, chosen] each."""
    spec = b.spec(logits)
    logits = logits if spec.dtype is DType.FLOAT32 else b.cast(logits, dtype=DType.FLOAT32)
    scores = b.softmax(logits, dim=1)
    if e.groups > 1:
        scores = _of_best_groups(b, e, scores)
    top, ids = b.topk(scores, k=e.chosen, dim=1)
    if e.normalize:
        top = b.div(top, b.sum(top, dim=[1], keepdim=True))
    return (top if e.scale == 1 else b.mul(top, e.scale)), ids


def _of_best_groups(b: GraphBuilder, e: ExpertSizes, scores: str) -> str:
    """Return the scores, zero outside of the groups with the best expert."""
    rows = b.spec(scores).shape[0]
    grouped = b.view(scores, size=[rows, e.groups, e.count // e.groups])
    _, best = b.topk(b.amax(grouped, dim=[2]), k=e.chosen_groups, dim=1)
    zeros = b.full(size=[rows, e.groups], value=0.0, dtype=DType.FLOAT32)
    ones = b.full(size=[rows, e.chosen_groups], value=1.0, dtype=DType.FLOAT32)
    kept = b.scatter(zeros, best, ones, dim=1)
    return str(b.view(b.mul(grouped, b.unsqueeze(kept, dims=[2])), size=[rows, e.count]))


def _matrices(b: GraphBuilder, e: ExpertSizes, weight: Weight, parts: tuple[str, ...]) -> str:
    """Return the matrices of all experts, [experts, outputs, inputs], with the outputs of ``parts`` one after the other."""
    names = [e.names[part] for part in parts]
    if "{}" not in names[0]:
        stacked = [weight(name) for name in names]
        return stacked[0] if len(stacked) == 1 else str(b.cat(*stacked, dim=1))
    each = [weight(name.format(i)) for i in range(e.count) for name in names]
    columns = b.spec(each[0]).shape[1]
    whole = b.cat(*each, dim=0) if len(each) > 1 else each[0]
    return str(b.view(whole, size=[e.count, -1, columns]))


def _shared(b: GraphBuilder, e: ExpertSizes, x: str, weight: Weight, activation: str) -> str:
    """Return the output of the expert that computes every row."""
    gate, up = (b.linear(x, weight(e.names[part])) for part in ("shared_gate", "shared_up"))
    y = b.linear(_gated(b, activation, gate, up), weight(e.names["shared_down"]))
    if "shared_scale" in e.names:
        y = b.mul(b.sigmoid(b.linear(x, weight(e.names["shared_scale"]))), y)
    return str(y)


def _gated(b: GraphBuilder, activation: str, gate: str, up: str) -> str:
    op, attrs = ACTIVATIONS[activation]
    return str(b.mul(b.call(op, gate, **attrs), up))
