"""docs/reference/program-file.md has the recipe table and the header of the code."""

from __future__ import annotations

import runpy
from pathlib import Path

from xpuruntime.program.file import MAGIC

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current() -> None:
    text = (ROOT / "docs" / "reference" / "program-file.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "scripts" / "program_page.py"))["page"](text)
    assert text == made, "run: python scripts/program_page.py"
    assert "| `quantize_int8` | 1 | `dim` |" in text
    assert f"magic `{MAGIC.decode().encode('unicode_escape').decode()}`" in text
