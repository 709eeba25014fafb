"""Messages of checks that are written as an index into one element: of systems of equations and factorizations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...program.program import KernelCall

__all__ = ["check_message"]

_CHECKED = {
    "cholesky": (
        "a matrix is not positive definite",
        "Give positive definite matrices, or use torch.linalg.cholesky_ex, which returns info.",
    ),
    "solve": (
        "a matrix is singular",
        "Give matrices that have an inverse, or use torch.linalg.inv_ex or solve_ex, which return info.",
    ),
}
"""IR op -> what a failed check of its ``info`` means, and what to do."""
_FAILED = re.compile(r"kernel \S+ \(nodes? (.+?)(?: and \d+ more)?\): index \d+ is outside a dim of 1$")


def check_message(calls: Sequence[KernelCall], message: str) -> tuple[str, str] | None:
    """Return the message and remedy for a failed check, or None for any other error.

    The check and the op that it checks come from one node of the model.
    """
    failed = _FAILED.search(message)
    if failed is None:
        return None
    for call in calls:
        checked = next((op for op in call.ops if op in _CHECKED), None)
        if checked is not None and failed[1] in call.nodes:
            what, do = _CHECKED[checked]
            return f"node {failed[1]}: {what}", do
    return None
