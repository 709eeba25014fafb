"""The scripts for machines with a GPU, as far as they go without one: imports, arguments, the plan, the table of Shows."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "gpu"


@pytest.fixture
def shows(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("shows")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu_machine")


def test_every_step_has_its_script_and_takes_its_arguments(
    shows: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shows.main(["--dry-run"]) == 0, capsys.readouterr().out
    plan = capsys.readouterr().out
    assert all(step.name in plan for step in shows.STEPS)


def test_tests_run_without_a_plugin_that_warns_beside_xdist(shows: ModuleType, tmp_path: Path) -> None:
    """pytest-benchmark, which images of vendors bring; turning off what is not installed is nothing to pytest."""
    (step,) = [s for s in shows.STEPS if s.name == "native-tests"]
    line = shows.line_of(step, tmp_path / "out.json")
    assert "no:benchmark" in line[line.index("-p") :]


def test_a_visit_is_under_ten_minutes(shows: ModuleType) -> None:
    for visit in shows.VISITS:
        assert sum(s.seconds for s in shows.STEPS if s.visit == visit) <= 700, (
            "limits are longest times, not usual ones"
        )
    names = [s.name for s in shows.STEPS]
    results = [s.result for s in shows.STEPS if s.result]
    assert len(set(names)) == len(names)
    assert len(set(results)) == len(results)


def test_a_dry_run_sees_what_is_wrong(shows: ModuleType) -> None:
    step = shows.Step
    assert shows.dry_run([step("none", 1, shows.PYTHON, ("no_such.py",), 9)]) == [
        "none: there is no no_such.py"
    ]
    (said,) = shows.dry_run([step("arguments", 1, shows.PYTHON, ("cuda_backend.py", "--no-such"), 9)])
    assert "refuses its arguments" in said
    (said,) = shows.dry_run([step("part", 1, shows.PYTHON, ("cuda_backend.py", "no_part"), 9)])
    assert "no part no_part" in said
    assert shows.dry_run([step("tests", 1, shows.PYTEST, ("tests/no_such",), 9)])
    assert shows.dry_run([step("shell", 1, shows.SHELL, ("if then",), 9)])


def test_a_step_that_fails_or_hangs_does_not_stop_the_next(
    shows: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = '{"shows": [{"show": "speed", "figure": 2.5, "limit": "at most 2", "unit": "ms", "holds": false, "required": true}]}'
    step, shell = shows.Step, shows.SHELL
    steps = (
        step("good", 1, shell, ("true",), 60, show="something"),
        step("bad", 1, shell, (f"echo '{row}' > {shows.FILE}; exit 3",), 60, "bad.json"),
        step("slow", 1, shell, ("sleep 60 & sleep 60",), 21),
        step("late", 1, shell, ("true",), 60),
    )
    monkeypatch.setattr(shows, "STEPS", steps)
    monkeypatch.setattr(shows, "SHORTEST", 0.5)
    assert shows.main(["1", "--results", str(tmp_path), "--seconds", "6"]) == 1
    found = json.loads((tmp_path / "shows-1.json").read_text())["steps"]
    assert [s["outcome"] for s in found] == ["holds", "does not hold", "out of time", "not run"]
    told = capsys.readouterr().out
    assert "does not hold" in told
    assert "2.5 ms" in told
    assert json.loads((tmp_path / "bad.json").read_text())["machine"]["command"].startswith("echo")


def test_parts_go_on_after_a_failure_and_rows_have_limits(machine: ModuleType, tmp_path: Path) -> None:
    def fails(report: object, asked: object) -> None:
        raise ValueError("broken")

    def measures(report: object, asked: object) -> dict[str, int]:
        report.show("fast", 0.4, at_most=0.5, unit="ms")
        report.show("faster", 0.4, at_most=0.3, unit="ms", required=False)
        report.show("share", None, at_least=0.8)
        return {"rows": 1}

    out = tmp_path / "out.json"
    parts = {"fails": fails, "measures": measures}
    assert machine.run_parts("A test.", parts, gpu=lambda: "none", given=["--out", str(out)]) == 1
    found = json.loads(out.read_text())
    assert found["fails"]["error"] == "ValueError: broken"
    assert found["measures"] == {"rows": 1}
    assert [r["holds"] for r in found["shows"]] == [True, False, False]
    assert found["failures"] == ["fails: ValueError: broken", "share: None , at least 0.8 was asked"]
    assert machine.run_parts("A test.", parts, gpu=sys.exit, given=["--dry-run"]) == 0, "no device is touched"
    with pytest.raises(SystemExit, match="no part other"):
        machine.run_parts("A test.", parts, gpu=lambda: "none", given=["other"])
