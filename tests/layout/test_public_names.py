"""What is public is listed, documented and there; what is listed is nothing else."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import xpuruntime
from xpuruntime import errors

SOURCE = Path(__file__).resolve().parents[2] / "src" / "xpuruntime"
FILES = sorted(p for p in SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


@pytest.mark.parametrize("name", xpuruntime.__all__)
def test_every_public_name_of_the_package_is_there(name: str) -> None:
    value = getattr(xpuruntime, name)
    assert name in dir(xpuruntime)
    if name != "__version__":
        assert value.__doc__, f"xpuruntime.{name} has no docstring"
        module = importlib.import_module(f"xpuruntime.{xpuruntime._PUBLIC[name]}")
        assert getattr(module, name) is value


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


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_module_says_what_it_is_for_and_documents_what_it_exports(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "no module docstring"
    for name, node in public_definitions(tree).items():
        assert ast.get_docstring(node), f"{name} has no docstring"  # type: ignore[arg-type]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_all_names_what_is_there_once(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if (names := listed(tree)) is None:
        return
    assert len(names) == len(set(names))
    module = importlib.import_module(name_of(path))
    assert [n for n in names if not hasattr(module, n)] == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_module_postpones_annotations(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = [
        n for n in ast.parse(text).body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))
    ]
    assert not code or "from __future__ import annotations" in text


def test_profiling_is_in_the_runtime(tmp_path: Path) -> None:
    runtime = importlib.import_module("xpuruntime.runtime")
    assert runtime.Profiler is runtime.profile
    with runtime.Profiler() as trace:
        pass
    trace.save(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").is_file()
