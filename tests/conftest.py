"""What every test shares: no setting of the user's shell leaks in, and nothing is written to the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Drop every XPU_* variable and point the store at a folder of this test run (subprocesses inherit both)."""
    for name in [n for n in os.environ if n.startswith("XPU_") and not n.startswith("XPU_TEST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XPU_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "xpu-cache"))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return Path(__file__).resolve().parents[1]
