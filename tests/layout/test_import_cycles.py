"""Imports between files run one way: no cycle among module-level imports of the package."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "xpuruntime"


def imported(module: str, text: str, known: frozenset[str], *, package: bool) -> set[str]:
    """Return the modules of ``known`` that a module imports when it is loaded. Imports for type checkers do not count."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    walk(other)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    parts = module.split(".") if module else []
                    parts = parts if package else parts[:-1]
                    parts = parts[: len(parts) - (child.level - 1)]
                    base = ".".join([*parts, *([base] if base else [])])
                elif base.partition(".")[0] != "xpuruntime":
                    continue
                else:
                    base = base.partition(".")[2]
                names = {f"{base}.{n.name}" if base else n.name for n in child.names}
                found.update(names & known or ({base} & known))
            elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                walk(child)

    walk(ast.parse(text))
    return found - {module}


def cycle(texts: Mapping[str, str], packages: frozenset[str] = frozenset()) -> list[str]:
    """Return the modules of one cycle, or nothing."""
    known = frozenset(texts)
    graph = {m: imported(m, t, known, package=m in packages) for m, t in texts.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_file_imports_itself_by_way_of_others() -> None:
    texts, packages = {}, set()
    for path in SOURCE.rglob("*.py"):
        name = ".".join(p for p in path.relative_to(SOURCE).with_suffix("").parts if p != "__init__")
        texts[name] = path.read_text(encoding="utf-8")
        if path.name == "__init__.py":
            packages.add(name)
    assert cycle(texts, frozenset(packages)) == []


def test_a_planted_cycle_is_found() -> None:
    texts = {
        "a": "from . import b",
        "b": "from .c import x",
        "c": "from xpuruntime.a import y",
        "d": "from .a import z",
    }
    assert set(cycle(texts)) == {"a", "b", "c"}
    assert cycle(texts | {"c": "def f():\n    from .a import y"}) == []
    assert cycle(texts | {"c": "if TYPE_CHECKING:\n    from .a import y"}) == []
