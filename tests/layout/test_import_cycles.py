"""Imports run one way, those inside functions included: no cycle between files, and none between folders of one parent."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "xpuruntime"

# (importer, imported) -> why the import may run upwards. Such an import is inside a function.
UPWARDS = {
    ("ir.graph", "ir.serialization.json_reader"): "Graph.load and from_json; the reader constructs Graphs",
    (
        "policies.files.file_form",
        "policies.files.load",
    ): "load and from_dict of policy classes; the loader constructs them",
    (
        "program.program",
        "program.file",
    ): "CompiledProgram.save and load; the file's table constructs its parts",
}


def imported(module: str, text: str, known: frozenset[str], *, package: bool) -> dict[str, bool]:
    """Return the modules of ``known`` that a module imports: True if any import of it is outside of functions.

    Imports for type checkers do not count.
    """
    found: dict[str, bool] = {}

    def add(names: Collection[str], *, inside: bool) -> None:
        for name in names:
            if name in known and name != module:
                found[name] = found.get(name, False) or not inside

    def walk(node: ast.AST, *, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # no expression has an import in it
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    walk(other, inside=inside)
            elif isinstance(child, ast.Import):
                add(
                    [n.name.partition(".")[2] for n in child.names if n.name.startswith("xpuruntime.")],
                    inside=inside,
                )
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
                names = (f"{base}.{n.name}" if base else n.name for n in child.names)
                add({n if n in known else base for n in names}, inside=inside)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                walk(child, inside=inside or function)

    walk(ast.parse(text), inside=False)
    return found


Edges = Mapping[str, Mapping[str, bool]]
"""Module -> each module that it imports -> whether any import of it is outside of functions."""


def edges_of(texts: Mapping[str, str], packages: Collection[str] = ()) -> Edges:
    known = frozenset(texts)
    return {m: imported(m, t, known, package=m in packages) for m, t in texts.items()}


def cycle_in(edges: Edges, upwards: Collection[tuple[str, str]]) -> list[str]:
    """Return the modules of one cycle, or nothing. An import of ``upwards`` counts only if it is outside of functions."""
    graph = {
        m: {other for other, at_top in found.items() if at_top or (m, other) not in upwards}
        for m, found in edges.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def cycle(texts: Mapping[str, str], upwards: Collection[tuple[str, str]] = ()) -> list[str]:
    return cycle_in(edges_of(texts), upwards)


@functools.cache
def package_edges() -> Edges:
    texts, packages = {}, set()
    for path in SOURCE.rglob("*.py"):
        name = ".".join(p for p in path.relative_to(SOURCE).with_suffix("").parts if p != "__init__")
        texts[name] = path.read_text(encoding="utf-8")
        if path.name == "__init__.py":
            packages.add(name)
    return edges_of(texts, packages)


def test_no_file_imports_itself_by_way_of_others() -> None:
    assert cycle_in(package_edges(), UPWARDS) == []


def folder_cycle_in(edges: Edges) -> list[str]:
    """Return the folders of one cycle between the folders of one parent, or nothing. A folder includes its subfolders."""
    parents = {m.rpartition(".")[0] for m in edges}
    folders = {f for m in parents for f in _with_ancestors(m)}
    for parent in folders | {""}:
        graph: dict[str, set[str]] = {}
        for importer, imports in edges.items():
            source = _subfolder(parent, importer, folders)
            targets = {_subfolder(parent, m, folders) for m in imports} - {source, None}
            if source is not None:
                graph.setdefault(source, set()).update(f for f in targets if f is not None)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            return list(error.args[1])
    return []


def _with_ancestors(folder: str) -> list[str]:
    parts = folder.split(".") if folder else []
    return [".".join(parts[: n + 1]) for n in range(len(parts))]


def _subfolder(parent: str, module: str, folders: Collection[str]) -> str | None:
    """Return the folder directly in ``parent`` that holds a module; None for a file of ``parent`` and for files elsewhere."""
    prefix = f"{parent}." if parent else ""
    if not module.startswith(prefix):
        return None
    folder = prefix + module.removeprefix(prefix).partition(".")[0]
    return folder if folder in folders else None


def test_no_folder_imports_itself_by_way_of_its_neighbors() -> None:
    assert folder_cycle_in(package_edges()) == []


def test_every_exception_is_needed() -> None:
    assert [pair for pair in UPWARDS if not cycle_in(package_edges(), UPWARDS.keys() - {pair})] == []


def test_a_planted_cycle_is_found() -> None:
    texts = {
        "a": "from . import b",
        "b": "from .c import x",
        "c": "from xpuruntime.a import y",
        "d": "from .a import z",
    }
    assert set(cycle(texts)) == {"a", "b", "c"}
    assert set(cycle(texts | {"c": "import xpuruntime.a"})) == {"a", "b", "c"}
    assert set(cycle(texts | {"c": "def f():\n    from .a import y"})) == {"a", "b", "c"}
    assert set(
        cycle(texts | {"c": "class C:\n    async def f(self):\n        import xpuruntime.a as a"})
    ) == {"a", "b", "c"}
    assert cycle(texts | {"c": "if TYPE_CHECKING:\n    from .a import y"}) == []
    assert cycle(texts | {"c": "def f():\n    if TYPE_CHECKING:\n        from .a import y"}) == []


def test_a_planted_cycle_of_folders_is_found() -> None:
    texts = {
        "p.a.x": "from ..b.x import f",
        "p.b.x": "",
        "p.b.c.y": "def f():\n    from ...a.z import g",
        "p.a.z": "",
        "p.base": "from .a.x import f",
    }
    assert cycle(texts) == []
    assert set(folder_cycle_in(edges_of(texts))) == {"p.a", "p.b"}
    assert folder_cycle_in(edges_of(texts | {"p.b.c.y": "from ...base import g"})) == []


def test_an_exception_allows_imports_in_functions_alone() -> None:
    texts = {"a": "from . import b", "b": "def f():\n    from .a import y"}
    assert cycle(texts, upwards={("b", "a")}) == []
    assert set(cycle(texts | {"b": "from .a import y"}, upwards={("b", "a")})) == {"a", "b"}
    assert set(cycle(texts, upwards={("a", "b")})) == {"a", "b"}
