"""Numbers of rows up to which systems and factorizations of matrices are lowered. PyTorch's operators compute larger ones."""

from __future__ import annotations

__all__ = ["AUTOMATIC_ROWS", "MAX_ROWS"]

MAX_ROWS = 128
"""Maximum rows for a named engine, and natively also for a symbolic number of rows: one task computes a whole matrix."""
AUTOMATIC_ROWS = 12
"""Maximum rows if no engine is named: up to here native kernels were measured not slower than PyTorch, for one matrix and for 1000."""
