"""docs/reference/policies.md runs unchanged, and says what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from xpuruntime.policies.vocabulary import DIMS, PHASES

DOC = Path(__file__).parents[2] / "docs" / "reference" / "policies.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOC.read_text(), re.M | re.S)


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_block_runs(tmp_path, index):
    run = subprocess.run(
        [sys.executable, "-c", BLOCKS[index]], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    if "decision.explain()" in BLOCKS[index]:
        assert run.stdout in DOC.read_text(), "the printed decision is the one that the page shows"


def test_there_are_blocks():
    assert len(BLOCKS) >= 5


def test_the_page_lists_every_dim_and_phase():
    text = DOC.read_text()
    for family, dims in DIMS.items():
        row = next(
            line
            for line in text.splitlines()
            if line.startswith("| `") and f"`{family}`" in line and "`op`" not in line
        )
        assert [d for d in dims if f"`{d}`" not in row] == [], family
    assert [p for p in PHASES if f"`{p}`" not in text] == []
