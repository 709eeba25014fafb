"""What tests/gpu proves on a device, on the host: several processes of many threads, memory that stays, and programs that a sanitizer watches."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.native import check

import xpuruntime as xrt


def ran(repository: Path, tmp_path: Path, script: str, *arguments: str) -> dict[str, Any]:
    out = tmp_path / "result.json"
    command = [sys.executable, str(repository / "tests/gpu" / script), "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.sampled(one_in=2)
def test_two_processes_of_eight_threads_give_every_output_right(repository: Path, tmp_path: Path) -> None:
    found = ran(repository, tmp_path, "processes.py", "--device", "cpu", "--runs", "15")["together"]
    assert (found["right"], found["wrong"]) == (2 * 8 * 15, 0)
    assert found["ways"] == ["arrays", "buffers", "session"]


def test_runs_take_no_more_memory_than_the_first(repository: Path, tmp_path: Path) -> None:
    found = ran(repository, tmp_path, "memory.py", "--device", "cpu", "--runs", "1500", "flat")
    assert found["failures"] == []
    assert [row["check"] for row in found["checks"]] == [
        "memory of the host grown over 1500 runs",
        "blocks of device memory that 1500 runs took for themselves",
    ]


@pytest.fixture(scope="module")
def sanitize() -> ModuleType:
    folder = Path(__file__).resolve().parents[2] / "tests" / "gpu"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("sanitize", folder / "sanitize.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(folder))


@pytest.mark.sampled(one_in=2)
def test_what_the_sanitizer_watches_is_right_here_and_compiles_for_a_device(
    sanitize: ModuleType, part: Callable[[Sequence[str], int], list[str]]
) -> None:
    """All graphs of float32 are right; in the gate a drawn third is compiled."""
    graphs = {name: rest for name, *rest in sanitize.graphs() if "float32" in name}
    compiled = part(list(graphs), len(graphs) // 3)
    kernels = set()
    for name, (graph, given) in graphs.items():
        check(graph, given)
        if name in compiled:
            program = xrt.compile(graph, target="cuda:sm_90")
            kernels |= {c.kernel.partition("/")[0] for c in program.entries[0].plans[0].calls}
    families = {"elementwise", "softmax", "norm", "reduce", "matmul", "attention", "conv", "pool"}
    assert kernels >= families if len(compiled) == len(graphs) else kernels & families


def test_a_machine_without_the_tool_says_so(
    sanitize: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sanitize, "tool", lambda: "")
    out = tmp_path / "result.json"
    monkeypatch.setattr(sanitize, "name_of", lambda: "none")
    code = sanitize.main(["memcheck", "--out", str(out)])
    found = json.loads(out.read_text())
    assert code == 0
    assert found["memcheck"] == {"outcome": "did not start", "why": "no compute-sanitizer on this machine"}
    assert [(s["holds"], s["required"]) for s in found["checks"]] == [(False, False)]


TOOL = """#!{python}
import subprocess, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
print("right add float32")
open(log, "w").write("========= ERROR SUMMARY: {errors} error{s}\\n")
sys.exit({code})
"""


@pytest.mark.parametrize(("errors", "outcome"), [(0, "clean"), (3, "complaints")])
def test_the_tools_summary_is_read(
    sanitize: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, errors: int, outcome: str
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        TOOL.format(python=sys.executable, errors=errors, s="s" * (errors != 1), code=86 if errors else 0)
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "result.json"
    monkeypatch.setattr(sanitize, "name_of", lambda: "none")
    code = sanitize.main(["memcheck", "--out", str(out), "--seconds", "60"])
    found = json.loads(out.read_text())["memcheck"]
    assert (found["outcome"], found["errors"], code) == (outcome, errors, 1 if errors else 0)
