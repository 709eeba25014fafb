"""Errors of what a user gave say what to do."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "xpuruntime"
KINDS = frozenset(["DeviceUnavailable", "EngineUnavailable", "InputError", "ModelError", "PolicyError"])


def without_remedy(text: str) -> list[int]:
    """Return the lines of errors of these kinds that have no ``do``."""
    if not any(kind in text for kind in KINDS):
        return []  # to parse all files takes seconds
    calls = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
    return [
        c.lineno
        for c in calls
        if isinstance(c.func, ast.Name)
        and c.func.id in KINDS
        and not any(k.arg in ("do", None) for k in c.keywords)
    ]


def test_every_error_has_a_remedy() -> None:
    found = {
        f"{p.relative_to(SOURCE)}:{line}"
        for p in SOURCE.rglob("*.py")
        for line in without_remedy(p.read_text("utf-8"))
    }
    assert found == set()


def test_an_error_without_one_is_noticed() -> None:
    assert without_remedy('raise InputError("x", "is bad", got=3)') == [1]
    assert without_remedy('raise InputError("x", "is bad", do="Mend it.")') == []
