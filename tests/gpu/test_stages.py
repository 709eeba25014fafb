"""The scripts for machines with a GPU, as far as they go without one: imports, arguments, the plan, the table of checks."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parent


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("stages")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu_report")


def test_every_step_has_its_script_and_takes_its_arguments(
    stages: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stages.main(["--dry-run"]) == 0, capsys.readouterr().out
    plan = capsys.readouterr().out
    assert all(step.name in plan for step in stages.STEPS)


def test_calls_that_are_slower_after_another_one_have_equal_times(
    machine: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The median of all turns would be 10 or 30: their number is odd."""
    now, last = [0.0], [""]

    def call(name: str) -> None:
        now[0] += 10e-6 if last[0] == name else 30e-6
        last[0] = name

    monkeypatch.setattr(machine.time, "perf_counter", lambda: now[0])
    found = machine.called_together_us({"a": lambda: call("a"), "b": lambda: call("b")}, times=101)
    assert found == pytest.approx({"a": 20.0, "b": 20.0})


def test_tests_run_without_a_plugin_that_warns_beside_xdist(stages: ModuleType, tmp_path: Path) -> None:
    """pytest-benchmark, which images of vendors bring; turning off what is not installed is nothing to pytest."""
    (step,) = [s for s in stages.STEPS if s.name == "native-tests"]
    line = stages.line_of(step, tmp_path / "out.json")
    assert "no:benchmark" in line[line.index("-p") :]


def test_a_stage_is_under_ten_minutes(stages: ModuleType) -> None:
    for stage in stages.STAGES:
        assert sum(s.seconds for s in stages.STEPS if s.stage == stage) <= 700, (
            "limits are longest times, not usual ones"
        )
    names = [s.name for s in stages.STEPS]
    results = [s.result for s in stages.STEPS if s.result]
    assert len(set(names)) == len(names)
    assert len(set(results)) == len(results)


def test_a_dry_run_sees_what_is_wrong(stages: ModuleType) -> None:
    step = stages.Step
    assert stages.dry_run([step("none", 1, stages.PYTHON, ("tests/gpu/no_such.py",), 9)]) == [
        "none: there is no no_such.py"
    ]
    (said,) = stages.dry_run(
        [step("arguments", 1, stages.PYTHON, ("tests/gpu/cuda_backend.py", "--no-such"), 9)]
    )
    assert "refuses its arguments" in said
    (said,) = stages.dry_run([step("part", 1, stages.PYTHON, ("tests/gpu/cuda_backend.py", "no_part"), 9)])
    assert "no part no_part" in said
    assert stages.dry_run([step("tests", 1, stages.PYTEST, ("tests/no_such",), 9)])
    assert stages.dry_run([step("shell", 1, stages.SHELL, ("if then",), 9)])


