"""Explanation of a call: its kernels, and the reasons."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import Any

from ...decisions import Decision
from ...errors import InputError
from .op_table import ROWS

__all__ = ["Explained", "OpRequest"]


@dataclass(frozen=True, slots=True)
class OpRequest:
    """A request to explain a call, given to an op in place of its policy."""

    policy: Any

    @staticmethod
    def checked(op: str) -> str:
        """Return the op's name. Raises InputError."""
        if isinstance(op, str) and op in ROWS:
            return op
        near = difflib.get_close_matches(str(op), ROWS, n=1)
        do = (f"Did you mean {near[0]!r}? " if near else "") + f"Ops are {', '.join(ROWS)}."
        raise InputError("ops.explain", "no op of that name", got=repr(op), do=do)


@dataclass(frozen=True, slots=True)
class Explained:
    """The explanation of one signature.

    op, operands (types as text), target: the compiled program. kernels: ``name: entry point`` of each launch, with a library's name for its
    algorithm. decisions: the chosen kernels, and the reasons against the others. origin: ``compiled`` or ``store``. copies: a bit for each
    operand that is copied before each call.
    """

    op: str
    operands: tuple[str, ...]
    target: str
    kernels: tuple[str, ...]
    decisions: tuple[Decision, ...]
    origin: str
    copies: int = 0

    def with_copies(self, copies: int) -> Explained:
        """Return the same explanation for operands that are copied before the call."""
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
