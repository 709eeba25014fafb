"""benchmarks/cuda/suite.py on the host: a case is judged by its error, and PyTorch's own NaN is no reference."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
FOLDER = Path(__file__).parents[2] / "benchmarks" / "cuda"
CASES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import suite
import torch

def built(network, batch):
    torch.manual_seed(0)
    scale = float(network.partition(".")[0])
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU()).eval(), (scale * torch.ones(batch, 6),)

def outcome(network):
    return suite.measured(suite.Case(network, "float32", 2, False), "cpu", None)

suite.built = built
rows = {"right": outcome("1.x"), "torch": outcome("nan.x")}
run = suite.xrt.InferenceSession.run
suite.xrt.InferenceSession.run = lambda self, feeds: {k: v * 1.001 for k, v in run(self, feeds).items()}
rows["wrong"] = outcome("1.x")
print(json.dumps([rows, suite.summary(rows)]))
"""


@pytest.mark.sampled(one_in=3)
def test_cases_are_judged() -> None:
    command = [sys.executable, "-c", CASES, str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows, summary = json.loads(done.stdout.splitlines()[-1])
    assert {name: row["outcome"] for name, row in rows.items()} == {name: name for name in rows}
    low, middle, high = rows["right"]["ratio"]
    assert 0 < low <= middle <= high or low <= 0 < middle <= high
    assert summary["outcomes"] == {"right": 1, "torch": 1, "wrong": 1}
