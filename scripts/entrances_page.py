"""Write the table of docs/reference/policy-support.md from ENTRANCES: `python scripts/entrances_page.py`. A test fails when it is stale."""

from __future__ import annotations

import re
from pathlib import Path

from xpuruntime.policies.entrances import ENTRANCES, SESSION, FieldUse

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "policy-support.md"
_TABLE = re.compile(r"(?<=a test compares\. -->\n)(TABLE|(?:\|.*\n)+)")

COLUMNS = {
    "session": "`InferenceSession`, `xpu run`, `compare`, `bench`",
    "compile": "`xrt.compile`, `xpu compile`",
    "Generator": "`Generator`, `BatchGenerator`, `generate`, `xpu generate`",
    "ops": "`xrt.ops`",
    "partition": "`partition`",
    "DAGExecutor": "`DAGExecutor`",
    "Executor": "`Executor`",
}


def cell(use: FieldUse) -> str:
    """Return what a field does, and what is an error."""
    if use.takes is None:
        return use.does
    wrong = f"error: {use.why}"
    return f"{use.does}; otherwise an {wrong}" if use.does else wrong


def table() -> str:
    """Return a line per field and behavior, with the entry points that share it."""
    lines = ["| field | entry points | what happens |", "|---|---|---|"]
    for field in SESSION:
        shared: dict[str, list[str]] = {}
        for entrance, title in COLUMNS.items():
            uses = SESSION if entrance == "session" else ENTRANCES[entrance]
            shared.setdefault(cell(uses[field]), []).append(title)
        shown = f"`{field}`"
        for text, titles in shared.items():
            lines.append(f"| {shown} | {', '.join(titles)} | {text[:1].upper() + text[1:]} |")
            shown = ""
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the page with the current table."""
    return _TABLE.sub(lambda _: table(), text, count=1)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(SESSION)} fields")
