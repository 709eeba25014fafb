"""benchmarks/cuda/training.py on the host, with tiny sizes: contenders train, agree and report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cuda" / "training.py"


@pytest.mark.sampled(0)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", ["gpt2", "resnet50"])
def test_contenders_train_and_agree(part: str, tmp_path: Path) -> None:
    out = tmp_path / "training.json"
    names = ["eager", "xpuruntime", *(["xpuruntime, flash_v2"] if part == "gpt2" else [])]
    command = [
        sys.executable,
        str(SCRIPT),
        part,
        "--device",
        "cpu",
        "--small",
        "--steps",
        "1",
        "--rounds",
        "2",
    ]
    command += [w for n in names for w in ("--only", n)]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["failures"] == []
    assert {"gpu", "versions", "command", "date"} <= result["machine"].keys()
    figures = result[part]
    assert list(figures) == names
    for figure in figures.values():
        assert len(figure["losses"]) == 8
        assert len(figure["rounds_ms"]) == 2
        assert figure["loss_gap"] <= 0.02
    graphs = figures["xpuruntime"]["graphs"]
    assert {g["phase"] for g in graphs} == {"train_forward", "train_backward"}
    if part == "gpt2":
        (loss,) = (text for g in graphs for text in g["losses"].values())
        assert loss.startswith("fused")
