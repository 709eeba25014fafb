"""What a self_check found, and how plans and receipts say it."""

from __future__ import annotations

from dataclasses import dataclass

from ...decisions import Candidate, Decision, Reason

__all__ = ["QUESTION", "Verdict"]

QUESTION = "self_check"


@dataclass(frozen=True, slots=True)
class Verdict:
    """code: ``checked``, ``not_checked`` or ``wrong_result``. by: the reference. text: what was found, or why nothing was looked at."""

    code: Reason
    by: str
    text: str
    recorded: bool = False

    @classmethod
    def none(cls, why: str) -> Verdict:
        """Not checked."""
        return cls(Reason.NOT_CHECKED, "not checked", why)

    @property
    def wrong(self) -> bool:
        """Whether the outputs disagree."""
        return self.code is Reason.WRONG_RESULT

    def decision(self, subject: str) -> Decision:
        """As a plan lists it."""
        if self.wrong:
            return Decision(QUESTION, subject, None, (Candidate(self.by, self.code, self.text),))
        if self.recorded:
            text = f"an earlier opening compared its outputs with {self.by}: {self.text}"
            code = Reason.RECORDED if self.code is Reason.CHECKED else self.code
            return Decision(
                QUESTION, subject, Candidate(self.by, code, text if code is Reason.RECORDED else self.text)
            )
        return Decision(QUESTION, subject, Candidate(self.by, self.code, self.text))
