"""Attribution of wrong answers of a vendor's engine: if the vendor's own Python API gives the same answer, it is the vendor's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import XpuError
from ...ir import Graph
from ...protocols import Array
from .finding import CaseFinding
from .onnx_backend.vendors import VENDORS, vendor_outputs
from .subject import DeviceUnderTest

__all__ = ["by_session", "excused"]


def excused(
    found: CaseFinding, engine: str, model: Any, feeds: Mapping[str, Any], wrong: Callable[[list[Any]], str]
) -> CaseFinding:
    """Return the finding, or ``excused``. ``wrong`` describes errors in outputs in the model's order; empty for none."""
    if found.outcome != "wrong" or engine not in VENDORS:
        return found
    try:
        said = wrong(vendor_outputs(engine, model, feeds))
    except Exception as error:  # the vendor's exceptions share no base class but Exception
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if not said:
        return found
    return CaseFinding(
        found.case, "excused", f"by {engine}'s own API too: {said}", f"{engine}'s own API is wrong, too"
    )


def by_session(
    subject: DeviceUnderTest, case: str, graph: Graph, feeds: Mapping[str, Array], weights: Mapping[str, Array], wrong: Callable[[list[Any]], str]
) -> CaseFinding:  # fmt: skip
    """Check a graph, exported to ONNX, in a session of a vendor's engine. ``wrong`` as in ``excused``."""
    from ...frontends.onnx_writer import to_onnx
    from ...inference.session import InferenceSession

    op = next(iter(graph)).op
    try:
        model = to_onnx(graph, weights)
        with InferenceSession(model, engine=subject.engine, device=subject.device) as session:
            outputs = session.run(dict(feeds))
    except XpuError as error:
        return CaseFinding(case, "refused", str(error), f"{op}: {error.what}"[:120])
    said = wrong([outputs[o.name] for o in graph.outputs])
    return excused(CaseFinding(case, "wrong" if said else "right", said), subject.engine, model, feeds, wrong)
