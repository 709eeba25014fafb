"""What ONNX Runtime and the importer make of one random case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import onnxruntime as ort

from xpuruntime.errors import XpuError
from xpuruntime.frontends.onnx.importer import import_onnx
from xpuruntime.ir import interp

from ..case import Case, feeds_of, proto_of

__all__ = ["Outcome", "disagreement", "outcome"]

_ROUNDING = {"DynamicQuantizeLSTM": 5e-2}
"""Ops whose activations ONNX Runtime rounds to bytes."""


class Outcome(NamedTuple):
    """wants: ONNX Runtime's results, None if it refuses the case. gots: ours, None if it is refused, with the reason."""

    wants: Sequence[np.ndarray] | None
    gots: Sequence[np.ndarray] | None
    reason: str


def outcome(case: Case) -> Outcome:
    """Compute the case on both sides. Only errors with a reason count as refusals here."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    wants = None
    try:
        session = ort.InferenceSession(
            proto_of(case).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        wants = session.run(None, feeds_of(case))
    except Exception:  # ONNX Runtime has no common class for its refusals
        wants = None
    graph, weights = import_onnx(proto_of(case))
    opaque = next((n for n in graph.nodes if n.op == "opaque"), None)
    if opaque is not None:
        return Outcome(wants, None, str(opaque.attrs["reason"]))
    try:
        with np.errstate(all="ignore"):
            results = interp.run(graph, feeds_of(case), weights=weights)
    except XpuError as error:
        return Outcome(wants, None, str(error))
    return Outcome(wants, [np.asarray(results[o.value]) for o in graph.outputs], "")


def disagreement(case: Case, gots: Sequence[np.ndarray], wants: Sequence[np.ndarray]) -> str:
    """Return how the first result differs; nothing if all agree."""
    half = any(np.asarray(o).dtype == np.float16 for o in case.operands if o is not None)
    limit = _ROUNDING.get(case.op, 2e-2 if half else 5e-4)
    for position, got, want in zip(sorted(case.outputs), gots, wants, strict=True):
        if why := _differs(np.asarray(got), np.asarray(want), limit):
            return f"output {position}: {why}"
    return ""


def _differs(got: np.ndarray, want: np.ndarray, limit: float) -> str:
    if want.dtype != object and (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if not got.size:  # of some empty results ONNX Runtime returns no array
        return ""
    if want.dtype.kind in "iub":
        steps = int(np.abs(got.astype(np.int64) - want).max())
        return "" if steps <= (1 if want.dtype.itemsize < 4 else 0) else f"{steps} codes"
    g, w = got.astype(np.float64), want.astype(np.float64)
    if (np.isnan(g) != np.isnan(w)).any():
        return f"{np.isnan(g).sum()} NaN instead of {np.isnan(w).sum()}"
    unbounded = np.isinf(g) | np.isinf(w)
    if (g[unbounded] != w[unbounded]).any():
        return "other infinities"
    finite = ~np.isnan(w) & ~unbounded
    if not finite.any():
        return ""
    distance = float(np.abs(g[finite] - w[finite]).max())
    largest = max(float(np.abs(w[finite]).max()), 1e-4)
    return (
        "" if distance < 1e-6 or distance <= limit * largest else f"{distance / largest:.3g} of the largest"
    )
