"""What a call computes with, and why."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

from ...decisions import Decision
from ...errors import InputError
from .op_table import ROWS

__all__ = ["Explained", "Wanted"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Handed to an op in place of its policy: explain the call under that policy."""

    policy: Any

    @staticmethod
    def checked(op: str) -> str:
        """The op's name. Raises InputError."""
        if op in ROWS:
            return op
        near = difflib.get_close_matches(str(op), ROWS, n=1)
        do = (f"Did you mean {near[0]!r}? " if near else "") + f"Ops are {', '.join(ROWS)}."
        raise InputError("ops.explain", "no op of that name", got=repr(op), do=do)


@dataclass(frozen=True, slots=True)
class Explained:
    """One signature.

    op, operands (their types as text), target: what was compiled; kernels: ``name: entry point`` of each launch, with a library's own word
    for its algorithm; decisions: what was chosen, and why the others were not; origin: ``compiled`` or ``store``; copies: which operands are
    copied before each call, by bit.
    """

    op: str
    operands: tuple[str, ...]
    target: str
    kernels: tuple[str, ...]
    decisions: tuple[Decision, ...]
    origin: str
    copies: int = 0

    def with_copies(self, copies: int) -> Explained:
        """The same for operands that are copied to come to this signature."""
        return replace(self, copies=copies)

    def __str__(self) -> str:
        names = ROWS[self.op].operands
        copied = [n for i, n in enumerate(names) if self.copies >> i & 1]
        lines = [f"{self.op}({', '.join(self.operands)}) on {self.target}, {self.origin}"]
        lines += [f"  {kernel}" for kernel in self.kernels]
        if copied:
            lines.append(f"  copied before each call: {', '.join(copied)}")
        lines += [f"  {line}" for decision in self.decisions for line in str(decision).splitlines()]
        return "\n".join(lines)
