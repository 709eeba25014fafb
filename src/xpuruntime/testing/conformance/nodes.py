"""The onnx package's node cases: each on the subject, compared as the suite compares."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

from .finding import Finding
from .onnx_backend.coverage import known_cases
from .onnx_backend.native import judge_natively
from .onnx_backend.suite import Case, Outcome, cases, differs, session
from .subject import Subject
from .vendor import excused

__all__ = ["NEEDS", "findings"]

NEEDS = ("onnx",)
_OUTCOMES = {Outcome.OPAQUE: "refused"}


def chosen(sample: int) -> list[Case]:
    """All node cases, or up to ``sample`` of each first op, spread over them."""
    every = list(cases("node"))
    if not sample:
        return every
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in every:
        groups[case.ops[0] if case.ops else ""].append(case)
    return [case for group in groups.values() for case in group[:: -(-len(group) // sample)]]


def findings(subject: Subject, sample: int, jobs: int) -> Iterator[Finding]:
    """A finding per case. An op that the frontend does not lower is refused, too."""
    some = chosen(sample)
    yield from _natively(subject, some, jobs) if subject.is_native else _by_sessions(subject, some)


def _natively(subject: Subject, some: Sequence[Case], jobs: int) -> Iterator[Finding]:
    assert subject.target is not None
    looser = known_cases("native-cuda" if subject.target.kind == "cuda" else "native")
    judged = judge_natively(
        some, target=subject.target, device=subject.device, looser=looser, jobs=jobs, batch=150 if jobs == 1 else 40
    )  # fmt: skip
    for found in judged:
        v = found.verdict
        outcome = "excused" if found.loosened else _OUTCOMES.get(v.outcome, v.outcome)
        yield Finding(v.case, outcome, v.why, found.reason, found.kernels)


def _by_sessions(subject: Subject, some: Sequence[Case]) -> Iterator[Finding]:
    # The suite's newest models are of opsets that ONNX Runtime runs but does not vouch for yet; its own switch is this.
    os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")
    for case in some:
        v = session(case, engine=subject.engine, device=subject.device)
        found = Finding(case.name, _OUTCOMES.get(v.outcome, v.outcome), v.why, v.why[:120])
        for inputs, expected in case.data() if found.outcome == Outcome.WRONG else ():
            feeds = dict(zip(case.inputs, inputs, strict=False))
            found = excused(found, subject.engine, case.model, feeds, partial(differs, case, expected))
        yield found
