"""Attribution of wrong outputs of a vendor's engine. If the vendor's own Python API returns them, too, the error is the vendor's."""

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
    finding: CaseFinding, engine: str, model: Any, feeds: Mapping[str, Any], wrong: Callable[[list[Any]], str]
) -> CaseFinding:
    """Return the finding; ``excused`` if the vendor's own API is wrong, too. ``wrong`` describes the errors of outputs; empty if they are right."""
    if finding.outcome != "wrong" or engine not in VENDORS:
        return finding
    try:
        difference = wrong(vendor_outputs(engine, model, feeds))
    except Exception as error:  # the vendor's exceptions have no common base class
        difference = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if not difference:
        return finding
    return CaseFinding(
        finding.case,
        "excused",
        f"{engine}'s own API is wrong, too: {difference}",
        f"{engine}'s own API is wrong, too",
    )


def by_session(
    subject: DeviceUnderTest, case: str, graph: Graph, feeds: Mapping[str, Array], weights: Mapping[str, Array], wrong: Callable[[list[Any]], str]
) -> CaseFinding:  # fmt: skip
    """Export a graph to ONNX and check it in a session of a vendor's engine. ``wrong`` is as for ``excused``."""
    from ...frontends.onnx_writer import to_onnx
    from ...inference.session import InferenceSession

    op = next(iter(graph)).op
    try:
        model = to_onnx(graph, weights)
        with InferenceSession(model, engine=subject.engine, device=subject.device) as session:
            outputs = session.run(dict(feeds))
    except XpuError as error:
        return CaseFinding(case, "refused", str(error), f"{op}: {error.what}"[:120])
    difference = wrong([outputs[o.name] for o in graph.outputs])
    return excused(
        CaseFinding(case, "wrong" if difference else "right", difference), subject.engine, model, feeds, wrong
    )
