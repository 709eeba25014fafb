"""The registry of user kernels in this process, by name and kind of target, and of Python functions that programs call.

Kernels come from ``xpuruntime.register_kernel``, from the modules in ``XPU_KERNELS``, and from the entry points of the group
``xpuruntime.kernels``. The latter two are imported only when a policy names a kernel that is not built in.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Protocol

from .. import env
from ..errors import KernelUnavailable, PolicyError
from .loader import entry_points

__all__ = [
    "GROUP",
    "HostFunction",
    "Registered",
    "code_digest",
    "host_function",
    "kernel_words",
    "load_plugins",
    "register",
    "registered_kernels",
    "unregister",
]

GROUP = "xpuruntime.kernels"


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A Python function that programs call.

    name:   the kernel's name, ``@``, and the kind of target. ``digest``: sha256 of its code; a program compiled with other code is refused.
    arrays: the type of its arguments: ``numpy`` arrays or ``torch`` tensors.
    """

    name: str
    function: Callable[..., Any]
    digest: str
    arrays: str = "numpy"


class Registered(Protocol):
    """The fields of a user's kernel that the registry reads: ``softmax/mine`` for targets of ``kind`` (``cpu``, ``cuda``)."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def digest(self) -> str: ...


@dataclass(slots=True)
class _Table:
    """The registered kernels. Updates replace the maps and never mutate them, so readers need no lock."""

    kernels: Mapping[tuple[str, str], Registered] = field(default_factory=dict)
    functions: Mapping[str, HostFunction] = field(default_factory=dict)
    plugins: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


_TABLE = _Table()


def register(kernel: Registered, function: HostFunction | None = None) -> None:
    """Register a kernel, replacing one of the same name and kind (as when a notebook cell runs again)."""
    with _TABLE.lock:
        _TABLE.kernels = {**_TABLE.kernels, (kernel.name, kernel.kind): kernel}
        if function is not None:
            _TABLE.functions = {**_TABLE.functions, function.name: function}


def unregister(name: str) -> None:
    """Unregister the kernels of a name for every kind of target. Programs that contain their binaries keep working."""
    with _TABLE.lock:
        _TABLE.kernels = {key: k for key, k in _TABLE.kernels.items() if key[0] != name}
        _TABLE.functions = {key: f for key, f in _TABLE.functions.items() if key.partition("@")[0] != name}


def registered_kernels(kind: str = "") -> tuple[Registered, ...]:
    """Return the kernels for a kind of target (default: all kinds) in the order of registration."""
    return tuple(k for k in _TABLE.kernels.values() if kind in ("", k.kind))


def kernel_words() -> tuple[str, ...]:
    """Return the policy words of registered kernels: ``mine`` for ``softmax/mine``."""
    return tuple(dict.fromkeys(name.partition("/")[2] for name, _ in _TABLE.kernels))


def host_function(name: str, digest: str, who: str) -> HostFunction:
    """Return the function that a program calls. Raises KernelUnavailable if it is not registered in this process, or with other code."""
    load_plugins()
    function = _TABLE.functions.get(name)
    if function is None:
        raise KernelUnavailable(
            who,
            f"calls the Python function {name!r}, which is not registered in this process",
            do="Register it first (xpuruntime.kernel), name its module in XPU_KERNELS, or compile with a C++, CUDA C++ or Triton kernel, which the program contains.",
        )
    if function.digest != digest:
        raise KernelUnavailable(
            who,
            f"was compiled with a different version of {name!r} than the registered one",
            got=f"code {function.digest[:12]}, wanted {digest[:12]}",
            do="Compile the model again.",
        )
    return function


def load_plugins() -> None:
    """Import the modules of ``XPU_KERNELS`` and the entry points, once. Raises PolicyError for a module that cannot be imported."""
    with _TABLE.lock:
        if _TABLE.plugins:
            return
        _TABLE.plugins = True
        try:
            for name in env.get("XPU_KERNELS").replace(",", " ").split():
                _run(f"XPU_KERNELS: {name}", functools.partial(_import, name))
            for name, load in entry_points(GROUP).items():
                _run(f"entry point {GROUP}: {name}", load)
        except PolicyError:
            _TABLE.plugins = False  # retry after the user fixes the file
            raise


def _run(who: str, load: Callable[[], Any]) -> None:
    try:
        load()
    except Exception as error:
        raise PolicyError(
            who,
            "cannot be imported, so its kernels are not registered",
            got=f"{type(error).__name__}: {error}",
            do="Fix the module, or remove its name.",
        ) from error


class _UncachedLoader(SourceFileLoader):
    """A loader that always compiles the source. Cached bytecode is keyed by size and mtime in seconds, so it would miss a quick edit."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import(name: str) -> Any:
    """Import a module by its dotted name, or a file that ends in .py."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).expanduser().resolve()
    module_name = f"xpuruntime_kernels_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(
        module_name, path, loader=_UncachedLoader(module_name, str(path))
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no such Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def code_digest(*parts: object) -> str:
    """Return the sha256 of strings, plain values and functions. A function is hashed by its source, its defaults and its closure's plain values."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(_text(part).encode() + b"\0")
    return digest.hexdigest()


def _text(part: object) -> str:
    """Return a text that is the same in every process: without addresses, with sets in order."""
    function = inspect.unwrap(part) if callable(part) else part
    code = getattr(function, "__code__", None)
    if code is None:
        plain = isinstance(part, str | bytes | int | float | bool | tuple | frozenset | None)
        return _constant(part) if plain else f"{type(part).__module__}.{type(part).__qualname__}"
    try:
        text = inspect.getsource(code)  # whole lines, which may hold several lambdas
        text += f" {[_constant(c) for c in code.co_consts]} {code.co_names}"
    except (OSError, TypeError):  # typed at a prompt: there is no source
        text = _code(code)
    closed = [_cell(c) for c in getattr(function, "__closure__", None) or ()]
    defaults = [_text(d) for d in getattr(function, "__defaults__", None) or ()]
    return f"{text} {defaults} {closed}"


def _constant(value: object) -> str:
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(_constant(v) for v in value))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(_text(v) for v in value)})"
    return _code(value) if isinstance(value, CodeType) else repr(value)


def _code(code: CodeType) -> str:
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {[_constant(c) for c in code.co_consts]}"


def _cell(cell: Any) -> str:
    try:
        return _text(cell.cell_contents)
    except ValueError:  # an unbound cell
        return ""
