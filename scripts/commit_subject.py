#!/usr/bin/env python3
"""Check the subject of a commit: `area: imperative summary`, at most 72 characters.

scripts/commit_subject.py .git/COMMIT_EDITMSG
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONGEST = 72
FORM = re.compile(r"[a-z][\w./-]*(, [a-z][\w./-]*| [a-z]+)*: \S.*[^.]")


def problem(subject: str) -> str:
    """Return what is wrong with a subject; an empty text if nothing is."""
    if subject.startswith(("Merge ", "Revert ", "fixup! ", "squash! ")):
        return ""
    if len(subject) > LONGEST:
        return f"has {len(subject)} characters; at most {LONGEST} are allowed"
    return "" if FORM.fullmatch(subject) else "is not `area: summary` without a final period"


def main() -> int:
    """Check the first line of the file that Git names."""
    subject = Path(sys.argv[1]).read_text(encoding="utf-8").partition("\n")[0]
    if said := problem(subject):
        print(f"commit_subject: {subject!r} {said}", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
