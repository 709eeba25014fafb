"""``xpu compile``: compile a model into a program file, for this machine or another."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, progress
from .inspect_program import count_text, size_text

if TYPE_CHECKING:
    from ..workbench.programs.report import ProgramReport

__all__ = ["compile"]


@command
def compile(  # noqa: A001  (the command's name)
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="An ONNX model (.onnx) or a saved graph (.json or .txt).")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.npubin",
            help="Program file. Default: the model's name, in the current folder.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            "-t",
            help="Target such as cpu (this machine), cpu:x86-64-v3 or cuda:sm_90, in order of preference. Repeatable."
            " Default: the policy's device, else cpu.",
        ),
    ] = None,
    policy: options.Policy = None,
    shape: options.Shape = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE,...", help="Sizes of all symbolic dimensions of one entry point. Repeatable."
        ),
    ] = None,
    passes: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL|NAME,...",
            help="Passes to run: a level (0 to 3, or none, basic, extended, all), names, or -NAME to leave one out."
            " Default: the policy's passes, else 3.",
        ),
    ] = None,
    tune: options.Tune = None,
    embed: Annotated[bool, typer.Option(help="Store the weights in the program.")] = True,
    golden: Annotated[
        int,
        typer.Option(
            "--golden",
            min=0,
            metavar="N",
            help="Store N generated inputs with their outputs in each entry point, for xpu verify.",
        ),
    ] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compile, but write no file.")] = False,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Compile a model into a program. Running it needs neither the model nor PyTorch, ONNX or a compiler."""
    from ..workbench.programs.compile_model import compile_model

    if shape and bucket:
        raise typer.BadParameter("--shape and --bucket exclude each other")
    if tune and passes is not None:
        raise typer.BadParameter(
            "--tune and --passes exclude each other: kernels are measured after the default passes"
        )
    buckets = [options.parse_sizes(b.split(","), "--bucket") for b in bucket or ()]
    start = time.perf_counter()
    with progress(f"compiling {model}"):
        report = compile_model(
            model,
            output,
            target=target,
            policy=policy,
            shapes=buckets or options.parse_sizes(shape),
            passes=passes,
            embed=embed,
            dry_run=dry_run,
            golden=golden,
            tune_s=tune or 0.0,
        )
    seconds = time.perf_counter() - start
    return CommandResult(report.to_json() | {"seconds": round(seconds, 3)}, lambda: _show(report, seconds))


def _show(report: ProgramReport, seconds: float) -> None:
    p = report.program
    title = f"{report.path}: {p.name}, {size_text(report.size_bytes)}" if report.size_bytes else p.name
    print_line(f"{title}, compiled in {seconds:.1f} s")
    for entry in p.entries:
        for plan in entry.plans:
            kernels = ", ".join(f"{n} {k}" for k, n in Counter(c.kernel for c in plan.calls).most_common())
            calls = f"{count_text(len(plan.calls), 'call')} ({kernels or 'none'})"
            print_line(f"  {entry.name} on {plan.target}: {calls}, arena {size_text(plan.arena_bytes)}")
    weight_bytes = sum(r.spec.size_bytes or 0 for r in p.recipes)
    print_line(f"  weights: {size_text(weight_bytes)} in {count_text(len(p.recipes), 'buffer')}")
    if p.golden:
        print_line(
            f"  golden: {count_text(len(p.golden), 'sample')}; check them on the target with xpu verify"
        )
    if report.size_bytes:
        print_line(f"details: xpu inspect {report.path}")
