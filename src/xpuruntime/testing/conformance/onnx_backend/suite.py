"""The onnx package's backend suite for our engines: its cases (``onnx_cases``), its comparison, and outcomes.

    from xpuruntime.testing.conformance.onnx_backend.suite import cases, interpret, session
    verdicts = [interpret(case) for case in cases("node")]

``interpret`` runs a case through the frontend and the NumPy interpreter, ``session`` through InferenceSession, ``vendor`` through
ONNX Runtime's own API. ``round_trip`` compares a model with its import and export, both on ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ....errors import InputError, XpuError
from ....ir.graph import Graph
from ....protocols import Array
from .cases import KINDS, BackendCase, CaseVerdict, Outcome, cases
from .vendors import ort_session, vendor_outputs

__all__ = [
    "KINDS",
    "BackendCase",
    "CaseVerdict",
    "LoweredCase",
    "Outcome",
    "cases",
    "differs",
    "differs_in_form",
    "interpret",
    "lowered",
    "round_trip",
    "session",
    "vendor",
]


def differs(case: BackendCase, expected: Sequence[Any], outputs: Sequence[Any], ulps: int = 0) -> str:
    """Return an empty text if the suite's own comparison holds, otherwise its message. ``ulps``: steps of the output's float type that a
    difference may also have (the suite's answers round inner steps to that type; other implementations need not).
    """
    from onnx.backend.test.runner import Runner

    try:
        Runner.assert_similar_outputs(expected, outputs, case.rtol, case.atol)
    except (AssertionError, TypeError, ValueError) as error:
        if ulps and all(_within(e, g, ulps) for e, g in zip(expected, outputs, strict=True)):
            return ""
        return " ".join(str(error).split())[:300]
    return ""


def differs_in_form(expected: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Return an empty text if the types and shapes of outputs that are drawn at random are as expected, otherwise the difference."""
    forms = [[f"{np.asarray(a).dtype}{list(np.shape(a))}" for a in side] for side in (expected, outputs)]
    return "" if forms[0] == forms[1] else f"{', '.join(forms[1])} instead of {', '.join(forms[0])}"


def _within(expected: Array, actual: Array, ulps: int) -> bool:
    if expected.dtype != actual.dtype or expected.shape != actual.shape:
        return False
    import ml_dtypes

    step = float(ml_dtypes.finfo(expected.dtype).eps)
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    scale = np.maximum(np.abs(a), np.max(np.abs(a), initial=0.0) * 2.0**-4)
    return bool(np.all(np.abs(a - b) <= ulps * step * scale))


# ── checks ──


@dataclass(frozen=True)
class LoweredCase:
    """A case's graph. ``opaque``: why it was not lowered (empty: it was); ``bound``: inputs whose content was bound."""

    graph: Graph
    weights: Mapping[str, Array]
    opaque: str
    bound: tuple[str, ...]


def lowered(case: BackendCase, feeds: Mapping[str, Any], *, settle: bool = False) -> LoweredCase:
    """Return the frontend's graph. Inputs that determine shapes are bound if lowering needs them. Raises XpuError.

    settle: bind them also where the graph could find out the sizes at run time, for engines with static shapes.
    """
    from ....frontends.onnx.importer import import_onnx
    from ....inference.native.model import is_settled
    from ....ir import verify

    bound: dict[str, Any] = {}
    while True:
        graph, weights = import_onnx(case.model, bind=bound)
        opaque = [n for n in graph if n.op == "opaque"]
        deciding = {n: feeds[n] for n in graph.metadata["deciding"] if n not in bound and n in feeds}
        untyped = any(v.spec is None for v in graph.inputs)
        if not deciding or (not opaque and (not settle or untyped or is_settled(graph))):
            break
        bound |= deciding
    why = "; ".join(sorted({f"{n.attrs['op_type']}: {n.attrs['reason']}" for n in opaque}))
    borders = (*graph.inputs, *(graph.values[o.value] for o in graph.outputs))
    if not why and any(v.spec is None for v in borders):
        why = "values that are no tensors"
    return LoweredCase(graph if why else verify(graph), weights, why, tuple(bound))


def interpret(case: BackendCase, ulps: int = 0) -> CaseVerdict:
    """Check a case through the frontend and the interpreter."""
    from ....ir import interp

    all_bound: dict[str, None] = {}
    for inputs, expected in case.data():
        feeds = dict(zip(case.inputs, inputs, strict=False))
        bound: tuple[str, ...] = ()
        try:
            lowered_case = lowered(case, feeds)
            bound = lowered_case.bound
            if lowered_case.opaque:
                return CaseVerdict(case.name, case.kind, Outcome.OPAQUE, lowered_case.opaque, bound)
            all_bound |= dict.fromkeys(bound)
            outputs = interp.run(lowered_case.graph, feeds, weights=lowered_case.weights)
        except XpuError as error:
            return CaseVerdict(case.name, case.kind, Outcome.REFUSED, str(error), bound)
        wrong = differs(case, expected, [outputs[o.name] for o in lowered_case.graph.outputs], ulps)
        if wrong:
            return CaseVerdict(case.name, case.kind, Outcome.WRONG, wrong, bound)
    return CaseVerdict(case.name, case.kind, Outcome.RIGHT, bound=tuple(all_bound))


def session(
    case: BackendCase, ulps: int = 0, engine: str = "onnxruntime", device: str = "cpu"
) -> CaseVerdict:
    """Check a case through InferenceSession on a vendor's engine."""
    from ....inference.session import InferenceSession

    try:
        with InferenceSession(case.model, engine=engine, device=device) as sess:
            for inputs, expected in case.data():
                outputs = sess.run(dict(zip(case.inputs, inputs, strict=False)))
                wrong = differs(case, expected, [outputs[o.name] for o in case.model.graph.output], ulps)
                if wrong:
                    return CaseVerdict(case.name, case.kind, Outcome.WRONG, wrong)
    except (XpuError, InputError) as error:
        return CaseVerdict(case.name, case.kind, Outcome.REFUSED, str(error))
    return CaseVerdict(case.name, case.kind, Outcome.RIGHT)


def vendor(case: BackendCase, ulps: int = 0) -> CaseVerdict:
    """Check a case through ONNX Runtime's own Python API, without our code."""
    try:
        for inputs, expected in case.data():
            outputs = vendor_outputs("onnxruntime", case.model, dict(zip(case.inputs, inputs, strict=False)))
            wrong = differs(case, expected, outputs, ulps)
            if wrong:
                return CaseVerdict(case.name, case.kind, Outcome.WRONG, wrong)
    except Exception as error:  # the vendor's exceptions share no base class but Exception
        return CaseVerdict(case.name, case.kind, Outcome.REFUSED, " ".join(str(error).split())[:300])
    return CaseVerdict(case.name, case.kind, Outcome.RIGHT)


def round_trip(model: Any, feeds: Mapping[str, Any], rtol: float = 1e-4, atol: float = 1e-5) -> str:
    """Compare the results of a model and of its ONNX -> IR -> ONNX round trip on ONNX Runtime. Return an empty text, or the difference;
    ``skipped: ...`` if ONNX Runtime refuses the model itself. Raises XpuError if the graph cannot be read or written.
    """
    from ....frontends.onnx.importer import import_onnx
    from ....frontends.onnx_writer import to_onnx

    try:
        expected = ort_session(model).run(None, dict(feeds))
    except Exception as error:  # the vendor's exceptions share no base class but Exception
        return f"skipped: {' '.join(str(error).split())[:200]}"
    graph, weights = import_onnx(model)
    exported = to_onnx(graph, weights)
    try:
        outputs = ort_session(exported).run(None, dict(feeds))
    except Exception as error:
        return f"the written model does not run: {' '.join(str(error).split())[:300]}"
    for a, b in zip(expected, outputs, strict=True):
        difference = _compare(a, b, rtol, atol)
        if difference:
            return difference
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
