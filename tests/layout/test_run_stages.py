"""The stages of `make test` and `make test-all`: each runs whatever the ones before it say, and the last line is the sum."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")

FAILS = "echo 'FAILED tests/test_a.py::test_b - no'; echo '1 failed, 2 passed, 9 deselected in 1.00s'; exit 1"
DIES = "kill -9 $$"
PASSES = "echo '5 passed, 1 skipped, 1 xfailed in 2.00s (0:00:02)'"


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -uo pipefail\n. scripts/stages\n{script}"],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def table(text: str) -> list[tuple[str, str]]:
    rows = (
        re.fullmatch(r"(\S.*?)\s+(passed|passed before|failed \(\d+\))\s+\d+ s", line)
        for line in text.splitlines()
    )
    return [(row[1], row[2]) for row in rows if row]


def test_a_first_stage_that_fails_keeps_no_other_from_running() -> None:
    done = run(
        'stage one sh -c "$A"\nstage two sh -c "$B"\nstage three sh -c "$C"\nfinish',
        A=FAILS,
        B=DIES,
        C=PASSES,
    )
    assert done.returncode == 137
    assert table(done.stdout) == [("one", "failed (1)"), ("two", "failed (137)"), ("three", "passed")]
    assert (
        done.stdout.count("FAILED tests/test_a.py::test_b - no") == 2
    )  # where it happened, and in the summary
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"7 passed, 1 failed, 1 skipped, 1 xfailed in \d+ s", last)


def test_stages_that_pass_end_in_zero() -> None:
    done = run('stage one sh -c "$A"\nfinish', A=PASSES)
    assert done.returncode == 0
    assert table(done.stdout) == [("one", "passed")]


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """A stage that passed on the same sources counts without running again; one that failed or was killed runs."""
    script = 'stage "a, b" sh -c "$A"\nstage c sh -c "$B"\nfinish'
    first = run(script, A=PASSES, B="echo half; kill -9 $PPID", finished=str(tmp_path))
    assert first.returncode == -9 or "c" not in dict(table(first.stdout))
    again = run(script, A="exit 3", B=FAILS, finished=str(tmp_path))
    assert table(again.stdout) == [("a, b", "passed before"), ("c", "failed (1)")]
    assert re.fullmatch(r"7 passed, 1 failed, 1 skipped, 1 xfailed in \d+ s", again.stdout.splitlines()[-1])
    last = run(script, A="exit 3", B=PASSES, finished=str(tmp_path))
    assert table(last.stdout) == [("a, b", "passed before"), ("c", "passed")]
    assert (
        table(run(script, A="exit 3", B=PASSES, finished=str(tmp_path / "others")).stdout)[0][1]
        == "failed (3)"
    )


def test_the_parallel_stage_has_a_process_for_each_core(tmp_path: Path) -> None:
    fake = tmp_path / "pytest"
    fake.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 1\n')
    fake.chmod(0o755)
    done = run("parallel_stage pytest\nfinish", pytest=str(fake))
    assert table(done.stdout) == [("pytest", "failed (1)")]
    (words,) = (line.split("|") for line in done.stdout.splitlines() if line.startswith("-"))
    assert words[words.index("-n") + 1] == str(len(os.sched_getaffinity(0)))
    assert words[words.index("-m") + 1] == "not gpu and not conformance"


def order(script: str) -> list[str]:
    """The stages that a script names, in order and each once; comments aside."""
    text = re.sub(r"^\s*#.*$", "", (ROOT / "scripts" / script).read_text(), flags=re.MULTILINE)
    return list(dict.fromkeys(re.findall(r"\b(parallel_stage|cpp_stages|finish)\b", text)))


@pytest.mark.parametrize("script", ["test", "test-all"])
def test_a_run_holds_every_stage(script: str) -> None:
    assert order(script) == ["parallel_stage", "cpp_stages", "finish"]
    named = run("declare -f cpp_stages").stdout
    assert all(words in named for words in ("address,undefined", "thread"))


def test_everything_includes_the_cpp_tests_without_sanitizers() -> None:
    assert "scripts/test-cpp plain" in (ROOT / "scripts" / "test-all").read_text()


@pytest.mark.parametrize(("script", "seed"), [("test", "${XPU_TEST_SEED:-commit}"), ("test-all", "all")])
def test_only_the_gate_samples(script: str, seed: str) -> None:
    assert f"XPU_TEST_SEED={seed}" in (ROOT / "scripts" / script).read_text()


def test_every_file_runs_once_and_lower_levels_run_what_compiles(tmp_path: Path) -> None:
    """The script itself, with pytest replaced: which levels, seeds and folders it would run."""
    fake = tmp_path / "bin" / "python"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\ncase "$1 $2" in -c*affinity*) echo 2 ;; -c*) printf "high highest\\nmiddle as-wide\\nlow narrower\\n" ;; scripts/digest*) echo here ;; '
        '*) echo "- ${XPU_TEST_LEVEL:-own} $XPU_TEST_SEED $*" ;; esac\n'
    )
    fake.chmod(0o755)
    text = (ROOT / "scripts" / "test-all").read_text()
    for ours, here in {
        "scripts/setup || exit": f"VENV={tmp_path}",
        'cd "$(dirname "$0")/.."': f"cd {ROOT}",
        "build/test-all/": f"{tmp_path}/",
        "scripts/test-cpp plain": "true",
        "cpp_stages\n": "true\n",
        "$PWD/$VENV": "$VENV",
    }.items():
        assert ours in text
        text = text.replace(ours, here)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=60, check=False)
    runs = [line.split() for line in done.stdout.splitlines() if line.startswith("- ")]
    parallel = [(r[1], r[2], r[r.index("conformance") + 1 :]) for r in runs if "--dist" in r]
    own = [folders for level, seed, folders in parallel if (level, seed) == ("own", "all")]
    assert len(own) == 4, done.stdout + done.stderr
    rest = {f.removeprefix("--ignore=") for f in own[-1] if f.startswith("--ignore=")}
    assert own[-1][0] == "tests"
    assert sorted(rest) == sorted(f for folders in own[:-1] for f in folders)
    kernels = ["tests/kernels", "tests/native", "tests/codegen"]
    models = ["tests/llm", "tests/pytorch", "tests/inference", "tests/conformance"]
    lower = [
        (level, seed, [f for f in folders if not f.startswith("--ignore=")])
        for level, seed, folders in parallel[4:]
    ]
    products = [f for f in lower[0][2] if f != "--own-level"]
    assert all(f.startswith("tests/kernels/test_") for f in products)
    assert lower == [
        ("middle", "all", [*products, "--own-level"]),
        ("middle", "commit", [*kernels, "--own-level"]),
        ("low", "all", [*kernels, "--own-level"]),
        ("low", "commit", [*models, "--own-level"]),
    ]
    ignored = {f.removeprefix("--ignore=") for _, _, folders in parallel[5:] for f in folders} - {
        "--own-level"
    }
    assert "tests/kernels/cuda" in ignored
    assert [f for f in (*ignored, *products) if not (ROOT / f).exists()] == []
