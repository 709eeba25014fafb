"""The tables in the documents are the tables in the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from xpuruntime import errors
from xpuruntime.decisions import REASONS
from xpuruntime.env import VARIABLES
from xpuruntime.numerics import TOLERANCE

ROOT = Path(__file__).resolve().parents[2]
CONCEPTS = (ROOT / "docs" / "concepts" / "core-concepts.md").read_text(encoding="utf-8")


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_reason_codes_are_those_of_the_code_in_its_order() -> None:
    assert rows(CONCEPTS, "Reason codes") == [[f"`{code.value}`", text] for code, text in REASONS.items()]


def test_the_environment_is_that_of_the_code_in_its_order() -> None:
    expected = [[f"`{v.name}`", f"`{v.default}`" if v.default else "", v.meaning] for v in VARIABLES.values()]
    assert rows(CONCEPTS, "Environment") == expected


def test_the_tolerances_are_those_of_the_code() -> None:
    assert rows(CONCEPTS, "Tolerances") == [[d.value, f"{t:g}"] for d, t in TOLERANCE.items()]


def test_exit_codes_of_errors_are_documented() -> None:
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    documented = {int(row[0]) for row in rows(page, "Exit codes")}
    assert {getattr(errors, name).exit_code for name in errors.__all__} <= documented


def test_the_two_readmes_link_the_same_pages_and_the_index_has_every_section() -> None:
    def links(name: str) -> set[str]:
        return set(re.findall(r"\]\((docs/[\w./-]+)\)", (ROOT / name).read_text(encoding="utf-8")))

    assert links("README.md") == links("README.ko.md")
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    sections = {p.name for p in (ROOT / "docs").iterdir() if p.is_dir() and any(p.rglob("*.md"))}
    assert sections <= {link.split("/")[0] for link in re.findall(r"\]\(([\w/-]+\.(?:md|ipynb))\)", index)}


def test_the_two_readmes_show_the_same_code_and_sections() -> None:
    def code(name: str) -> list[str]:
        text = (ROOT / name).read_text(encoding="utf-8")
        found = re.findall(r"^```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        return [re.sub(r"\s*#.*", "", block) for block in found]  # comments are in the reader's language

    def headings(name: str) -> int:
        return len(
            re.findall(r"^#+ ", FENCED.sub("", (ROOT / name).read_text(encoding="utf-8")), re.MULTILINE)
        )

    assert code("README.md") == code("README.ko.md")
    assert headings("README.md") == headings("README.ko.md")


FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def test_the_first_program_of_the_readme_is_twelve_lines() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 12


def test_the_readme_s_figures_are_those_that_were_kept() -> None:
    results = ROOT / "benchmarks" / "results"
    if not all((results / f"{name}.json").is_file() for name in ("models", "overhead", "import_time")):
        pytest.skip("no measurements are kept: run make bench")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "readme_table.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert all(json.loads(p.read_text(encoding="utf-8")) for p in results.glob("*.json"))
