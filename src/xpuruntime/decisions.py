"""Support, Candidate, Decision: every choice that xpuruntime makes, with its reasons, as plain data.

A rejection without a reason is a programming error. The list of reason codes is closed: tools may branch on a code,
and people read the text next to it. ``docs/concepts/core-concepts.md`` has the table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .printable import line

__all__ = ["REASONS", "Candidate", "Decision", "Reason", "Support"]


class Reason(enum.StrEnum):
    """Codes for why a candidate was chosen or rejected. The list is closed: a new code changes this enum and its docs."""

    # why not
    NOT_INSTALLED = "not_installed"
    VERSION_UNSUPPORTED = "version_unsupported"
    NOT_IMPLEMENTED = "not_implemented"
    NO_DEVICE = "no_device"
    DEVICE_REFUSED = "device_refused"
    DEVICE_MISMATCH = "device_mismatch"
    PRECISION_UNSUPPORTED = "precision_unsupported"
    FORMAT_UNSUPPORTED = "format_unsupported"
    OP_UNSUPPORTED = "op_unsupported"
    SHAPE_UNSUPPORTED = "shape_unsupported"
    DTYPE_UNSUPPORTED = "dtype_unsupported"
    OPTION_UNKNOWN = "option_unknown"
    BUILD_FAILED = "build_failed"
    INTERNAL_ERROR = "internal_error"
    RUN_FAILED = "run_failed"
    TIMED_OUT = "timed_out"
    WRONG_RESULT = "wrong_result"
    SLOWER = "slower"
    WORKSPACE_EXCEEDED = "workspace_exceeded"
    FORBIDDEN = "forbidden"
    NOT_REQUESTED = "not_requested"
    LOWER_PREFERENCE = "lower_preference"
    NOT_APPLICABLE = "not_applicable"
    # why chosen
    REQUESTED = "requested"
    FORCED = "forced"
    PREFERRED = "preferred"
    FASTEST = "fastest"
    RECORDED = "recorded"
    LOCKED = "locked"
    FALLBACK = "fallback"
    DEFAULT = "default"
    ONLY_ONE = "only_one"
    CHECKED = "checked"
    NOT_CHECKED = "not_checked"


REASONS: dict[Reason, str] = {
    Reason.NOT_INSTALLED: "the package or library is not installed on this machine",
    Reason.VERSION_UNSUPPORTED: "the installed version is outside the supported range",
    Reason.NOT_IMPLEMENTED: "the policy word is valid, but this release does not implement it",
    Reason.NO_DEVICE: "this machine has no such device",
    Reason.DEVICE_REFUSED: "the vendor's library knows the device but cannot use it; the text is the vendor's",
    Reason.DEVICE_MISMATCH: "the candidate does not support this kind of device",
    Reason.PRECISION_UNSUPPORTED: "the candidate does not support this precision on this device",
    Reason.FORMAT_UNSUPPORTED: "the candidate does not read this model format",
    Reason.OP_UNSUPPORTED: "the model has an op that the candidate does not implement",
    Reason.SHAPE_UNSUPPORTED: "the candidate does not support these shapes (for example dynamic ones)",
    Reason.DTYPE_UNSUPPORTED: "the candidate does not support this element type",
    Reason.OPTION_UNKNOWN: "the candidate does not know one of the options given to it",
    Reason.BUILD_FAILED: "the vendor failed to compile the model; the text is the vendor's",
    Reason.INTERNAL_ERROR: "xpuruntime's own code failed; the text names a folder with a reproduction",
    Reason.RUN_FAILED: "the vendor failed while running; the text is the vendor's",
    Reason.TIMED_OUT: "the time limit was reached",
    Reason.WRONG_RESULT: "its outputs disagree with the reference or with the other candidates",
    Reason.SLOWER: "its outputs are right, and it was measured slower than the chosen one",
    Reason.WORKSPACE_EXCEEDED: "it needs more workspace than the policy allows",
    Reason.FORBIDDEN: "a policy rule forbids it",
    Reason.NOT_REQUESTED: "the user named another one, or it is only used when it is named",
    Reason.LOWER_PREFERENCE: "usable, but another one is earlier in the preference order",
    Reason.NOT_APPLICABLE: "the rule does not apply to the engine that runs the region",
    Reason.REQUESTED: "the user named it",
    Reason.FORCED: "a policy rule with `use` forces it",
    Reason.PREFERRED: "a policy rule with `prefer` lists it first",
    Reason.FASTEST: "the fastest measured candidate with right outputs",
    Reason.RECORDED: "an earlier measurement, in the store or in a file, chose it",
    Reason.LOCKED: "a lock names it; nothing was measured or chosen",
    Reason.FALLBACK: "the requested one is unavailable, and the policy allows this fallback",
    Reason.DEFAULT: "the first usable one in the built-in order",
    Reason.ONLY_ONE: "it is the only candidate",
    Reason.CHECKED: "its outputs were compared with an independent reference and agree",
    Reason.NOT_CHECKED: "its outputs were not compared with a reference",
}


@dataclass(frozen=True, slots=True)
class Support:
    """The answer to "can this be done?": yes, or no with a code, a reason and advice."""

    ok: bool
    code: Reason | None = None
    reason: str = ""
    do: str = ""

    @classmethod
    def yes(cls) -> Support:
        """Return the answer yes."""
        return cls(True)

    def __post_init__(self) -> None:
        if not self.ok and (self.code is None or not self.reason):
            raise ValueError("Support.no needs a reason")

    @classmethod
    def no(cls, code: Reason, reason: str, *, do: str = "") -> Support:
        """Return the answer no. Raises ValueError if the reason is empty."""
        return cls(False, Reason(code), reason.strip(), do)

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True)
class Candidate:
    """One alternative of a choice: why it was or was not chosen, and what was measured (plain JSON data)."""

    name: str
    code: Reason
    reason: str
    do: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def rejected(cls, name: str, support: Support, **facts: Any) -> Candidate:
        """Return a rejected candidate. Raises ValueError for a support that says yes."""
        if support.ok or support.code is None:
            raise ValueError(f"candidate {name!r} cannot be rejected with a support that says yes")
        return cls(name, support.code, support.reason, support.do, facts)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, which ``from_json`` reads."""
        data: dict[str, Any] = {"name": self.name, "code": self.code.value, "reason": self.reason}
        if self.do:
            data["do"] = self.do
        if self.facts:
            data["facts"] = dict(self.facts)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Candidate:
        """Build the value from ``to_json``'s data. Raises ValueError for an unknown code and for fields of other types, KeyError."""
        name, reason, do, facts = data["name"], data["reason"], data.get("do", ""), data.get("facts", {})
        if not (all(type(text) is str for text in (name, reason, do)) and isinstance(facts, Mapping)):
            raise ValueError("a candidate has name, reason and do as text, and facts as an object")
        return cls(name, Reason(data["code"]), reason, do, facts)


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice. ``chosen`` is None if no candidate is usable; ``rejected`` holds every other candidate.

    question: what was chosen: ``engine``, ``precision``, ``kernel matmul`` ...
    subject:  what it was chosen for: a model, a region id or a node name.
    """

    question: str
    subject: str
    chosen: Candidate | None
    rejected: tuple[Candidate, ...] = ()

    def explain(self) -> str:
        """Describe the choice in lines: the chosen candidate, then each rejected one with code, reason and advice."""
        head = f"{self.question} for {self.subject}: "
        if self.chosen is None:
            lines = [head + "no usable candidate"]
        else:
            lines = [f"{head}{self.chosen.name} ({self.chosen.code.value}: {self.chosen.reason})"]
        for c in self.rejected:
            stop = "" if c.reason.endswith((".", "!", "?")) else "."
            lines.append(f"  not {c.name} ({c.code.value}): {c.reason}" + (f"{stop} {c.do}" if c.do else ""))
        return "\n".join(map(line, lines))

    __str__ = explain

    def to_json(self) -> dict[str, Any]:
        """Return plain data, which ``from_json`` reads."""
        return {
            "question": self.question,
            "subject": self.subject,
            "chosen": None if self.chosen is None else self.chosen.to_json(),
            "rejected": [c.to_json() for c in self.rejected],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        """Build the value from ``to_json``'s data. Raises ValueError, KeyError."""
        chosen = data["chosen"]
        if not (type(data["question"]) is str and type(data["subject"]) is str):
            raise ValueError("a decision has question and subject as text")
        return cls(
            data["question"],
            data["subject"],
            None if chosen is None else Candidate.from_json(chosen),
            tuple(Candidate.from_json(c) for c in data["rejected"]),
        )


def first_advice(candidates: Iterable[Candidate]) -> str:
    """Return the first piece of advice among candidates, for the ``do`` of an error."""
    return next((c.do for c in candidates if c.do), "")
