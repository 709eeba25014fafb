"""Words that a machine can judge: banned ones in comments and docstrings, American spelling, class names, imports without cycles.

A line that needs a banned word says so in a comment: ``# words: lie``. STYLE of the project: CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "xpuruntime"

BANNED: Mapping[str, str] = {
    "beside": "next to",
    "goes": "is removed, is moved",
    "judge": "check",
    "judged": "checked",
    "judges": "checks",
    "lie": "is stored",
    "lies": "is stored",
    "lying": "stored",
    "meets": "encounters, satisfies",
    "snippets": "examples",
    "stand": "is listed",
    "stands": "is listed",
    "stranger": "third party",
    "strangers": "third-party models",
}
"""A word and what to write instead."""

BRITISH = re.compile(
    r"\b(?:behaviour|colour|centre|favour|honour|neighbour|recognis|normalis|quantis|summaris|optimis|initialis|serialis)\w*",
    re.I,
)
_WORD = re.compile(rf"\b(?:{'|'.join(BANNED)})\b", re.I)
_WAIVER = re.compile(r"(?:#|//) words: ([\w ,]+)")
_OTHERS = ("cpp/third_party/", "tests/layout/spec/", "tests/layout/test_words.py")


def files(*patterns: str) -> list[str]:
    done = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    return [n for n in done.stdout.split("\0") if n and not n.startswith(_OTHERS) and (ROOT / n).is_file()]


def prose_of_python(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of each line of a docstring or comment."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines = text.splitlines()[first.lineno - 1 : first.end_lineno]
                yield from enumerate(lines, first.lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose_of_cpp(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of each line comment."""
    for number, line in enumerate(text.splitlines(), 1):
        if "//" in line:
            yield number, line[line.index("//") :]


def banned(name: str, text: str) -> list[str]:
    """Return one message per banned word of a file."""
    if not _WORD.search(text):
        return []  # to parse all files takes seconds
    prose = prose_of_python(text) if name.endswith(".py") else prose_of_cpp(text)
    lines, faults = text.splitlines(), []
    for number, line in prose:
        waived = _WAIVER.search(lines[number - 1])
        allowed = {w.strip().lower() for w in waived[1].split(",")} if waived else set()
        faults += [
            f"{name}:{number}: {word!r}: write {BANNED[word.lower()]}"
            for word in _WORD.findall(_WAIVER.sub("", line))
            if word.lower() not in allowed
        ]
    return faults


def test_no_comment_or_docstring_has_a_banned_word() -> None:
    names = files("src/*.py", "src/*.h", "src/*.cuh", "cpp/*.cpp", "cpp/*.h")
    faults = [f for n in names for f in banned(n, (ROOT / n).read_text(encoding="utf-8"))]
    assert faults == []


def test_one_spelling() -> None:
    faults = []
    for name in files("*.py", "*.md", "*.h", "*.cuh", "*.cpp", "*.yml", "*.yaml", "*.toml"):
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            waived = _WAIVER.search(line)
            prose = re.sub(r"`[^`]*`", "", line) if name.endswith(".md") else line
            faults += [f"{name}:{number}: {w!r}" for w in BRITISH.findall(prose) if not waived]
    assert faults == []


OPENING = re.compile(r'^\s*r?"""(?:What|Whether)\b')
"""The first line of a docstring that asks instead of naming or saying what is done."""


def questions(name: str, text: str) -> list[str]:
    """Return one message per docstring that begins with What or Whether, attributes' included."""
    return [
        f"{name}:{number}: name the thing (a noun phrase), or say what is done (an imperative)"
        for number, line in enumerate(text.splitlines(), 1)
        if OPENING.match(line)
    ]


def test_no_docstring_begins_with_a_question() -> None:
    faults = [q for n in files("src/*.py") for q in questions(n, (ROOT / n).read_text(encoding="utf-8"))]
    assert faults == []


SPECIFIED = {"Dim", "DeviceBuffer"}
"""Names of the specification that a protocol and its implementation, or a private class, share."""


def repeated_classes(texts: Mapping[str, str]) -> list[str]:
    """Return the class names that several modules define at module level."""
    count = Counter(
        n.name for text in texts.values() for n in ast.parse(text).body if isinstance(n, ast.ClassDef)
    )
    return sorted(name for name, times in count.items() if times > 1 and name not in SPECIFIED)


def test_class_names_are_unique() -> None:
    texts = {str(p): p.read_text(encoding="utf-8") for p in SOURCE.rglob("*.py")}
    assert repeated_classes(texts) == []


# ── the checks find what is planted ──


@pytest.mark.parametrize(
    ("name", "text", "faults"),
    [
        ("a.py", '"""A row stands here."""\n', 1),
        ("a.py", "x = 1  # it lies beside y\n", 2),
        ("a.py", "x = 1  # a lie  # words: lie\n", 0),
        ("a.py", 'x = "stands"\n', 0),
        ("a.cuh", "int x;  // lies in memory\n", 1),
        ("a.cuh", "int lies;\n", 0),
    ],
)
def test_a_planted_word_is_found(name: str, text: str, faults: int) -> None:
    assert len(banned(name, text)) == faults


def test_a_planted_question_is_found() -> None:
    assert len(questions("a.py", 'def f():\n    """What it does."""\n')) == 1
    assert len(questions("a.py", '"""Whether it runs."""\n')) == 1
    assert questions("a.py", '"""Whatever runs."""\nx = "What"\n') == []


def test_a_second_class_of_a_name_is_found() -> None:
    assert repeated_classes({"a": "class Plan: ...", "b": "class Plan: ...", "c": "class Other: ..."}) == [
        "Plan"
    ]


def test_a_british_word_is_found() -> None:
    assert BRITISH.findall("the behaviour of colours") == ["behaviour", "colours"]
    assert BRITISH.findall("the behavior of colors") == []
