"""``xpu doctor``: versions, libraries, environment, store and a smoke run of each engine; PASS or the reason, line by line."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from . import options
from .answer import Answer, verb
from .console import progress, say, sentences, table
from .exit_codes import ExitCode

if TYPE_CHECKING:
    from ..workbench.doctor import Diagnosis

__all__ = ["doctor"]

_WORDS = {"pass": "PASS", "fail": "FAIL", "absent": "absent", "info": ""}


@verb
def doctor(cache_dir: options.CacheDir = None, as_json: options.AsJson = False) -> Answer:
    """Check this installation: exit 1 for a real problem (an installed engine that fails), not for an absent extra."""
    from ..workbench.doctor import examine

    with progress("examining") as now:
        found = examine(cache_dir, now)
    return Answer(found.to_json(), lambda: _show(found), ExitCode.OK if found.healthy else ExitCode.NO)


def _show(found: Diagnosis) -> None:
    for section, checks in itertools.groupby(found.checks, key=lambda c: c.section):
        rows = [(_WORDS[c.status], c.name, sentences(c.text, c.do) if c.do else c.text) for c in checks]
        table(section, ("", "what", "found"), rows)
    failed = [c for c in found.checks if c.status == "fail"]
    passed = sum(c.status == "pass" for c in found.checks)
    say(
        f"{passed} checks passed, {len(failed)} failed"
        + (f": {', '.join(c.name for c in failed)}" if failed else "")
    )
