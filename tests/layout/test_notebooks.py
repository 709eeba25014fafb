"""The notebooks run from the first cell to the last, and hold what they printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("onnxruntime", "openvino", "torch", "transformers"):
    pytest.importorskip(package)

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {
        "choose_an_engine",
        "pin_a_policy",
        "language_model",
        "training",
    }


@pytest.mark.sampled(1, one_in=2)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert any(cell.get("outputs") for cell in cells), "run: python scripts/notebooks.py"
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "notebooks.py"), "--check", path.stem],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
