"""Sampling by a seed: what a run with one leaves out, and that a run without one leaves out nothing."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = """
import os
import pytest

@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", range(20))
def test_heavy(case):
    pass

@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", range(20))
def test_other(case):
    pass

@pytest.mark.sampled(3)
def test_single():
    pass

@pytest.mark.parametrize("case", [pytest.param(0, marks=pytest.mark.sampled(1)), pytest.param(1, marks=pytest.mark.sampled(1)), 2])
def test_some_cases(case):
    pass

@pytest.mark.sampled(1, group="pair")
def test_pair_one():
    pass

@pytest.mark.sampled(1, group="pair")
def test_pair_two():
    pass

@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("case", range(3))
def test_rare(case):
    pass

@pytest.mark.sampled(1, one_in=4)
@pytest.mark.parametrize("case", range(3))
def test_rare_case(case):
    pass

def test_part(part):
    assert len(part(list("abcdef"), 2)) == (6 if os.environ["XPU_TEST_SEED"] == "all" else 2)
    assert part(list("abcdef"), 2) == sorted(part(list("abcdef"), 2))

def test_light():
    pass

@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v2"])
def test_on(target):
    pass
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A folder without Git that has this project's conftest and a file of heavy tests."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("tests/conftest.py", "scripts/digest", "pyproject.toml"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(repository / name, folder / name)
    (folder / "tests" / "test_heavy.py").write_text(HEAVY)
    return folder


@functools.cache
def ran(project: Path, *options: str, seed: str = "") -> tuple[set[str], str]:
    """The tests that passed, and all that pytest says."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"XPU_TEST_SEED": seed, "GIT_CEILING_DIRECTORIES": str(project.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "tests", *options],
        cwd=project, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 5), done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if " PASSED" in line or "PASSED tests" in line]
    return {name for line in lines for name in re.findall(r"::(test_[\w\[\]]+)", line)}, done.stdout


def test_without_a_seed_every_case_runs(project: Path) -> None:
    names, said = ran(project)
    assert len({n for n in names if not n.startswith("test_on")}) == 54
    assert "sampled tests: every case" in said


def test_a_seed_draws_as_many_cases_as_the_mark_says(project: Path) -> None:
    names, said = ran(project, seed="a")
    assert "sampled tests: repeat with --seed a" in said
    assert len([n for n in names if n.startswith("test_heavy")]) == 2
    assert len([n for n in names if n.startswith("test_other")]) == 2
    some = {n for n in names if n.startswith("test_some_cases")}
    assert len(some) == 2
    assert "test_some_cases[2]" in some
    assert len([n for n in names if n.startswith("test_pair")]) == 1
    assert {"test_single", "test_light"} < names
    assert "44 deselected" in said
    assert "sampled tests: 44 cases left out" in said


def test_own_level_leaves_out_what_names_a_level(project: Path) -> None:
    names, said = ran(project, "--own-level")
    assert "test_on[cpu]" in names
    assert "test_on[cpu" not in names
    assert "1 deselected" in said


def test_another_seed_draws_others(project: Path) -> None:
    assert ran(project, "--seed", "b")[0] != ran(project, seed="a")[0]


@pytest.mark.parametrize(("seed", "rare", "cases"), [("a", 0, 0), ("e", 3, 0)])
def test_one_of_several_seeds_draws_a_test(project: Path, seed: str, rare: int, cases: int) -> None:
    names, _ = ran(project, seed=seed)
    assert len([n for n in names if n.startswith("test_rare[")]) == rare
    assert len([n for n in names if n.startswith("test_rare_case[")]) == cases


def test_workers_draw_the_same_cases(project: Path) -> None:
    assert ran(project, "-n", "2", seed="a")[0] == ran(project, seed="a")[0]


def test_commit_is_a_digest_of_the_sources_where_there_is_no_git(project: Path) -> None:
    (project / "src").mkdir(exist_ok=True)
    seeds = []
    for text in ("one", "two"):
        (project / "src" / "file.py").write_text(text)
        seeds += re.findall(r"--seed (\w{64})\n", ran(project, "-k", text, seed="commit")[1])
    assert len(set(seeds)) == 2


def test_a_test_that_hangs_is_ended(project: Path, tmp_path: Path) -> None:
    """A test has the limit that scripts/test gives, or its own."""
    shutil.copy(project / "pyproject.toml", tmp_path)
    (tmp_path / "tests").mkdir()
    hangs = "import time, pytest\n@pytest.mark.timeout(1)\ndef test_hangs():\n    time.sleep(60)\n"
    (tmp_path / "tests" / "test_hangs.py").write_text(hangs)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--timeout", "300", "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode != 0
    assert "timeout: 300.0s" in done.stdout
    assert "Timeout" in done.stdout + done.stderr


@pytest.mark.parametrize(("seed", "quick"), [("a", {"llm"}), ("", set())])
def test_only_sampled_runs_compile_quickly_and_only_what_is_not_about_kernels(
    project: Path, tmp_path: Path, seed: str, quick: set[str]
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(project, folder, ignore=shutil.ignore_patterns("test_heavy.py", "__pycache__"))
    for name in ("kernels", "llm", "native"):
        (folder / "tests" / name).mkdir()
        (folder / "tests" / name / f"test_code_{name}.py").write_text(
            "from xpuruntime.codegen.cpp.target import cpu_target\n"
            f"def test_{name}():\n"
            f"    assert ('-Og' in cpu_target('cpu').isa.march_flags) == {name in quick}\n"
        )
    names, _ = ran(folder, seed=seed)
    assert names == {"test_kernels", "test_llm", "test_native"}
