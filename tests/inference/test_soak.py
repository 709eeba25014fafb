"""A short run of ``scripts/soak.py``: outputs from several threads are right, and a wrong one is counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "soak.py"


def test_outputs_from_several_threads_are_right() -> None:
    command = [sys.executable, str(SCRIPT), "--runs", "2000", "--threads", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    facts = json.loads(done.stdout)
    assert (done.returncode, facts["runs"], facts["wrong"], facts["failed"]) == (0, 2000, 0, 0), done.stderr


def test_wrong_outputs_are_counted() -> None:
    code = f"""
import runpy, sys
import xpuruntime as xrt
sys.argv = ["soak.py", "--runs", "100", "--threads", "2"]
right = xrt.InferenceSession.run
xrt.InferenceSession.run = lambda self, **inputs: {{"y": right(self, **inputs)["y"] + 1}}
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["wrong"]) == (1, 100), done.stderr
