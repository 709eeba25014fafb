"""docs/reference/policy-support.md says what each field of a policy does at each entrance, as the table that the entrances read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_current() -> None:
    spec = importlib.util.spec_from_file_location("entrances_page", ROOT / "scripts" / "entrances_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text, "run: python scripts/entrances_page.py"
    assert script.table() in text
