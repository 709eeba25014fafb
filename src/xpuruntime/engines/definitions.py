"""Refusal of models whose nodes differ from the definitions of their ops, for engines that ignore what they do not know."""

from __future__ import annotations

from ..decisions import Reason, Support
from ..protocols import ModelSource

__all__ = ["follows_definitions"]


def follows_definitions(model: ModelSource, vendor: str) -> Support:
    """Return no if a node has attributes that its op does not have, or of another type, or lacks one."""
    wrong = next((n for n in model.nodes if n.undeclared), None)
    if wrong is None:
        return Support.yes()
    effect = f"; {vendor} would compute without it" if wrong.ignorable else ""
    return Support.no(
        Reason.OP_UNSUPPORTED,
        f"node {wrong.name!r} ({wrong.op}): {wrong.undeclared}{effect}",
        do="Correct the attribute, or export the model again.",
    )
