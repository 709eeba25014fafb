"""Conversion: the outcome of every line of a foreign file, or of every demand of a policy, and the result."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...policies.policy import Policy

__all__ = ["Conversion", "ConvertedItem", "ItemOutcome"]


class ItemOutcome(enum.StrEnum):
    """The outcome of an item. ``changed``: it was carried, with another meaning that the reason describes."""

    CARRIED = "carried"
    CHANGED = "changed"
    NOT_CARRIED = "not carried"


@dataclass(frozen=True, slots=True)
class ConvertedItem:
    """One item of the source.

    line, column: its place in a text, from 1; 0 if the source is no text.
    text:         the item as it is written. ``becomes``: its form in the result.
    reason:       why it changed or was not carried. ``remedy``: what the user can do.
    """

    text: str
    outcome: ItemOutcome
    becomes: str = ""
    reason: str = ""
    remedy: str = ""
    line: int = 0
    column: int = 0

    def __post_init__(self) -> None:
        if self.outcome is not ItemOutcome.CARRIED and not self.reason:
            raise ValueError(f"{self.text!r} is {self.outcome} without a reason")

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "line": self.line,
            "column": self.column,
            "text": self.text,
            "outcome": self.outcome.value,
            "becomes": self.becomes,
            "reason": self.reason,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Conversion:
    """The result of a conversion: the report of all items, and a policy (reading) or a text (writing).

    format, source: name of the foreign format, and of the file that was read.
    """

    format: str
    source: str
    items: Sequence[ConvertedItem] = ()
    policy: Policy = field(default_factory=Policy)
    text: str = ""

    @property
    def lost(self) -> tuple[ConvertedItem, ...]:
        """Return the items that were not carried."""
        return tuple(i for i in self.items if i.outcome is ItemOutcome.NOT_CARRIED)

    @property
    def sentence(self) -> str:
        """Return the counts in one line."""
        counts = {o: sum(i.outcome is o for i in self.items) for o in ItemOutcome}
        return f"{self.source} ({self.format}): " + ", ".join(f"{n} {o.value}" for o, n in counts.items())

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {
            "format": self.format,
            "source": self.source,
            "items": [i.to_json() for i in self.items],
            "policy": self.policy.to_dict(),
            "text": self.text,
        }
