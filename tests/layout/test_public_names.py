"""What is public is listed, documented and there; what is listed is nothing else."""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import xpuruntime
from xpuruntime import errors

SOURCE = Path(__file__).resolve().parents[2] / "src" / "xpuruntime"
FILES = sorted(p for p in SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


def test_every_public_name_of_the_package_is_there() -> None:
    assert set(xpuruntime.__all__) <= set(dir(xpuruntime))
    faults = []
    for name in set(xpuruntime.__all__) - {"__version__"}:
        value = getattr(xpuruntime, name)
        module = importlib.import_module(f"xpuruntime.{xpuruntime._PUBLIC[name]}")
        if not value.__doc__:
            faults.append(f"xpuruntime.{name} has no docstring")
        if getattr(module, name) is not value:
            faults.append(f"xpuruntime.{name} is not {module.__name__}.{name}")
    assert faults == []


def test_every_error_is_public() -> None:
    assert {n for n, module in xpuruntime._PUBLIC.items() if module == "errors"} == set(errors.__all__)


OFFERED = {
    "inference": ("InferenceSession", "DAGExecutor", "kernel", "register_kernel"),
    "policies": ("KernelPolicy", "ExecutionPolicy"),
    "kernels": ("register_kernel", "verify_kernel", "Launch", "Tasks"),
    "runtime": (
        "Backend", "Device", "DeviceBuffer", "DispatchStrategy", "Executor", "NPUBuffer", "Receipt", "load_weights",
        "profile",
    ),
    "program": (
        "BufferAllocation", "CompiledProgram", "ExecutionPlan", "KernelCall", "WeightTransformRecipe",
    ),
    "codegen": ("CodegenTarget",),
    "compiler": ("compile",),
}  # fmt: skip


@pytest.mark.parametrize(("package", "name"), [(p, n) for p, names in OFFERED.items() for n in names])
def test_a_package_offers_the_same_object_as_the_top_level(package: str, name: str) -> None:
    module = importlib.import_module(f"xpuruntime.{package}")
    assert getattr(module, name) is getattr(xpuruntime, name)
    assert name in module.__all__
    assert name in dir(module)


@pytest.mark.parametrize("package", ["inference", "kernels", "runtime", "codegen"])
def test_a_package_with_lazy_names_has_no_others(package: str) -> None:
    module = importlib.import_module(f"xpuruntime.{package}")
    with pytest.raises(AttributeError, match=f"module 'xpuruntime.{package}' has no attribute 'Sesion'"):
        module.Sesion  # noqa: B018


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'xpuruntime' has no attribute 'InferenceSesion'"):
        xpuruntime.InferenceSesion  # noqa: B018


def test_type_checkers_see_every_public_name() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    guarded = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {alias.asname for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(xpuruntime._PUBLIC)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The parsed file. Parsing all modules takes seconds, so the rules share the result."""
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def no_tree_is_kept() -> Iterator[None]:
    yield
    tree_of.cache_clear()


def listed(tree: ast.Module) -> list[str] | None:
    """What `__all__` lists in words; None where a module has none (the package's own follows its table)."""
    found = [
        n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
    ]
    if not found or any(isinstance(e, ast.Starred) for e in ast.walk(found[0])):
        return None
    return ast.literal_eval(found[0])  # type: ignore[no-any-return]


def public_definitions(tree: ast.Module) -> dict[str, ast.AST]:
    """Functions and classes that `__all__` names; where there is none, those without an underscore."""
    names = listed(tree)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = {n.name: n for n in tree.body if isinstance(n, kinds)}
    return {k: n for k, n in defined.items() if (not k.startswith("_") if names is None else k in names)}


def undocumented(path: Path) -> list[str]:
    tree = tree_of(path)
    faults = [] if ast.get_docstring(tree) else ["no module docstring"]
    definitions = public_definitions(tree).items()
    return faults + [f"{name} has no docstring" for name, node in definitions if not ast.get_docstring(node)]  # type: ignore[arg-type]


def wrongly_listed(path: Path) -> list[str]:
    names = listed(tree_of(path))
    if names is None:
        return []
    module = importlib.import_module(name_of(path))
    twice = {f"__all__ has {n} twice" for n in names if names.count(n) > 1}
    return sorted(twice) + [f"__all__ has {n}, the module does not" for n in names if not hasattr(module, n)]


def evaluates_annotations(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    code = [
        n for n in tree_of(path).body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
    ]
    postponed = not code or "from __future__ import annotations" in text
    return [] if postponed else ["no `from __future__ import annotations`"]


RULES = [undocumented, wrongly_listed, evaluates_annotations]


@pytest.mark.parametrize("rule", RULES)
def test_every_module_keeps_a_rule(rule: Callable[[Path], list[str]]) -> None:
    assert len(FILES) > 100
    assert [f"{name_of(path)}: {fault}" for path in FILES for fault in rule(path)] == []


BAD = {
    "undocumented": "def f():\n    pass\n",
    "wrongly_listed": "__all__ = ['gone', 'gone']\n",
    "evaluates_annotations": "x: int = 1\n",
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_sees_a_fault(
    rule: Callable[[Path], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(BAD[rule.__name__])
    monkeypatch.setattr(sys.modules[__name__], "name_of", lambda path: "string")
    assert len(rule(bad)) == (3 if rule is wrongly_listed else 2 if rule is undocumented else 1)


def test_profiling_is_in_the_runtime(tmp_path: Path) -> None:
    runtime = importlib.import_module("xpuruntime.runtime")
    assert runtime.Profiler is runtime.profile
    with runtime.Profiler() as trace:
        pass
    trace.save(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").is_file()
