"""docs/reference/ops.md is what the op table says."""

from __future__ import annotations

import runpy
from pathlib import Path

from xpuruntime.ir import OPS

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_current() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "ops_page.py"))["page"]()
    assert (ROOT / "docs" / "reference" / "ops.md").read_text(encoding="utf-8") == made, (
        "run: python scripts/ops_page.py"
    )


def test_every_op_stands_on_it_once() -> None:
    text = (ROOT / "docs" / "reference" / "ops.md").read_text(encoding="utf-8")
    assert all(text.count(f"\n| `{name}(") == 1 for name in OPS)
