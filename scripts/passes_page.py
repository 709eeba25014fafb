"""Write the table of docs/reference/passes.md from PASSES: `python scripts/passes_page.py`. A test fails when it is stale."""

from __future__ import annotations

import re
from pathlib import Path

from xpuruntime.passes import PASSES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "passes.md"
_TABLE = re.compile(r"(?<=a test compares\. -->\n)(TABLE|(?:\|.*\n)+)")


def table() -> str:
    """Return a line per pass, in order."""
    rows = [f"| `{p.name}` | {p.meaning} | {p.level} |" for p in PASSES]
    return "\n".join(["| pass | what it does | level |", "|---|---|---|", *rows]) + "\n"


def page(text: str) -> str:
    """Return the page with the current table."""
    return _TABLE.sub(lambda _: table(), text, count=1)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(PASSES)} passes")
