"""docs/reference/passes.md lists the passes as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_is_current() -> None:
    spec = importlib.util.spec_from_file_location("passes_page", ROOT / "scripts" / "passes_page.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text, "run: python scripts/passes_page.py"
    assert script.table() in text
