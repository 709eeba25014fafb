"""Parts of a PyTorch module that are lowered to the graph. PyTorch's operators compute the rest."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AUTOMATIC_ROWS", "EVERYTHING", "MAX_ROWS", "LoweredParts"]

MAX_ROWS = 128
"""Maximum rows of a system or factorization for a named engine, and natively also for a symbolic number of rows: one task computes a whole matrix."""
AUTOMATIC_ROWS = 12
"""Maximum rows if no engine is named: up to here native kernels were measured not slower than PyTorch, for one matrix and for 1000."""


@dataclass(frozen=True, slots=True)
class LoweredParts:
    """max_rows: rows of a matrix up to which systems and factorizations are lowered.

    draws: whether all random numbers are. Otherwise ``PYTORCH_DRAWS`` stay with PyTorch, and every draw if PyTorch computes another part, too.
    """

    max_rows: int = MAX_ROWS
    draws: bool = True


EVERYTHING = LoweredParts()
"""All that has a form in the IR."""
