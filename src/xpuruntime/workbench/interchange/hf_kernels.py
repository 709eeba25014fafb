"""Repositories of Hugging Face ``kernels`` on disk: the build variant that applies here, and its functions.

Nothing of the repository is executed: functions are read from the syntax of ``__init__.py``. Only ``load_kernel`` imports a variant.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ...errors import KernelUnavailable, PolicyError
from ...storage.files import read_regular
from .build_variants import BuildVariant, Host, parse_variant
from .report import Conversion, ConvertedItem, ItemOutcome

__all__ = ["load_kernel", "read_repository"]

NAME = "hf-kernels"
_MAX_VARIANTS = 1000
_MAX_BYTES = 1 << 20


def read_repository(folder: str | os.PathLike[str], host: Host | None = None) -> Conversion:
    """Report each variant, and each function of the one that applies. Raises PolicyError."""
    root = Path(folder)
    host = host or Host.here()
    items: list[ConvertedItem] = []
    chosen = _chosen(root, host)
    for name in _folders(root):
        variant = parse_variant(name)
        reason = "its name is no build variant" if variant is None else variant.obstacle(host)
        if not reason and chosen is not None and name != chosen.name:
            reason = f"{chosen.name} applies, too, and comes first"
        text = f"build/{name}"
        if reason:
            items.append(ConvertedItem(text, ItemOutcome.NOT_CARRIED, reason=reason))
        else:
            facts = _metadata(root / "build" / name / "metadata.json")
            items.append(ConvertedItem(text, ItemOutcome.CARRIED, f"applies here{facts}"))
    if chosen is not None:
        reason = "its operands are not described, so it is not known which op it computes"
        remedy = "Register it yourself: load_kernel(folder), then xpuruntime.kernel(..., arrays='torch')."
        where = _init_file(root, chosen)
        for line, function in _functions(where):
            text = f"{where.relative_to(root)}: {function}"
            items.append(ConvertedItem(text, ItemOutcome.NOT_CARRIED, "", reason, remedy, line, 1))
    return Conversion(NAME, str(root), tuple(items))


def load_kernel(folder: str | os.PathLike[str], host: Host | None = None) -> ModuleType:
    """Import the variant that applies here. This runs its code: trust it like a shared library.

    Raises KernelUnavailable with the reason of each variant if none applies, PolicyError for a folder that is no repository.
    """
    root = Path(folder).resolve()
    host = host or Host.here()
    chosen = _chosen(root, host)
    if chosen is None:
        variants = [v for v in map(parse_variant, _folders(root)) if v is not None]
        reasons = "; ".join(f"{v.name}: {v.obstacle(host)}" for v in variants[:5])
        raise KernelUnavailable(
            f"kernels {root.name}",
            "no build variant applies here",
            got=reasons or "no variant",
            do="Build one.",
        )
    path = _init_file(root, chosen)
    name = f"xpuruntime_hf_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=[str(path.parent)])
    if spec is None or spec.loader is None:
        raise PolicyError(str(path), "cannot be imported", do="Check the repository.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _folders(root: Path) -> list[str]:
    build = root / "build"
    try:
        names = sorted(e.name for e in os.scandir(build) if e.is_dir(follow_symlinks=False))
    except OSError as error:
        raise PolicyError(
            str(root),
            "is no repository of kernels: it has no folder build",
            got=error.strerror or str(error),
            do="Give the folder of a snapshot, with build/VARIANT inside.",
        ) from error
    if len(names) > _MAX_VARIANTS:
        raise PolicyError(
            str(build), "has too many folders", got=len(names), do=f"Keep at most {_MAX_VARIANTS}."
        )
    return names


def _chosen(root: Path, host: Host) -> BuildVariant | None:
    """Return the variant that applies: native before one for the backend before a universal one."""
    usable = [v for n in _folders(root) if (v := parse_variant(n)) is not None and not v.obstacle(host)]
    return min(usable, key=lambda v: (not v.version, v.backend == "universal", v.name), default=None)


def _init_file(root: Path, variant: BuildVariant) -> Path:
    """Return the package's ``__init__.py``: in the variant's folder, or in older repositories in the only folder below it."""
    folder = root / "build" / variant.name
    if (folder / "__init__.py").is_file():
        return folder / "__init__.py"
    inner = sorted(p for p in folder.iterdir() if (p / "__init__.py").is_file())
    if len(inner) != 1:
        raise PolicyError(
            str(folder),
            "holds no package",
            got=f"{len(inner)} folders with __init__.py",
            do="Give the folder of a kernel repository, with one package under torch-ext or build.",
        )
    return inner[0] / "__init__.py"


def _metadata(path: Path) -> str:
    """Return id, version and Python dependencies in words; empty without the file."""
    if not path.exists():
        return ""
    try:
        data = json.loads(read_regular(path, _MAX_BYTES))
    except json.JSONDecodeError as error:
        raise PolicyError(
            f"{path}:{error.lineno}:{error.colno}",
            f"is not JSON: {error.msg}",
            do="Mend the file, or download the repository again.",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(
            str(path),
            "cannot be read",
            got=type(error).__name__,
            do="Check that the file exists and can be read.",
        ) from error
    if not isinstance(data, Mapping):
        raise PolicyError(
            f"{path}:1:1",
            "must be a mapping",
            got=type(data).__name__,
            do="Mend the file, or download the repository again.",
        )
    facts: dict[str, Any] = {k: data[k] for k in ("id", "version", "python-depends") if data.get(k)}
    return "".join(f", {k} {v}"[:200] for k, v in facts.items())


def _functions(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of each public function and class, and of each name in a literal ``__all__``."""
    try:
        tree = ast.parse(read_regular(path, _MAX_BYTES))
    except SyntaxError as error:
        raise PolicyError(
            f"{path}:{error.lineno or 1}:{error.offset or 1}",
            f"is not Python: {error.msg}",
            do="Mend the file, or download the repository again.",
        ) from None
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise PolicyError(
            str(path),
            "cannot be read",
            got=type(error).__name__,
            do="Check that the file exists and can be read.",
        ) from error
    names: dict[str, int] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            names.setdefault(node.name, node.lineno)
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            for item in node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else ():
                if isinstance(item, ast.Constant) and isinstance(item.value, str):
                    names.setdefault(item.value, item.lineno)
    yield from ((line, name) for name, line in names.items())
