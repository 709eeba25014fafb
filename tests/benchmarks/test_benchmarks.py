"""The benchmarks of the issue run, check their outputs, and stay within their bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(name: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / name), "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.serial
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_run_adds_at_most_5_us_to_the_vendor_s_own(engine: str) -> None:
    pytest.importorskip(engine)
    (row,) = run("overhead.py", "--engine", engine, "--pairs", "4000")["rows"]
    assert row["added_us"] <= row["bound_us"] == 5.0
    low, high = row["added_us_interval"]
    assert low <= row["added_us"] <= high


@pytest.mark.serial
def test_a_known_call_of_an_op_adds_at_most_4_us_to_its_launch() -> None:
    pytest.importorskip("torch")
    result = run("dispatch.py")
    assert result["added_us"] <= result["bound_us"] == 4.0
    assert result["us"]["launch"] < result["us"]["ops.softmax, PyTorch"]


@pytest.mark.serial
def test_importing_costs_at_most_80_ms_more_than_numpy() -> None:
    result = run("import_time.py", "--processes", "7")
    assert result["added_ms"] <= result["bound_ms"] == 80.0
    assert result["median_ms"]["xpuruntime"] > result["median_ms"]["nothing"]


@pytest.mark.parametrize("path", sorted((BENCHMARKS / "results").glob("*.json")), ids=lambda p: p.stem)
def test_a_kept_result_names_its_machine_and_command(path: Path) -> None:
    machine = json.loads(path.read_text(encoding="utf-8"))["machine"]
    assert machine.get("cpu") or machine.get("gpu")
    assert machine["command"].startswith(("python ", "scripts/gpu/"))
    assert machine["versions"]["xpuruntime"]
