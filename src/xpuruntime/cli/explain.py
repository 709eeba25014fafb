"""``xpu explain``: show what would run, and the reason of every rejected candidate. Exit 6 if nothing can run the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnavailableError
from . import options
from .command import CommandResult, command
from .console import print_line, print_note, print_table, print_text, progress, save_json
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
    times: options.Times = None,
    shape: options.Shape = None,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Show what would run and why: the chosen engine, every rejected candidate with its reason, and the plan.

    With --times, the native engine's kernels on a device that this machine may lack (--device h200), and the predicted time.
    """
    if times is not None:
        return _predicted(model, times, engine, session, options.parse_sizes(shape), save, html)
    if shape:
        raise typer.BadParameter("--shape needs --times", param_hint="--shape")
    session_options = options.session_options(session, engine=engine)
    try:
        with progress(f"planning {model}"), session_options.open(_without_code(model)) as opened:
            plan = opened.plan
    except UnavailableError as error:
        if error.decision is None:
            raise
        return _unavailable(error)
    if save is not None:
        save_json(save, plan.to_json())
    if html is not None:
        from ..workbench.pages.page import write_page
        from ..workbench.pages.receipt_page import snapshot_page
        from ..workbench.review.snapshot import of_plan

        write_page(html, snapshot_page(of_plan(plan, "")))
        print_note(f"wrote {html}")
    chosen = plan.decision("engine")
    document = {
        **(chosen.to_json() if chosen else {}),
        "decisions": [d.to_json() for d in plan.decisions],
        "plan": plan.to_json(),
        "error": None,
    }
    return CommandResult(document, lambda: print_text(plan.explain(nodes=nodes)))


def _predicted(
    model: str,
    times: Path,
    engine: options.EngineFlags,
    session: options.SessionFlags,
    shapes: dict[str, int],
    save: Path | None,
    html: Path | None,
) -> CommandResult:
    """Return the prediction for a device by a file of times. Flags of a session, which is not opened, are refused."""
    from ..workbench.tune import predict

    refused = {
        "--engine": engine.engine not in (None, "native"),
        "--fp16": engine.fp16,
        "--strict": engine.strict is not None,
        "--allow-fallback": bool(engine.allow_fallback),
        "--precision": session.precision is not None,
        "--threads": session.threads is not None,
        "--compile-timeout": session.compile_timeout is not None,
        "--save": save is not None,
        "--html": html is not None,
    }
    if named := [flag for flag, given in refused.items() if given]:
        raise typer.BadParameter(
            "--times opens no session, so this option has no effect", param_hint=named[0]
        )
    with progress(f"compiling {model}"):
        result = predict(model, times, device=engine.device, policy=session.policy, shapes=shapes)

    def show() -> None:
        rows = [
            (
                ", ".join(c.nodes[:3]),
                c.op,
                c.kernel,
                "not measured" if c.time_us is None else f"{c.time_us:.2f}",
            )
            for c in result.calls
        ]
        print_table("Kernels", ("nodes", "op", "kernel", "us"), rows, right=("us",))
        print_line(result.sentence)

    return CommandResult(result.to_json(), show)


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
