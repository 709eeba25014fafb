"""The result of a self_check, and its form in plans and receipts."""

from __future__ import annotations

from dataclasses import dataclass

from ...decisions import Candidate, Decision, Reason

__all__ = ["QUESTION", "Verdict"]

QUESTION = "self_check"


@dataclass(frozen=True, slots=True)
class Verdict:
    """code: ``checked``, ``not_checked`` or ``wrong_result``. by: the reference. text: the result, or why there was no check. advice: what to do about
    a wrong result that is not an engine's.
    """

    code: Reason
    by: str
    text: str
    recorded: bool = False
    advice: str = ""

    @classmethod
    def none(cls, why: str) -> Verdict:
        """Return a verdict without a check."""
        return cls(Reason.NOT_CHECKED, "not checked", why)

    @property
    def wrong(self) -> bool:
        """Return True if the outputs disagree."""
        return self.code is Reason.WRONG_RESULT

    def decision(self, subject: str) -> Decision:
        """Return the verdict as a decision of a plan."""
        if self.wrong:
            return Decision(QUESTION, subject, None, (Candidate(self.by, self.code, self.text),))
        if self.recorded:
            text = f"an earlier opening compared its outputs with {self.by}: {self.text}"
            code = Reason.RECORDED if self.code is Reason.CHECKED else self.code
            return Decision(
                QUESTION, subject, Candidate(self.by, code, text if code is Reason.RECORDED else self.text)
            )
        return Decision(QUESTION, subject, Candidate(self.by, self.code, self.text))
