"""PyTorch's samples of its ops (OpInfo), each a graph of one node on the subject, compared with PyTorch's answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .finding import CaseFinding
from .opinfo import LOOSE, OpInfoCall, disagreement, graph_of
from .opinfo.native import DTYPES, check_samples, drawn
from .subject import DeviceUnderTest
from .vendor import by_session

__all__ = ["NEEDS", "findings"]

NEEDS = ("torch", "expecttest")
USUAL = 2
"""The default number of samples of each variant and dtype."""


def findings(subject: DeviceUnderTest, sample: int, jobs: int) -> Iterator[CaseFinding]:
    """Yield a finding per sample that is a call of one of our ops, in ten dtypes, then one per entry without samples in this PyTorch."""
    limit, lacking = sample or USUAL, dict[str, str]()
    if not subject.is_native:
        yield from _by_sessions(subject, limit, lacking)
    else:
        yield from _natively(subject, limit, jobs, lacking)
    for name, why in lacking.items():
        yield CaseFinding(name, "not run", why)


def _natively(
    subject: DeviceUnderTest, limit: int, jobs: int, lacking: dict[str, str]
) -> Iterator[CaseFinding]:
    assert subject.target is not None
    size = 250 if jobs == 1 else 60
    for s in check_samples(
        limit=limit, target=subject.target, device=subject.device, jobs=jobs, batch=size, lacking=lacking
    ):
        kernels = tuple(filter(None, s.kernel.split(", ")))
        yield CaseFinding(f"{s.name} {s.dtype}", s.outcome, s.why, s.why[:120], kernels)


def _by_sessions(subject: DeviceUnderTest, limit: int, lacking: dict[str, str]) -> Iterator[CaseFinding]:
    for name, dtype, call in drawn(limit=limit, dtypes=DTYPES, lacking=lacking):
        case = f"{name} {dtype}"
        feeds = {
            f"x{i}": np.array(o, order="C") for i, o in enumerate(call.operands) if isinstance(o, np.ndarray)
        }
        tolerance = LOOSE.get((name, dtype), ())[:2]

        def wrong(outputs: list[Any], call: OpInfoCall = call, tolerance: Any = tolerance) -> str:
            for i, (actual, expected) in enumerate(zip(outputs, call.want, strict=True)):
                if difference := disagreement(np.asarray(actual), expected, tolerance or None):
                    return f"result {i} {difference}: {call.sample}"
            return ""

        yield by_session(subject, case, graph_of(call), feeds, {}, wrong)
