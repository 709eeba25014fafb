"""scripts/uv_options.py: pip's settings as options of uv, and a refusal of those that uv has no equal of."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def uv_options(repository: Path) -> Run:
    def run(lines: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/uv_options.py", *words]
        return subprocess.run(
            command, cwd=repository, input=lines, capture_output=True, text=True, check=False
        )

    return run


def test_later_sections_override_and_lists_are_split(uv_options: Run) -> None:
    lines = (
        ":env:.find-links='/b'\nglobal.find-links='/a'\nglobal.extra-index-url='http://one\\nhttp://two'\n"
        "install.no-index='false'\ndownload.index-url='http://other'\nglobal.cert='/etc/ca.pem'\n"
    )
    assert uv_options(lines).stdout.split() == [
        "--find-links", "/b", "--extra-index-url", "http://one", "--extra-index-url", "http://two",
    ]  # fmt: skip
    assert uv_options(lines, "--cert").stdout.strip() == "/etc/ca.pem"


def test_a_setting_without_an_equal_is_refused(uv_options: Run) -> None:
    done = uv_options("global.only-binary=':all:'\n")
    assert done.returncode == 1
    assert done.stderr == "uv_options: pip's setting only-binary=':all:' has no equal in uv\n"
