#!/usr/bin/env python3
"""Check subjects of commits: `area: imperative summary`, at most 72 characters.

scripts/commit_subject.py                        those of the history since START, merges excepted
scripts/commit_subject.py .git/COMMIT_EDITMSG    that of one message, as a hook for `commit-msg`
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = "06f181f53708"  # of older commits, some are longer
LONGEST = 72
FORM = re.compile(r"[a-z][\w./-]*(, [a-z][\w./-]*| [a-z]+)*: \S.*[^.]")


def problem(subject: str) -> str:
    """Return what is wrong with a subject; an empty text if nothing is."""
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return ""
    if len(subject) > LONGEST:
        return f"has {len(subject)} characters; at most {LONGEST} are allowed"
    return "" if FORM.fullmatch(subject) else "is not `area: summary` without a final period"


def history(start: str = START, root: Path = ROOT) -> list[str] | None:
    """Return the subjects of commits after one, or None where Git does not know it: a shallow clone, or no repository."""
    log = ["git", "-C", str(root), "log", "--no-merges", "--format=%s", f"{start}..HEAD"]
    log_run = subprocess.run(log, capture_output=True, text=True, check=False)
    return log_run.stdout.splitlines() if log_run.returncode == 0 else None


def main() -> int:
    """Check the first line of the file that Git names, or the history."""
    if len(sys.argv) == 2:
        subjects = [Path(sys.argv[1]).read_text(encoding="utf-8").partition("\n")[0]]
    else:
        subjects_found = history()
        if subjects_found is None:
            print(f"commit_subject: commit {START} is not in this clone; no subject was checked")
        subjects = subjects_found or []
    wrong = [f"commit_subject: {subject!r} {reason}" for subject in subjects if (reason := problem(subject))]
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
