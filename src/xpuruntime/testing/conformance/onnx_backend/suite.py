"""The onnx package's own backend suite, for judging us: its cases (``onnx_cases``), its comparison, and what became of each.

    from xpuruntime.testing.conformance.onnx_backend.suite import cases, interpret, session
    verdicts = [interpret(case) for case in cases("node")]

``interpret`` runs a case through the frontend and the NumPy interpreter; ``session`` through InferenceSession; ``vendor`` through
ONNX Runtime's own API without us; ``round_trip`` compares a model with what the frontend and the writer make of it, both on ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import InputError, XpuError
from ....ir.graph import Graph
from ....protocols import Array
from .cases import KINDS, Case, Outcome, Verdict, cases
from .vendors import ort_session, vendor_outputs

__all__ = [
    "KINDS",
    "Case",
    "Lowered",
    "Outcome",
    "Verdict",
    "cases",
    "differs",
    "interpret",
    "lowered",
    "round_trip",
    "session",
    "vendor",
]


def differs(case: Case, expected: Sequence[Any], got: Sequence[Any], ulps: int = 0) -> str:
    """Empty when the suite's own comparison holds, else what it says. ``ulps``: steps of the output's float type that a
    difference may also be (the suite's answers round inner steps to that type; ours, or a vendor's, need not).
    """
    from onnx.backend.test.runner import Runner

    try:
        Runner.assert_similar_outputs(expected, got, case.rtol, case.atol)
    except (AssertionError, TypeError, ValueError) as error:
        if ulps and all(_within(e, g, ulps) for e, g in zip(expected, got, strict=True)):
            return ""
        return " ".join(str(error).split())[:300]
    return ""


def _within(expected: Array, got: Array, ulps: int) -> bool:
    if expected.dtype != got.dtype or expected.shape != got.shape:
        return False
    import ml_dtypes

    step = float(ml_dtypes.finfo(expected.dtype).eps)
    a, b = expected.astype(np.float64), got.astype(np.float64)
    scale = np.maximum(np.abs(a), np.max(np.abs(a), initial=0.0) * 2.0**-4)
    return bool(np.all(np.abs(a - b) <= ulps * step * scale))


# ── the judged ──


@dataclass(frozen=True)
class Lowered:
    """A case's graph. ``opaque``: why it is none (empty: it is); ``bound``: inputs whose content was bound."""

    graph: Graph
    weights: Mapping[str, Array]
    opaque: str
    bound: tuple[str, ...]


def lowered(case: Case, feeds: Mapping[str, Any]) -> Lowered:
    """The frontend's graph. Inputs that decide shapes are bound where the model is not lowered without. Raises XpuError."""
    from ....frontends.onnx import import_onnx
    from ....ir import verify

    bound: dict[str, Any] = {}
    for _ in range(4):
        graph, weights = import_onnx(case.model, bind=bound)
        opaque = [n for n in graph if n.op == "opaque"]
        wanted = [n for n in graph.metadata["deciding"] if n not in bound and n in feeds]
        if not opaque or not wanted:
            break
        bound |= {n: feeds[n] for n in wanted}
    why = "; ".join(sorted({f"{n.attrs['op_type']}: {n.attrs['reason']}" for n in opaque}))
    borders = (*graph.inputs, *(graph.values[o.value] for o in graph.outputs))
    if not why and any(v.spec is None for v in borders):
        why = "values that are no tensors"
    return Lowered(graph if why else verify(graph), weights, why, tuple(bound))


def interpret(case: Case, ulps: int = 0) -> Verdict:
    """Frontend, then interpreter."""
    from ....ir import interp

    every: dict[str, None] = {}
    for inputs, expected in case.data():
        feeds = dict(zip(case.inputs, inputs, strict=False))
        bound: tuple[str, ...] = ()
        try:
            found = lowered(case, feeds)
            bound = found.bound
            if found.opaque:
                return Verdict(case.name, case.kind, Outcome.OPAQUE, found.opaque, bound)
            every |= dict.fromkeys(bound)
            made = interp.run(found.graph, feeds, weights=found.weights)
        except XpuError as error:
            return Verdict(case.name, case.kind, Outcome.REFUSED, str(error), bound)
        wrong = differs(case, expected, [made[o.name] for o in found.graph.outputs], ulps)
        if wrong:
            return Verdict(case.name, case.kind, Outcome.WRONG, wrong, bound)
    return Verdict(case.name, case.kind, Outcome.RIGHT, bound=tuple(every))


def session(case: Case, ulps: int = 0, engine: str = "onnxruntime", device: str = "cpu") -> Verdict:
    """InferenceSession on a vendor's engine."""
    from ....inference.session import InferenceSession

    try:
        with InferenceSession(case.model, engine=engine, device=device) as sess:
            for inputs, expected in case.data():
                made = sess.run(dict(zip(case.inputs, inputs, strict=False)))
                wrong = differs(case, expected, [made[o.name] for o in case.model.graph.output], ulps)
                if wrong:
                    return Verdict(case.name, case.kind, Outcome.WRONG, wrong)
    except (XpuError, InputError) as error:
        return Verdict(case.name, case.kind, Outcome.REFUSED, str(error))
    return Verdict(case.name, case.kind, Outcome.RIGHT)


def vendor(case: Case, ulps: int = 0) -> Verdict:
    """ONNX Runtime by its own Python API, as its users call it; no code of ours between."""
    try:
        for inputs, expected in case.data():
            made = vendor_outputs("onnxruntime", case.model, dict(zip(case.inputs, inputs, strict=False)))
            wrong = differs(case, expected, made, ulps)
            if wrong:
                return Verdict(case.name, case.kind, Outcome.WRONG, wrong)
    except Exception as error:  # the vendor's exceptions have no common base but Exception
        return Verdict(case.name, case.kind, Outcome.REFUSED, " ".join(str(error).split())[:300])
    return Verdict(case.name, case.kind, Outcome.RIGHT)


def round_trip(model: Any, feeds: Mapping[str, Any], rtol: float = 1e-4, atol: float = 1e-5) -> str:
    """Empty when ONNX -> IR -> ONNX gives on ONNX Runtime what the model itself gives there, else what differs. ``skipped: ...``
    where ONNX Runtime refuses the model itself. Raises XpuError where the graph cannot be read or written.
    """
    from ....frontends.onnx import import_onnx
    from ....frontends.onnx_writer import to_onnx

    try:
        expected = ort_session(model).run(None, dict(feeds))
    except Exception as error:  # the vendor's exceptions have no common base but Exception
        return f"skipped: {' '.join(str(error).split())[:200]}"
    graph, weights = import_onnx(model)
    written = to_onnx(graph, weights)
    try:
        made = ort_session(written).run(None, dict(feeds))
    except Exception as error:
        return f"the written model does not run: {' '.join(str(error).split())[:300]}"
    for a, b in zip(expected, made, strict=True):
        said = _compare(a, b, rtol, atol)
        if said:
            return said
    return ""


def _compare(a: Any, b: Any, rtol: float, atol: float) -> str:
    if isinstance(a, list):
        return next((s for x, y in zip(a, b, strict=True) if (s := _compare(x, y, rtol, atol))), "")
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)} became {b.dtype}{list(b.shape)}"
    if a.dtype.kind not in "fc":
        return "" if np.array_equal(a, b) else "integers, text or truth values differ"
    try:
        np.testing.assert_allclose(b, a, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""
