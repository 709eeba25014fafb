"""The training example: losses fall, agree with eager PyTorch's, and are plotted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

for package in ("torch", "matplotlib"):
    pytest.importorskip(package)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.sampled(one_in=3)
def test_losses_agree_and_are_plotted(tmp_path: Path) -> None:
    command = [sys.executable, "examples/training_kernel_policy.py", "--steps", "12", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--plot", str(tmp_path / "losses.png")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rms_norm_backward" in done.stdout
    assert "linear_backward" in done.stdout
    assert (tmp_path / "losses.png").stat().st_size > 5_000
