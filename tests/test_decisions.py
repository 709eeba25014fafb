"""A no without a reason cannot be said, and a decision survives being written down."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.decisions import REASONS, Candidate, Decision, Reason, Support, first_advice
from xpuruntime.printable import line

TEXT = st.text(min_size=1, max_size=20)
FACTS = st.dictionaries(
    TEXT, st.one_of(st.integers(), st.text(), st.floats(allow_nan=False), st.none()), max_size=3
)
CANDIDATES = st.builds(Candidate, TEXT, st.sampled_from(Reason), TEXT, st.text(max_size=9), FACTS)
DECISIONS = st.builds(
    Decision, TEXT, TEXT, st.none() | CANDIDATES, st.lists(CANDIDATES, max_size=3).map(tuple)
)


def test_every_reason_code_is_explained_and_no_two_alike() -> None:
    assert set(REASONS) == set(Reason)
    assert len(set(REASONS.values())) == len(Reason)


@pytest.mark.parametrize("reason", ["", " ", "\n\t"])
def test_a_no_needs_a_reason(reason: str) -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Support.no(Reason.NO_DEVICE, reason)


def test_a_no_needs_a_code() -> None:
    with pytest.raises(ValueError, match="needs a reason"):
        Support(False)
    with pytest.raises(ValueError, match="needs a reason"):
        Support(False, None, "because")
    with pytest.raises(ValueError, match="made_up"):
        Support.no("made_up", "because")  # type: ignore[arg-type]


def test_truth_is_support() -> None:
    assert Support.yes()
    assert not Support.no(Reason.NO_DEVICE, "none here")


def test_only_a_no_rejects() -> None:
    no = Support.no(Reason.NO_DEVICE, " none here ", do="Plug one in.")
    assert Candidate.rejected("npu", no, seen=2) == Candidate(
        "npu", Reason.NO_DEVICE, "none here", "Plug one in.", {"seen": 2}
    )
    with pytest.raises(ValueError, match="says yes"):
        Candidate.rejected("npu", Support.yes())


@given(DECISIONS)
def test_a_decision_survives_json(decision: Decision) -> None:
    assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision


@given(DECISIONS)
def test_explain_names_every_candidate_with_its_code(decision: Decision) -> None:
    text = decision.explain()
    for candidate in (*decision.rejected, *([decision.chosen] if decision.chosen else [])):
        assert line(candidate.name) in text
        assert candidate.code.value in text
        assert line(candidate.reason) in text
    assert str(decision) == text
    assert ("no usable candidate" in text) or decision.chosen is not None


def test_an_unknown_code_is_refused_on_reading() -> None:
    with pytest.raises(ValueError, match="not a valid Reason"):
        Candidate.from_json({"name": "a", "code": "whim", "reason": "b"})


def test_first_advice_is_the_first_that_there_is() -> None:
    a, b = Candidate("a", Reason.SLOWER, "x"), Candidate("b", Reason.NO_DEVICE, "x", "Buy one.")
    assert first_advice([a, b]) == "Buy one."
    assert first_advice([a]) == ""
