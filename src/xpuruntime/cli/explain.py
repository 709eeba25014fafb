"""``xpu explain``: what would run, every rejected candidate, and why; exit 6 with the decision when nothing can be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnavailableError
from . import options
from .answer import Answer, verb
from .console import page, progress
from .exit_codes import ExitCode

__all__ = ["explain"]


@verb
def explain(
    model: options.Model,
    engine: options.Engine = None,
    device: options.Device = None,
    policy: options.Policy = None,
    fp16: options.Fp16 = False,
    precision: options.Precision = None,
    strict: options.Strict = None,
    threads: options.Threads = None,
    cache_dir: options.CacheDir = None,
    compile_timeout: options.CompileTimeout = None,
    allow_fallback: options.AllowFallback = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node with its region.")] = False,
    save: Annotated[Path | None, typer.Option("--save", metavar="PLAN.json", help="Write the plan.")] = None,
    as_json: options.AsJson = False,
) -> Answer:
    """Show what would run and why: the choice, every rejected candidate with its reason, the plan."""
    setup = options.setup(
        engine=engine,
        device=device,
        policy=policy,
        fp16=fp16,
        precision=precision,
        strict=strict,
        threads=threads,
        cache_dir=cache_dir,
        allow_fallback=allow_fallback,
        compile_timeout_s=compile_timeout,
    )
    try:
        with progress(f"planning {model}"), setup.open(_to_plan(model)) as session:
            plan = session.plan
    except UnavailableError as error:
        if error.decision is None:
            raise
        return _refused(error)
    if save is not None:
        _save(save, plan.to_json())
    chosen = plan.decision("engine")
    document = {
        **(chosen.to_json() if chosen else {}),
        "decisions": [d.to_json() for d in plan.decisions],
        "plan": plan.to_json(),
        "error": None,
    }
    return Answer(document, lambda: page(plan.explain(nodes=nodes)))


def _to_plan(model: str) -> Any:
    """Return the model; a compiled program as one whose native code is not loaded."""
    from ..inference.models.programs import is_program, open_program

    return replace(open_program(model), plan_only=True) if is_program(model) else model


def _refused(error: UnavailableError) -> Answer:
    """Nothing can be had, and that is the explanation: the decision on stdout, the exit code of the error."""
    decision = error.decision
    assert decision is not None
    document = {
        **decision.to_json(),
        "decisions": [decision.to_json()],
        "plan": None,
        "error": error.to_json(),
    }

    def show() -> None:
        page(decision.explain())
        page(str(error))

    return Answer(document, show, ExitCode(error.exit_code))


def _save(path: Path, plan: dict[str, Any]) -> None:
    import json

    from ..store import write_atomic

    write_atomic(path, json.dumps(plan, indent=2).encode() + b"\n")
