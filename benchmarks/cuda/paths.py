"""Import paths of these scripts: what they share with the acceptance checks of tests/gpu."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path += [str(_TESTS / "gpu"), str(_TESTS)]
