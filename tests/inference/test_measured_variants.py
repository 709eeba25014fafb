"""Variants of a library are measured on a device that offers them, over a cuDNN that computes on the host (cpp/tests/libraries)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
HERE = Path(__file__).resolve().parent


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ["in_a_file", "on_build"])
def test_variants_are_measured(case: str, simulated_cudnn: dict[str, str], tmp_path: Path) -> None:
    environment = {**os.environ, **simulated_cudnn, "XPU_CACHE_DIR": str(tmp_path / "default")}
    command = [sys.executable, str(HERE / "variants_on_a_device.py"), case, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
