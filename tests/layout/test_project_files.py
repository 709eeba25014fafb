"""What a repository's host reads: workflows call scripts that exist, templates are forms, and scripts for releases and commits work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
COMMANDS = re.compile(r"(?:^|[\s&|;])((?:scripts|\.ci)/[\w.-]+)")


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_a_workflow_calls_scripts_that_anybody_can_run(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    texts = [step["run"] for step in steps(workflow) if "run" in step]
    for job in workflow["jobs"].values():
        texts += job.get("strategy", {}).get("matrix", {}).get("command", [])
    named = {name for text in texts for name in COMMANDS.findall(text)}
    assert named
    for name in named:
        assert os.access(ROOT / name, os.X_OK), name
    for step in steps(workflow):
        assert "run" in step or re.fullmatch(r"[\w/-]+@[\w./]+", step["uses"]), step


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml")), ids=lambda p: p.stem
)
def test_a_template_is_a_form(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    ids = [field["id"] for field in form["body"]]
    assert len(ids) == len(set(ids))
    assert all(field["attributes"]["label"] for field in form["body"])
    assert any(field["validations"]["required"] for field in form["body"])


def test_hooks_run_scripts_that_exist() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    for hook in hooks:
        words = hook["entry"].split()
        assert os.access(ROOT / words[0], os.X_OK)
        assert all((ROOT / word).exists() for word in words[1:])


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("codegen: keep compiled C++ in the store", ""),
        ("kernels/cuda, tests: add a row", ""),
        ('Revert "codegen: keep compiled C++ in the store, as cubins are, and more than that"', ""),
        ("Keep compiled C++", "is not `area: summary`"),
        ("codegen: keep compiled C++.", "is not `area: summary`"),
        ("codegen:keep", "is not `area: summary`"),
        ("codegen: " + "k" * 70, "has 79 characters; at most 72 are allowed"),
    ],
)
def test_a_commit_s_subject_is_checked(subject: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "message").write_text(f"{subject}\n\nWhy.\n")
    command = [sys.executable, str(ROOT / "scripts" / "commit_subject.py"), str(tmp_path / "message")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, said in done.stderr) == (1 if said else 0, True)


def test_the_history_s_subjects_are_checked(tmp_path: Path) -> None:
    """The script of another repository, in which a commit before and one after the start have no area."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.example", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(subject: str) -> str:
        git("commit", "-q", "--allow-empty", "-m", subject)
        return git("rev-parse", "HEAD")

    text = (ROOT / "scripts" / "commit_subject.py").read_text()
    (start,) = re.findall('^START = "(.*)"', text, re.MULTILINE)
    script = tmp_path / "scripts" / "commit_subject.py"
    script.parent.mkdir()

    def checked(first: str) -> subprocess.CompletedProcess[str]:
        script.write_text(text.replace(start, first))
        return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)

    git("init", "-q")
    first, second = commit("Before the rule"), commit("area: keep it")
    assert (checked(first).returncode, checked(first).stderr) == (0, "")
    commit("after the rule")
    assert checked(second).returncode == 1
    assert "'after the rule' is not `area: summary`" in checked(first).stderr
    assert "Before" not in checked(first).stderr
    unknown = checked("0" * 40)
    assert (unknown.returncode, "not in this clone" in unknown.stdout) == (0, True)


def test_the_files_that_name_a_version_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    command = [sys.executable, str(ROOT / "scripts" / "release_check.py"), f"v{version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_release_needs_one_version_everywhere(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "release_check.py", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CMakeLists.txt").write_text("project(xpuruntime VERSION 1.2.3 LANGUAGES CXX)\n")
    changes = tmp_path / "CHANGELOG.md"
    changes.write_text("## [Unreleased]\n\n## [1.2.3] - 2026-01-01\n")

    def checked(*tag: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "scripts" / "release_check.py"), *tag]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert checked("v1.2.3").returncode == 0
    assert checked("v1.2.4").stderr.count("the tag names 1.2.4") == 3
    changes.write_text("## [Unreleased]\n")
    assert "CHANGELOG.md names version none" in checked("v1.2.3").stderr
    assert checked().returncode == 2
