"""Plans of cuDNN follow the store of the session, over a driver without a device and a cuDNN that computes on the host (cpp/tests/libraries)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
HERE = Path(__file__).resolve().parent


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "cases", [("own_folder", "read_again"), ("without_caching",), ("executors",)], ids=" ".join
)
def test_plans_follow_the_store(
    cases: tuple[str, ...], simulated_cudnn: dict[str, str], tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        **simulated_cudnn,
        "XPU_CACHE_DIR": str(tmp_path / "default"),
    }
    for case in cases:
        command = [sys.executable, str(HERE / "plans_in_stores.py"), case, str(tmp_path / "own")]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=300, check=False
        )
        assert done.returncode == 0, f"{case}: {done.stderr}"
