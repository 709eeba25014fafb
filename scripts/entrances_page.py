"""Write the table of docs/entrances.md from ENTRANCES: `python scripts/entrances_page.py`. A test says when it is stale."""

from __future__ import annotations

import re
from pathlib import Path

from xpuruntime.policies.entrances import ENTRANCES, SESSION, FieldUse

PAGE = Path(__file__).resolve().parents[1] / "docs" / "entrances.md"
_TABLE = re.compile(r"(?<=a test compares\. -->\n)(TABLE|(?:\|.*\n)+)")

COLUMNS = {
    "session": "`InferenceSession`, `xpu run`, `compare`, `bench`",
    "compile": "`xrt.compile`, `xpu compile`",
    "Generator": "`Generator`, `generate`, `xpu generate`",
    "ops": "`xrt.ops`",
    "partition": "`partition`",
    "DAGExecutor": "`DAGExecutor`",
    "Executor": "`Executor`",
}


def cell(use: FieldUse) -> str:
    """What a field does, and what is an error."""
    if use.takes is None:
        return use.does
    wrong = f"an error: {use.why}"
    return f"{use.does}; else {wrong}" if use.does else wrong


def table() -> str:
    """A line per field, a column per entrance."""
    rows = [
        f"| `{field}` | "
        + " | ".join(cell(({"session": SESSION} | dict(ENTRANCES))[e][field]) for e in COLUMNS)
        + " |"
        for field in SESSION
    ]
    head = f"| field | {' | '.join(COLUMNS.values())} |"
    return "\n".join([head, "|---" * (len(COLUMNS) + 1) + "|", *rows]) + "\n"


def page(text: str) -> str:
    """The page with the table as it is now."""
    return _TABLE.sub(lambda _: table(), text, count=1)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(SESSION)} fields")
