"""The onnx package's node cases on the subject, compared as the suite compares."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from .finding import CaseFinding
from .onnx_backend.coverage import known_cases
from .onnx_backend.native import check_natively
from .onnx_backend.suite import BackendCase, Outcome, cases, differs, session
from .subject import DeviceUnderTest
from .vendor import excused

__all__ = ["NEEDS", "findings"]

NEEDS = ("onnx",)
_OUTCOMES = {Outcome.OPAQUE: "refused"}


def chosen(sample: int) -> list[BackendCase]:
    """Return all node cases, or up to ``sample`` of each first op, spread over them."""
    all_cases = list(cases("node"))
    if not sample:
        return all_cases
    groups: dict[str, list[BackendCase]] = defaultdict(list)
    for case in all_cases:
        groups[case.ops[0] if case.ops else ""].append(case)
    return [case for group in groups.values() for case in group[:: -(-len(group) // sample)]]


def findings(subject: DeviceUnderTest, sample: int, jobs: int) -> Iterator[CaseFinding]:
    """Yield a finding per case. An op that the frontend does not lower counts as refused."""
    selected = chosen(sample)
    yield from _natively(subject, selected, jobs) if subject.is_native else _by_sessions(subject, selected)


def _natively(subject: DeviceUnderTest, selected: Sequence[BackendCase], jobs: int) -> Iterator[CaseFinding]:
    assert subject.target is not None
    looser = known_cases("native-cuda" if subject.target.kind == "cuda" else "native")
    verdicts = check_natively(
        selected, target=subject.target, device=subject.device, looser=looser, jobs=jobs, batch=150 if jobs == 1 else 40
    )  # fmt: skip
    for native in verdicts:
        v = native.verdict
        outcome = "excused" if native.loosened else _OUTCOMES.get(v.outcome, v.outcome)
        yield CaseFinding(v.case, outcome, v.why, native.reason, native.kernels)


def _by_sessions(subject: DeviceUnderTest, selected: Sequence[BackendCase]) -> Iterator[CaseFinding]:
    # The suite's newest models use opsets that ONNX Runtime runs without official support; this variable enables it.
    os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    for case in selected:
        v = session(case, engine=subject.engine, device=subject.device)
        finding = CaseFinding(case.name, _OUTCOMES.get(v.outcome, v.outcome), v.why, v.why[:120])
        for inputs, expected in case.data() if finding.outcome == Outcome.WRONG else ():
            feeds = dict(zip(case.inputs, inputs, strict=False))
            finding = excused(finding, subject.engine, case.model, feeds, partial(differs, case, expected))
        yield finding
