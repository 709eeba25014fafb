"""The benchmarks of the issue run, check their outputs; their bounds are those of ``make bench-check``."""

from __future__ import annotations

import importlib.util
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
    assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: measured, and over the bound
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_overhead_is_measured_for_an_engine(engine: str) -> None:
    pytest.importorskip(engine)
    (row,) = run("overhead.py", "--engine", engine, "--pairs", "400")["rows"]
    assert row["bound_us"] == 5.0
    assert row["within_bound"] == (row["added_us"] <= row["bound_us"])
    low, high = row["added_us_interval"]
    assert low <= row["added_us"] <= high


@pytest.mark.sampled(one_in=3)
def test_a_known_call_of_an_op_is_measured_against_its_launch() -> None:
    pytest.importorskip("torch")
    result = run("dispatch.py")
    assert result["bound_us"] == 4.0
    assert set(result["us"]) >= {"launch", "ops.softmax, PyTorch"}


def test_imports_are_measured_against_numpy() -> None:
    result = run("import_time.py", "--processes", "2")
    assert result["bound_ms"] == 80.0
    assert result["within_bound"] == (result["added_ms"] <= result["bound_ms"])
    assert set(result["median_ms"]) >= {"nothing", "numpy", "xpuruntime"}


def test_each_bound_of_bench_check_is_held_or_exceeded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table says which; the exit code is 1 where one is exceeded."""
    spec = importlib.util.spec_from_file_location("bench_check", BENCHMARKS / "check.py")
    assert spec is not None
    assert spec.loader is not None
    check = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_check", check)  # its dataclass looks itself up
    spec.loader.exec_module(check)
    fast, slow = check.Bound("fast", 2.0, "s", lambda: 1.0), check.Bound("slow", 2.0, "s", lambda: 3.0)
    assert check.report([fast]) == 0
    assert check.report([fast, slow]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines] == ["held", "held", "EXCEEDED"]


@pytest.mark.parametrize("path", sorted((BENCHMARKS / "results").glob("*.json")), ids=lambda p: p.stem)
def test_a_kept_result_names_its_machine_and_command(path: Path) -> None:
    machine = json.loads(path.read_text(encoding="utf-8"))["machine"]
    assert machine.get("cpu") or machine.get("gpu")
    assert machine["command"].startswith(("python ", "scripts/test-gpu ", "xpu "))
    assert machine["versions"]["xpuruntime"]
