"""The import table: which part may know which, function-level imports included.

What a type checker alone sees (`if TYPE_CHECKING:`) runs nothing and is free. The strings of `plugins` are the seam
through which an engine is reached; they are not imports.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "xpuruntime"

# Leaves, in order: each may know those to its left.
LEAVES = (
    "lazy", "printable", "errors", "arguments", "env", "dims", "types", "casts", "targets", "decisions", "evidence", "protocols", "plugins", "numerics",
    "children", "storage", "fault_reports", "child_calls", "faults", "progress", "families",
)  # fmt: skip
CORE = "_core"  # the C++ core's Python module

# part -> parts it may import, in addition to the leaves and itself. The most specific row wins.
MAY_KNOW: dict[str, tuple[str, ...]] = {
    "ir": (),
    "program": (),
    "policies": (),
    "frontends": ("ir",),
    "passes": ("ir",),
    "codegen": ("ir", "program", CORE),
    "kernels": ("ir", "program", "policies", "codegen"),
    "engines": ("program", "runtime"),
    "engines.*.build": ("ir", "frontends.onnx_writer", "program", "runtime"),
    "engines.*.plugin": (),
    "compiler": ("ir", "passes", "kernels", "codegen", "policies", "program"),
    # policies: in functions alone, and only where one may be set; tests/program/test_program_alone.py holds that.
    "runtime": ("program", "policies", CORE),
    "profiler": ("program", "runtime", CORE),
    "inference": (
        "ir", "program", "policies", "frontends", "passes", "codegen", "kernels", "engines", "compiler", "runtime",
        "profiler", CORE,
    ),
}  # fmt: skip
MAY_KNOW["llm"] = MAY_KNOW["workbench"] = ("inference", *MAY_KNOW["inference"])
MAY_KNOW["pytorch"] = MAY_KNOW["serving"] = MAY_KNOW["testing"] = ("workbench", "llm", *MAY_KNOW["workbench"])
MAY_KNOW["__main__"] = ("cli",)
MAY_KNOW["cli"] = ("pytorch", "serving", "testing", *MAY_KNOW["testing"])

# Rooms inside a part -> rooms of the same part that they may not know (`kernels/__init__.py` describes them).
MAY_NOT_KNOW: dict[str, tuple[str, ...]] = {
    "kernels.spec": ("kernels.cpu", "kernels.cuda", "kernels.portable", "kernels.user"),
    "kernels.portable": ("kernels.cpu", "kernels.cuda", "kernels.user"),
    "kernels.cpu": ("kernels.cuda", "kernels.user"),
    "kernels.cuda": ("kernels.cpu", "kernels.user"),
    "kernels.user": ("kernels.spec", "kernels.portable", "kernels.cpu", "kernels.cuda"),
    "kernels.kernel": ("kernels.spec", "kernels.portable", "kernels.cpu", "kernels.cuda", "kernels.user"),
}

# Engine -> the engine that it is a part of: QNN is an execution provider of ONNX Runtime.
BUILT_ON = {"qnn": "onnxruntime"}

# Packages of others: where at module level, where inside functions.
EVERYWHERE = {"numpy", "ml_dtypes"}
AT_TOP: dict[str, set[str]] = {"cli": {"typer", "rich", "click"}, "policies": {"yaml"}, "pytorch": {"torch"}}
VENDORS = {
    "torch",
    "onnx",
    "onnxruntime",
    "onnxruntime_qnn",
    "openvino",
    "tensorrt",
    "transformers",
    "tensorflow",
    "jax",
    "onnxscript",
    "onnx_ir",
}
IN_FUNCTIONS: dict[str, set[str]] = {
    "storage": set(),
    "policies": {"yaml"},
    "ir": {"safetensors"},
    "program": {"yaml"},
    "frontends": {"onnx", "torch", "openvino"},
    "passes": {"onnx", "torch"},
    "engines.onnxruntime": {"onnxruntime", "onnx"},
    "engines.openvino": {"openvino", "onnx"},
    "engines.qnn": {"onnxruntime", "onnxruntime_qnn", "onnx"},
    "engines.tensorrt": {"tensorrt", "onnx"},
    "profiler": {"matplotlib", "jinja2"},
    "inference": {"onnx"},
    "llm": {"safetensors", "tokenizers", "transformers", "jinja2", "gguf", "llguidance"},
    "pytorch": {"torch"},
    "testing": {"hypothesis", "pytest", "yaml", "polygraphy", "timm", "torchvision", *VENDORS},
    "workbench": {"matplotlib", "jinja2", "PIL", "scipy", *VENDORS},
    "cli": {"matplotlib", "PIL", "yaml", "rich", "typer"},
    "progress": {"rich"},
}


@dataclass(frozen=True)
class Import:
    """One import statement: the module that holds it, what it names, and whether it waits inside a function."""

    importer: str
    imported: str
    line: int
    deferred: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}" + (
            " (in a function)" if self.deferred else ""
        )


def imports(importer: str, text: str, *, package: bool) -> Iterator[Import]:
    """Every import of a module (dotted below xpuruntime, "" for the package itself), absolute names as they are."""

    def walk(node: ast.AST, deferred: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # no expression has an import in it
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    yield from walk(other, deferred)
            elif isinstance(child, ast.Import):
                for name in child.names:
                    yield Import(importer, name.name, child.lineno, deferred)
            elif isinstance(child, ast.ImportFrom):
                yield from from_(child, deferred)
            else:
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from walk(child, deferred or inside)

    def from_(node: ast.ImportFrom, deferred: bool) -> Iterator[Import]:
        base = node.module or ""
        if node.level:
            parts = ["xpuruntime", *[p for p in importer.split(".") if p]]
            parts = parts[: len(parts) - (node.level - (1 if package else 0))]
            base = ".".join([*parts, *([base] if base else [])])
        for name in node.names:
            # `from ..program import plan` names a module, `from ..errors import XpuError` a thing in one.
            yield Import(
                importer,
                f"{base}.{name.name}" if base.startswith("xpuruntime") else base,
                node.lineno,
                deferred,
            )

    yield from walk(ast.parse(text), False)


def part_of(module: str) -> str:
    return module.partition(".")[0]


def row_of(importer: str) -> tuple[str, ...]:
    parts = importer.split(".")
    if parts[0] == "engines" and len(parts) > 2 and f"engines.*.{parts[2]}" in MAY_KNOW:
        return MAY_KNOW[f"engines.*.{parts[2]}"]
    return MAY_KNOW[parts[0]]


def fault(found: Import) -> str:
    """Why the import is against the table, or nothing."""
    importer, imported = found.importer, found.imported
    if imported == "xpuruntime" or imported.startswith("xpuruntime."):
        return _own_fault(importer, imported.removeprefix("xpuruntime").lstrip("."))
    top = part_of(imported)
    if top in sys.stdlib_module_names or top in EVERYWHERE:
        return ""
    allowed = AT_TOP.get(part_of(importer), set())
    if found.deferred:
        allowed = allowed | next(
            (
                IN_FUNCTIONS[k]
                for k in (".".join(importer.split(".")[:2]), part_of(importer))
                if k in IN_FUNCTIONS
            ),
            set(),
        )
    return "" if top in allowed else f"{found}: {top} may not be imported here"


def _own_fault(importer: str, imported: str) -> str:
    part = part_of(imported)
    for room, closed in MAY_NOT_KNOW.items():
        if _within(importer, room):
            for other in closed:
                if _within(imported, other):
                    return f"{importer} may not know {other}, and imports {imported}"
    leaf = part_of(importer)
    if leaf in LEAVES:
        left = LEAVES[: LEAVES.index(leaf)]
        allowed_here = part in left or part == leaf
        return "" if allowed_here else f"leaf {leaf} may know {', '.join(left) or 'nothing'}, not {imported}"
    if importer == "" or part in LEAVES or part in ("", "__version__") or part == part_of(importer):
        # A sibling engine is another vendor's business.
        mine, other = importer.split("."), imported.split(".")
        if (
            part == "engines"
            and mine[0] == "engines"
            and len(mine) > 2
            and len(other) > 2
            and _folder(other[1])
        ):
            own = other[1] in (mine[1], BUILT_ON.get(mine[1]))
            return "" if own else f"engine {mine[1]} knows engine {other[1]}"
        return ""
    allowed = row_of(importer)
    if any(imported == a or imported.startswith(a + ".") for a in allowed):
        return ""
    return f"{importer} may know {', '.join(allowed) or 'leaves only'}, not {imported}"


def _within(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


def _folder(name: str) -> bool:
    return (SOURCE / "engines" / name).is_dir()


def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found.append((".".join(p for p in parts if p != "__init__"), path))
    return found


@functools.cache
def all_imports() -> list[tuple[str, Import]]:
    """Each module with each of its imports. Parsing all modules takes seconds, so several tests share the result."""
    return [
        (module, found)
        for module, path in modules()
        for found in imports(module, path.read_text(encoding="utf-8"), package=path.name == "__init__.py")
    ]


def test_modules_import_only_what_their_row_allows() -> None:
    faults = [f"{module}: {said}" for module, found in all_imports() if (said := fault(found))]
    assert faults == []


def test_every_part_has_a_row() -> None:
    parts = {part_of(module) for module, _ in modules()} - {""}
    assert parts <= {*LEAVES, *MAY_KNOW}


def test_nobody_imports_the_command_line() -> None:
    for module, found in all_imports():
        assert part_of(module) in ("cli", "__main__") or not found.imported.startswith("xpuruntime.cli"), str(
            found
        )


def lazy_tables() -> dict[str, set[str]]:
    """Package -> the names that it offers from a part above it (``lazy_names``): for users, never for our own modules."""
    found: dict[str, set[str]] = {}
    for module, path in modules():
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "lazy_names" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "lazy_names":
                table = ast.literal_eval(node.args[1])
                found[module] = {
                    n
                    for n, defined in table.items()
                    if part_of(defined[len("xpuruntime.") :]) != part_of(module)
                }
    return found


def test_names_offered_from_above_are_not_imported_by_our_own_modules() -> None:
    tables = lazy_tables()
    assert tables["kernels"] == {"register_kernel", "verify_kernel"}
    assert tables["runtime"] == {"Profiler", "Receipt", "Trace", "profile"}
    offered = {f"xpuruntime.{package}.{name}" for package, names in tables.items() for name in names}
    for _, found in all_imports():
        assert found.imported not in offered, str(found)


@pytest.mark.parametrize(
    ("module", "text", "says"),
    [
        (
            "types",
            "from .storage.store import Store",
            "leaf types may know lazy, printable, errors, arguments, env, dims, not storage.store.Store",
        ),
        (
            "policies.files.load",
            "from ...ir import graph",
            "policies.files.load may know leaves only, not ir.graph",
        ),
        (
            "runtime.execution.executor",
            "def f():\n    from ...compiler import pipeline",
            "not compiler.pipeline",
        ),
        (
            "compiler.emit",
            "class A:\n    def f(self):\n        import xpuruntime.runtime.device",
            "not runtime.device",
        ),
        (
            "engines.openvino.run",
            "from ..onnxruntime.run import x",
            "engine openvino knows engine onnxruntime",
        ),
        (
            "engines.onnxruntime.run",
            "def f():\n    from ...frontends import onnx_writer",
            "not frontends.onnx_writer",
        ),
        ("inference.session", "import onnx", "onnx may not be imported here"),
        ("ir.graph", "def f():\n    import torch", "torch may not be imported here"),
        ("frontends.model_file", "if True:\n    import onnx", "onnx may not be imported here"),
        (
            "engines.openvino.run",
            "def f():\n    import onnxruntime as o",
            "onnxruntime may not be imported here",
        ),
        (
            "storage.store",
            "try:\n    import yaml\nexcept ImportError:\n    pass",
            "yaml may not be imported here",
        ),
        ("program.plan", "from ..runtime import device", "not runtime.device"),
        ("workbench.bench.engines", "from ...cli import app", "not cli.app"),
        (
            "kernels.cpu.pool",
            "from ..cuda.launch import LaunchConfig",
            "kernels.cpu.pool may not know kernels.cuda",
        ),
        (
            "kernels.cuda.matmul.gemv",
            "def f():\n    from ...cpu.matmul import gemm",
            "kernels.cuda.matmul.gemv may not know kernels.cpu",
        ),
        ("kernels.spec.pool", "from ..portable.text import braces", "may not know kernels.portable"),
        ("kernels.spec.movement.fill", "from ...cpu.moves import moves_stage", "may not know kernels.cpu"),
        ("kernels.spec.rope", "from ..cuda import rope", "may not know kernels.cuda"),
        ("kernels.portable.rnn", "from ..cpu.abi import isa_of", "may not know kernels.cpu"),
        ("kernels.user.text", "from ..cuda.launch import LaunchConfig", "may not know kernels.cuda"),
        ("kernels.kernel", "from .spec.product import Product", "may not know kernels.spec"),
    ],
)
def test_the_checker_sees_what_is_forbidden(module: str, text: str, says: str) -> None:
    faults = [f for i in imports(module, text, package=False) if (f := fault(i))]
    assert len(faults) == 1
    assert says in faults[0]


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("types", "import ast, numpy as np\nfrom .errors import XpuError"),
        ("inference.session", "from ..policies import load\ndef f():\n    import onnx.reference"),
        (
            "engines.openvino.build",
            "from ...frontends.onnx_writer import write\ndef f():\n    import openvino",
        ),
        (
            "errors",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .decisions import Decision",
        ),
        ("runtime.device", "from .. import _core"),
        (
            "kernels.cuda.conv.generated",
            "from ...portable.text import braces\nfrom ...spec import conv\nfrom ..launch import LaunchConfig",
        ),
        ("kernels.catalogue", "from .cpu import matmul\nfrom .cuda import conv"),
        ("cli.app", "import typer\nfrom rich.table import Table\nfrom ..workbench import doctor"),
    ],
)
def test_the_checker_lets_through_what_is_allowed(module: str, text: str) -> None:
    assert [f for i in imports(module, text, package=False) if (f := fault(i))] == []
