"""Who writes a plan's text for a kind of target: plans are the same on every device, loops are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ..codegen.plans import LoopPlan
from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from .kernel import Lowered, NodeCall

if TYPE_CHECKING:
    from .row_plan import Output

__all__ = ["Pointwise", "Writer", "misplaced"]

Pointwise: TypeAlias = Callable[[NodeCall, LoopPlan, Sequence[tuple[int, ...]], CodegenTarget], Lowered]
"""A plan without reductions, and the results' strides along its space."""


@dataclass(frozen=True, slots=True)
class Writer:
    """kind: of the targets that it writes for; ``rows``: of plans with reductions (the last argument is the kernel's name)."""

    kind: str
    pointwise: Pointwise
    rows: Callable[[NodeCall, LoopPlan, Sequence[Output], CodegenTarget, str], Lowered]


def misplaced(kind: str, target: CodegenTarget) -> Support | None:
    """No, where a kernel is asked for another kind of target than it is written for."""
    if target.kind == kind:
        return None
    return Support.no(Reason.DEVICE_MISMATCH, f"writes code for {kind} targets, not for {target.name}")
