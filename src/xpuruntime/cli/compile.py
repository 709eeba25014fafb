"""``xpu compile``: a model becomes a program file, for this machine's processor or another."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .answer import Answer, verb
from .console import progress, say
from .inspect_program import many, size_text

if TYPE_CHECKING:
    from ..workbench.program_report import ProgramReport

__all__ = ["compile"]


@verb
def compile(  # noqa: A001  - the verb's name
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An .onnx file, or a graph as .json or .txt.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.npubin", help="Default: the model's name, here."),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            help="cpu (this machine's best), cpu:x86-64-v3 ...; repeatable, in order of preference. Default: the policy's device, else cpu.",
        ),
    ] = None,
    policy: options.Policy = None,
    shape: options.Shape = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE,...", help="Sizes of all symbolic dims for one entry point; repeatable."
        ),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL|NAME,...",
            help="Level 0 to 3 (none, basic, extended, all), names of passes, or names with a minus: -fuse_conv is all others. The policy's, else 3.",
        ),
    ] = None,
    embed: Annotated[bool, typer.Option(help="Put the weights into the program.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compile and write nothing.")] = False,
    as_json: options.AsJson = False,
) -> Answer:
    """Compile a model into a program that runs without the model, without PyTorch or ONNX, and without a compiler."""
    from ..workbench.compile_model import compile_model

    if shape and bucket:
        raise typer.BadParameter("--shape and --bucket exclude each other")
    buckets = [options.sizes(b.split(","), "--bucket") for b in bucket or ()]
    begun = time.perf_counter()
    with progress(f"compiling {model}"):
        report = compile_model(
            model,
            output,
            target=target,
            policy=policy,
            shapes=buckets or options.sizes(shape),
            passes=passes,
            embed=embed,
            dry_run=dry_run,
        )
    seconds = time.perf_counter() - begun
    return Answer(report.to_json() | {"seconds": round(seconds, 3)}, lambda: _show(report, seconds))


def _show(report: ProgramReport, seconds: float) -> None:
    p = report.program
    written = f"{report.path}: {p.name}, {size_text(report.size_bytes)}" if report.size_bytes else p.name
    say(f"{written}, compiled in {seconds:.1f} s")
    for entry in p.entries:
        for plan in entry.plans:
            kernels = ", ".join(f"{n} {k}" for k, n in Counter(c.kernel for c in plan.calls).most_common())
            say(
                f"  {entry.name} on {plan.target}: {many(len(plan.calls), 'call')} ({kernels or 'none'}), arena {size_text(plan.arena_bytes)}"
            )
    say(
        f"  weights: {size_text(sum(r.spec.size_bytes or 0 for r in p.recipes))} in {many(len(p.recipes), 'buffer')}"
    )
    if report.size_bytes:
        say(f"see more: xpu inspect {report.path}")
