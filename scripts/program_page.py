"""Write the table of recipe steps into docs/reference/program-file.md: `python scripts/program_page.py`. A test fails when it is stale."""

from __future__ import annotations

import re
from pathlib import Path

from xpuruntime.program.recipe_table import RECIPE_OPS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "program-file.md"
HEAD = "| step | inputs | attributes | gives |\n|---|---|---|---|\n"


def table() -> str:
    """Return the table, one row per step."""
    rows = []
    for row in RECIPE_OPS.values():
        min_inputs, max_inputs = row.inputs
        count = str(min_inputs) if min_inputs == max_inputs else f"{min_inputs} to {max_inputs}"
        attrs = ", ".join(f"`{name}`" for name in row.attrs)
        rows.append(f"| `{row.name}` | {count} | {attrs} | {row.doc.replace('|', chr(92) + '|')} |\n")
    return HEAD + "".join(rows)


def page(text: str) -> str:
    """Return the page with the current table."""
    return re.sub(re.escape(HEAD) + r"(?:[^\n]+\n)*", lambda _: table(), text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.name}: {len(RECIPE_OPS)} steps")
