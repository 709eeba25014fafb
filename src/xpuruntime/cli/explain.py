"""``xpu explain``: show what would run, and the reason of every rejected candidate. Exit 6 if nothing can run the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnavailableError
from . import options
from .command import CommandResult, command
from .console import print_text, progress
from .exit_codes import ExitCode

__all__ = ["explain"]


@command
def explain(
    model: options.Model,
    engine: options.EngineFlags,
    session: options.SessionFlags,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node with its region.")] = False,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="PLAN.json", help="Write the plan to a file.")
    ] = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Show what would run and why: the chosen engine, every rejected candidate with its reason, and the plan."""
    session_options = options.session_options(session, engine=engine)
    try:
        with progress(f"planning {model}"), session_options.open(_without_code(model)) as opened:
            plan = opened.plan
    except UnavailableError as error:
        if error.decision is None:
            raise
        return _unavailable(error)
    if save is not None:
        _save(save, plan.to_json())
    chosen = plan.decision("engine")
    document = {
        **(chosen.to_json() if chosen else {}),
        "decisions": [d.to_json() for d in plan.decisions],
        "plan": plan.to_json(),
        "error": None,
    }
    return CommandResult(document, lambda: print_text(plan.explain(nodes=nodes)))


def _without_code(model: str) -> Any:
    """Return the model. A compiled program is marked so that opening it loads none of its native code."""
    from ..inference.models.programs import is_program, open_program

    return replace(open_program(model), plan_only=True) if is_program(model) else model


def _unavailable(error: UnavailableError) -> CommandResult:
    """Return the decision of a failed selection as the result, with the error's exit code."""
    decision = error.decision
    assert decision is not None
    document = {
        **decision.to_json(),
        "decisions": [decision.to_json()],
        "plan": None,
        "error": error.to_json(),
    }

    def show() -> None:
        print_text(decision.explain())
        print_text(str(error))

    return CommandResult(document, show, ExitCode(error.exit_code))


def _save(path: Path, plan: dict[str, Any]) -> None:
    import json

    from ..storage.store import write_atomic

    write_atomic(path, json.dumps(plan, indent=2).encode() + b"\n")
