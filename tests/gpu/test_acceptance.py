"""The acceptance checks of a GPU, each a process of its own: ``pytest -m gpu tests/gpu`` on a machine with one.

``scripts/test-gpu`` runs the same steps, and the measurements next to them, in stages of under ten minutes.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

stages = importlib.import_module("stages")
# Steps that run by name only need packages that most machines lack.
CHECKS = [
    s for s in stages.STEPS if s.stage and s.kind == stages.PYTHON and s.command[0].startswith("tests/gpu/")
]


@pytest.mark.gpu
@pytest.mark.parametrize("step", CHECKS, ids=lambda s: s.name)
def test_a_check_holds_on_the_gpu(step: stages.Step, tmp_path: Path) -> None:
    done = stages.run(step, tmp_path, step.seconds)
    failed = [row for row in done["rows"] if row.get("required", True) and not row["holds"]]
    assert (done["outcome"], failed) == ("holds", [])
