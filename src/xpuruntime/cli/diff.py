"""``xpu diff``: what changed between two plans, receipts, programs or locks. Exit 1 with --exit-code if anything differs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_note, print_text
from .exit_codes import ExitCode

__all__ = ["diff"]

_FILE = "A plan (xpu explain --save), receipt (xpu run --save-receipt), program (.npubin) or lock (xpu lock)."


@command
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=_FILE)],
    b: Annotated[str, typer.Argument(metavar="B", help="A file of the same kind.")],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if anything but measured times differs.")
    ] = False,
    times: Annotated[
        int, typer.Option("--times", min=0, help="Show the N nodes whose measured time differs most.")
    ] = 12,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE.md", help="Also write the differences as Markdown."),
    ] = None,
    html: options.Html = None,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Show what changed from A to B: nodes, copies, decisions, times, memory and recorded outputs. Nodes are matched by name."""
    from ..storage.store import write_atomic
    from ..workbench.review.diff import diff as diff_snapshots
    from ..workbench.review.diff_text import diff_markdown, diff_text
    from ..workbench.review.files import read_snapshot

    old, new = read_snapshot(a), read_snapshot(b)
    changes = diff_snapshots(old, new)
    if html is not None:
        from ..workbench.pages.diff_page import diff_page
        from ..workbench.pages.page import write_page

        write_page(html, diff_page(changes, old, new))
        print_note(f"wrote {html}")
    if markdown is not None:
        write_atomic(markdown, diff_markdown(changes).encode())
        print_note(f"wrote {markdown}")
    code = ExitCode.NO if exit_code and not changes.empty else ExitCode.OK
    return CommandResult(changes.to_json(), lambda: print_text(diff_text(changes, times=times)), code)
