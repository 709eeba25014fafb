"""Whose a wrong answer of a vendor's engine is: where the vendor's own Python API gives it as well, it is the vendor's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import XpuError
from ...ir import Graph
from ...protocols import Array
from .finding import Finding
from .onnx_backend.vendors import VENDORS, vendor_outputs
from .subject import Subject

__all__ = ["by_session", "excused"]


def excused(
    found: Finding, engine: str, model: Any, feeds: Mapping[str, Any], wrong: Callable[[list[Any]], str]
) -> Finding:
    """The finding, or ``excused``. ``wrong``: what is wrong with outputs in the model's order, empty for nothing."""
    if found.outcome != "wrong" or engine not in VENDORS:
        return found
    try:
        said = wrong(vendor_outputs(engine, model, feeds))
    except Exception as error:  # the vendor's exceptions have no common base but Exception
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if not said:
        return found
    return Finding(
        found.case, "excused", f"by {engine}'s own API too: {said}", f"{engine}'s own API is not right either"
    )


def by_session(
    subject: Subject, case: str, graph: Graph, feeds: Mapping[str, Array], weights: Mapping[str, Array], wrong: Callable[[list[Any]], str]
) -> Finding:  # fmt: skip
    """A graph, written as ONNX, in a session of a vendor's engine. ``wrong`` as in ``excused``."""
    from ...frontends.onnx_writer import to_onnx
    from ...inference.session import InferenceSession

    op = next(iter(graph)).op
    try:
        model = to_onnx(graph, weights)
        with InferenceSession(model, engine=subject.engine, device=subject.device) as session:
            made = session.run(dict(feeds))
    except XpuError as error:
        return Finding(case, "refused", str(error), f"{op}: {error.what}"[:120])
    said = wrong([made[o.name] for o in graph.outputs])
    return excused(Finding(case, "wrong" if said else "right", said), subject.engine, model, feeds, wrong)
