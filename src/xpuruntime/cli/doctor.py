"""``xpu doctor``: check versions, libraries, the environment, the store, and a small run on each engine. Exit 1 for a failed check."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from . import options
from .command import CommandResult, command
from .console import join_sentences, print_line, print_table, progress
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.doctor import Check, Diagnosis

__all__ = ["doctor"]

_WORDS = {"pass": "PASS", "fail": "FAIL", "absent": "absent", "info": ""}


@command
def doctor(
    cache_dir: options.CacheDir = None, verbose: options.Verbose = False, as_json: options.AsJson = False
) -> CommandResult:
    """Check this installation. An installed engine that fails is a problem (exit 1); an optional package that is absent is not."""
    from ..workbench.doctor import diagnose

    with progress("checking the installation") as update:
        diagnosis = diagnose(cache_dir, update)
    code = ExitCode.OK if diagnosis.healthy else ExitCode.NO
    return CommandResult(diagnosis.to_json(), lambda: _show(diagnosis, verbose), code)


def _show(diagnosis: Diagnosis, verbose: bool) -> None:
    for section, checks in itertools.groupby(diagnosis.checks, key=lambda c: c.section):
        rows = [(_WORDS[c.status], c.name, _text(c, verbose)) for c in checks]
        print_table(section, ("", "check", "result"), rows)
    failed = [c for c in diagnosis.checks if c.status == "fail"]
    passed = sum(c.status == "pass" for c in diagnosis.checks)
    names = f": {', '.join(c.name for c in failed)}" if failed else ""
    print_line(f"{passed} checks passed, {len(failed)} failed{names}")
    if not verbose:
        print_line("xpu doctor -v shows paths, full reasons and advice")


def _text(check: Check, verbose: bool) -> str:
    """Return the result as text, in full for a failed check and with ``verbose``."""
    from ..workbench.devices import first_clause

    if check.brief and not verbose and check.status != "fail":
        return check.brief
    if check.status == "absent" and not verbose:
        return first_clause(check.text)
    return join_sentences(check.text, check.do) if check.do else check.text
