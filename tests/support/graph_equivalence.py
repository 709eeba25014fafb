"""Equivalence of two graphs, which every pass must preserve. The interpreter runs both on the same random arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xpuruntime.ir import Graph, interp
from xpuruntime.numerics import compare, tolerance_for

from .graphs import arrays_for

__all__ = ["difference"]


def difference(
    before: Graph,
    after: Graph,
    feeds: Mapping[str, Any] | None = None,
    weights: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
) -> str:
    """Return the first output or state of ``after`` that differs from that of ``before``, and how; empty if all agree.

    feeds, weights: arrays by name. Default: random ones. tolerance: default: that of the coarsest float dtype in either graph.
    """
    default_feeds, params = arrays_for(before)
    states: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    want, actual_outputs = (
        interp.run(
            g,
            default_feeds if feeds is None else feeds,
            weights=params if weights is None else weights,
            states=s,
        )
        for g, s in zip((before, after), states, strict=True)
    )
    values = [v.spec.dtype for g in (before, after) for v in g.values.values() if v.spec is not None]
    allowed = tolerance_for(*(d for d in values if d.is_float)) if tolerance is None else tolerance
    pairs = [(n, want[n], actual_outputs[n]) for n in want] + [
        (n, states[0][n], states[1][n]) for n in states[0]
    ]
    for name, reference, actual in pairs:
        if actual.dtype != reference.dtype:
            return f"{name}: {actual.dtype} for {reference.dtype}"
        comparison = compare(name, actual, reference, allowed)
        if not comparison.ok:
            return f"{name}: {comparison.reason}"
    return ""
