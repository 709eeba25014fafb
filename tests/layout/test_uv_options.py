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
    settings = {
        ":env:.find-links": "/b",
        "global.find-links": "/a",
        "global.extra-index-url": "http://one\nhttp://two",
        "install.no-index": "false",
        "download.index-url": "http://other",
        "global.cert": "/etc/ca.pem",
    }
    lines = "".join(f"{key}={value!r}\n" for key, value in settings.items())
    assert uv_options(lines).stdout.split() == [
        "--find-links", "/b", "--index", "http://one", "--index", "http://two",
    ]  # fmt: skip
    assert uv_options(lines, "--cert").stdout.strip() == "/etc/ca.pem"


def test_a_setting_without_an_equal_is_refused(uv_options: Run) -> None:
    done = uv_options("global.only-binary=':all:'\n")
    assert done.returncode == 1
    assert done.stderr == "uv_options: pip's setting only-binary=':all:' has no equal in uv\n"
