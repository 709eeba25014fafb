"""``xpu verify``: check a program file on this machine before its first request. Exit 1 if a check fails."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_table, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.programs.verify import VerifyReport

__all__ = ["verify"]


@command
def verify(
    program: Annotated[str, typer.Argument(metavar="PROGRAM", help="A compiled program (.npubin).")],
    device: options.Device = None,
    threads: options.Threads = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights", metavar="PATH", help="Checkpoint, for a program that does not hold its weights."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Check a program file on this machine: digests, target and libraries, loaded code, weights, golden inputs and outputs."""
    from ..workbench.programs.verify import verify_program

    with progress(f"verifying {program}") as update:
        report = verify_program(program, device=device, threads=threads, weights=weights, progress=update)
    return CommandResult(report.to_json(), lambda: _show(report), ExitCode.OK if report.ok else ExitCode.NO)


def _show(report: VerifyReport) -> None:
    marks = {True: "ok", False: "FAILED", None: "-"}
    print_table(
        report.program, ("", "check", "result"), [(marks[c.ok], c.name, c.text) for c in report.checks]
    )
    print_line(report.sentence)
