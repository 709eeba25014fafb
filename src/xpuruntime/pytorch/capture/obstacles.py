"""Obstacles to capturing: calls that wait for the device, and optimizers that count their steps on the host."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["REMEDIES", "REMEDY", "Obstacle", "Watching", "optimizer_obstacles", "user_line", "watched"]

_PACKAGE = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parents[1])
REMEDIES = {
    "aten._local_scalar_dense.default": "Keep the value on the device: no .item(), float(), int() or `if` on a tensor in the step.",
    "aten.nonzero.default": "Use torch.where with three arguments, or a mask, in place of indices of unknown number.",
    "aten.copy_.default": "Move tensors to the device before the step, and print or log outside of it.",
    "aten._to_copy.default": "Move tensors to the device before the step, and print or log outside of it.",
}
REMEDY = "Move this call out of the step."


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason why a step is not captured: the op, the source line of the user's code, and what to do."""

    op: str
    reason: str
    where: str
    do: str

    def __str__(self) -> str:
        return f"{self.op} {self.reason}{f' at {self.where}' if self.where else ''}. {self.do}"


class Watching(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is untyped here
    """A mode that sees the operators that run.

    It is an infra mode. Under any other mode torch.compile does not use its compiled code, even after that mode has ended.
    """

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


class _CurrentOp(Watching):
    """A mode that records the name of the operator that runs."""

    name = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.name = str(func)
        return func(*args, **(kwargs or {}))


@contextmanager
def watched() -> Iterator[list[Obstacle]]:
    """Yield a list that receives each synchronizing call of the block. The block runs as usual."""
    obstacles: list[Obstacle] = []
    with _CurrentOp() as current, warnings.catch_warnings():
        warnings.simplefilter("always")
        passed_on = warnings.showwarning

        def note(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if "synchronizing CUDA operation" not in str(message):
                passed_on(message, category, *rest)
                return
            obstacle = Obstacle(
                current.name or "an op",
                "waits for the device",
                user_line(traceback.extract_stack()),
                REMEDIES.get(current.name, REMEDY),
            )
            if obstacle not in obstacles:
                obstacles.append(obstacle)

        warnings.showwarning = note  # type: ignore[assignment]
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch calls the mode a prototype
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield obstacles
        finally:
            torch.cuda.set_sync_debug_mode(before)


def user_line(stack: Sequence[traceback.FrameSummary]) -> str:
    """Return file, line and text of the innermost frame that belongs neither to PyTorch nor to this package."""
    own = [f for f in stack if not f.filename.startswith((_PACKAGE, _HERE, warnings.__file__))]
    return f"{own[-1].filename}:{own[-1].lineno}: {own[-1].line}" if own else ""


def optimizer_obstacles(optimizers: Sequence[torch.optim.Optimizer]) -> list[Obstacle]:
    """Return an obstacle for each optimizer that counts its steps on the host."""
    return [
        Obstacle(
            f"{type(o).__name__}.step",
            "counts its steps on the host",
            "",
            f"Make it with torch.optim.{type(o).__name__}(..., capturable=True), or call it outside of the step.",
        )
        for o in optimizers
        if any(group.get("capturable") is False for group in o.param_groups)
    ]
