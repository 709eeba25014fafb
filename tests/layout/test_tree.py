"""The content of the repository: nothing of one machine, nothing large, nothing that could not be shared."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LARGEST = 400_000  # bytes; the largest photograph of the demo and the vendored test header are below it

# A folder at the root of one machine, an address of a package mirror, a credential. Each pattern is written so that
# this file does not match itself.
FORBIDDEN = {
    "a folder of one machine": re.compile(r"(?<![\w.])/(?:work|home/\w+|Users/\w+|root)/(?=\w)"),
    "a package index other than the default": re.compile(
        r"(?:--extra-index-url|--index-url|index-url\s*=)\s*\S"
    ),
    "an internal address": re.compile(
        r"https?://[\w.-]+\.(?:internal|local|corp|lan)\b|https?://(?:10|127|192\.168)\.\d"
    ),
    "a private key": re.compile(r"-----BEGIN (?:RSA |EC |OPENSSH )?PRIVATE" + " KEY"),
    "a token": re.compile(r"\b(?:ghp|gho|hf|sk|pypi)[_-][A-Za-z0-9_-]{24,}"),
}
# Tests of paths need paths.
MAY_NAME_A_HOME = {"tests/test_env.py", "tests/layout/test_tree.py"}


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [n for n in done.stdout.split("\0") if n and (ROOT / n).is_file()]


def test_no_file_names_a_machine_an_index_or_a_secret() -> None:
    found = []
    for name in tracked():
        if name in MAY_NAME_A_HOME:
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{name}: {what}: {m[0]!r}" for what, pattern in FORBIDDEN.items() for m in pattern.finditer(text)
        ]
    assert found == []


def test_no_file_is_large_or_built() -> None:
    names = tracked()
    assert [n for n in names if (ROOT / n).stat().st_size > LARGEST] == []
    assert [
        n for n in names if n.endswith((".onnx", ".so", ".whl", ".npubin", ".pth", ".safetensors", ".pyc"))
    ] == []


def test_what_a_visitor_looks_for_is_there() -> None:
    wanted = [
        "README.md",
        "README.ko.md",
        "LICENSE",
        "CHANGELOG.md",
        "AGENTS.md",
        "Makefile",
        "pyproject.toml",
        ".ci/run",
    ]
    assert [n for n in wanted if not (ROOT / n).is_file()] == []
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_test_files_have_distinct_names_and_no_packages() -> None:
    names = [Path(n).name for n in tracked() if n.startswith("tests/") and Path(n).name.startswith("test_")]
    assert sorted(n for n in set(names) if names.count(n) > 1) == []
    assert [
        n
        for n in tracked()
        if n.startswith("tests/") and n.endswith("__init__.py") and not n.startswith("tests/support/")
    ] == []