def test_a_step_that_fails_or_hangs_does_not_stop_the_next(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = '{"checks": [{"check": "speed", "figure": 2.5, "limit": "at most 2", "unit": "ms", "holds": false, "required": true}]}'
    step, shell = stages.Step, stages.SHELL
    steps = (
        step("good", 1, shell, ("true",), 60, check="something"),
        step("bad", 1, shell, (f"echo '{row}' > {stages.FILE}; exit 3",), 60, "bad.json"),
        step("slow", 1, shell, ("sleep 60 & sleep 60",), 21),
        step("late", 1, shell, ("true",), 60),
    )
    monkeypatch.setattr(stages, "STEPS", steps)
    monkeypatch.setattr(stages, "SHORTEST", 0.5)
    assert stages.main(["1", "--results", str(tmp_path), "--seconds", "6"]) == 1
    found = json.loads((tmp_path / "stages-1.json").read_text())["steps"]
    assert [s["outcome"] for s in found] == ["holds", "does not hold", "out of time", "not run"]
    told = capsys.readouterr().out
    assert "does not hold" in told
    assert "2.5 ms" in told
    assert json.loads((tmp_path / "bad.json").read_text())["machine"]["command"].startswith("echo")


def test_all_stages_share_the_gpus_and_a_second_call_runs_what_has_not_passed(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def steps(last: str) -> None:
        note = f"echo $CUDA_VISIBLE_DEVICES >> {tmp_path}"
        commands = {"a": f"{note}/a; sleep 0.5", "b": f"{note}/b; sleep 0.5", "c": f"{note}/c; {last}"}
        monkeypatch.setattr(
            stages, "STEPS", tuple(stages.Step(n, 1, stages.SHELL, (c,), 60) for n, c in commands.items())
        )

    monkeypatch.setattr(stages, "SHORTEST", 0.5)
    call = ["all", "--devices", "3,5", "--results", str(tmp_path)]
    steps("false")
    assert stages.main(call) == 1
    assert {(tmp_path / n).read_text() for n in "ab"} == {"3\n", "5\n"}, "at the same time, on a GPU each"
    steps("true")
    assert stages.main(call) == 0
    assert [len((tmp_path / n).read_text().split()) for n in "abc"] == [1, 1, 2]
    found = json.loads((tmp_path / "stages-all.json").read_text())["steps"]
    assert {s["step"]: s["outcome"] for s in found} == dict.fromkeys("abc", "holds")
    monkeypatch.setattr(stages, "sources", lambda: "others")
    assert stages.main(call) == 0
    assert [len((tmp_path / n).read_text().split()) for n in "abc"] == [2, 2, 3], "other sources: all again"


@pytest.mark.parametrize("devices", ["a", "0,0", "0;1", "-1"])
def test_devices_are_different_indices(
    stages: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], devices: str
) -> None:
    with pytest.raises(SystemExit):
        stages.main(["all", f"--devices={devices}", "--results", str(tmp_path)])
    assert f"different indices of GPUs, such as 0,1; got '{devices}'" in capsys.readouterr().err


def test_an_interrupt_ends_the_running_step_and_begins_no_other(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    command = f"echo $$ >> {begun}; sleep 60"
    steps = tuple(stages.Step(name, 1, stages.SHELL, (command,), 60) for name in "ab")
    monkeypatch.setattr(stages, "STEPS", steps)

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.get_ident()
    threading.Thread(target=interrupt).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            stages.main(["1", "--results", str(tmp_path)])
    finally:
        signal.signal(signal.SIGINT, before)
    (process,) = begun.read_text().split()
    assert not Path("/proc", process).exists()
    assert not stages.RUNNING


def test_parts_go_on_after_a_failure_and_rows_have_limits(machine: ModuleType, tmp_path: Path) -> None:
    def fails(report: object, args: object) -> None:
        raise ValueError("broken")

    def measures(report: object, args: object) -> dict[str, int]:
        report.bound("fast", 0.4, at_most=0.5, unit="ms")
        report.bound("faster", 0.4, at_most=0.3, unit="ms", required=False)
        report.bound("share", None, at_least=0.8)
        return {"rows": 1}

    out = tmp_path / "out.json"
    parts = {"fails": fails, "measures": measures}
    assert machine.run_parts("A test.", parts, gpu=lambda: "none", argv=["--out", str(out)]) == 1
    found = json.loads(out.read_text())
    assert found["fails"]["error"] == "ValueError: broken"
    assert found["measures"] == {"rows": 1}
    assert [r["holds"] for r in found["checks"]] == [True, False, False]
    assert found["failures"] == ["fails: ValueError: broken", "share: None , at least 0.8 was asked"]
    assert machine.run_parts("A test.", parts, gpu=sys.exit, argv=["--dry-run"]) == 0, "no device is touched"
    with pytest.raises(SystemExit, match="no part other"):
        machine.run_parts("A test.", parts, gpu=lambda: "none", argv=["other"])


ABORTING = """
import os, sys, threading
sys.path.insert(0, sys.argv.pop(1))
from gpu_report import run_parts

def aborts_in_a_thread():
    os.abort()

def devices(report, args):
    threading.Thread(target=aborts_in_a_thread).start()
    threading.Event().wait(20)

sys.exit(run_parts("A test.", {"devices": devices}, gpu=lambda: "none"))
"""


def test_a_part_that_aborts_prints_the_stack_of_each_thread() -> None:
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONFAULTHANDLER"}
    command = [sys.executable, "-c", ABORTING, str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode < 0
    assert "Aborted" in done.stderr
    assert "in aborts_in_a_thread" in done.stderr
    assert "in devices" in done.stderr
