"""The table of decoder families in the documentation is generated from the code, and is up to date."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_families_is_current() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "families_page.py"))
    text = (ROOT / "docs" / "how-to" / "language-models.md").read_text(encoding="utf-8")
    assert script["table"]() in text
    assert script["page"](text) == text, "run: python scripts/families_page.py"
