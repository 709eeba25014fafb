"""``xpu check``: apply rules from a file to a plan, receipt, program or lock. Exit 1 if a rule is not satisfied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_note, print_table
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.review.check import CheckReport

__all__ = ["check"]


@command
def check(
    file: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A plan (xpu explain --save), receipt (xpu run --save-receipt), program (.npubin) or lock (xpu lock).",
        ),
    ],
    rules: Annotated[Path, typer.Option("--rules", metavar="FILE", help="File of rules (YAML or JSON).")],
    against: Annotated[
        str | None, typer.Option("--against", metavar="B", help="File of the same kind to compare with.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE.xml", help="Also write the results as JUnit XML.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE.md", help="Also write the results as Markdown.")
    ] = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Check that a plan, receipt, program or lock satisfies rules, alone or compared with another one."""
    from ..storage.store import write_atomic
    from ..workbench.review.check import check_files
    from ..workbench.review.check_reports import check_markdown, junit_xml

    report = check_files(file, rules, against)
    for path, text in ((junit, junit_xml(report)), (markdown, check_markdown(report).encode())):
        if path is not None:
            write_atomic(path, text)
            print_note(f"wrote {path}")
    code = ExitCode.OK if report.ok else ExitCode.NO
    return CommandResult(report.to_json(), lambda: _show(report), code)


def _show(report: CheckReport) -> None:
    rows = [(r.status, r.name, r.text) for r in report.results]
    against = f" against {report.against}" if report.against else ""
    print_table(f"{report.file}{against}", ("result", "rule", "found"), rows)
    failed = sum(not r.ok for r in report.results)
    print_line(
        f"{failed} of {len(report.results)} rules are not satisfied" if failed else "all rules are satisfied"
    )
