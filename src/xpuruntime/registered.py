"""What users registered in this process: kernels, by name and kind of target, and Python functions that programs call.

They come from ``xpuruntime.register_kernel``, from the modules that ``XPU_KERNELS`` names, and from the entry points of the group
``xpuruntime.kernels``. The latter two are imported when a policy names a kernel that is not built in: code that nobody asks for is not run.
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

from . import env
from .errors import KernelUnavailable, PolicyError
from .plugins import entry_points

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

    name:   its kernel's, ``@`` and the kind of target. ``digest``: sha256 of its code; a program that was compiled with another is refused.
    arrays: what it is handed: ``numpy`` arrays, or tensors of ``torch``.
    """

    name: str
    function: Callable[..., Any]
    digest: str
    arrays: str = "numpy"


class Registered(Protocol):
    """A user's kernel, as far as this table knows: ``softmax/mine`` for targets of ``kind`` (``cpu``, ``cuda``)."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def digest(self) -> str: ...


@dataclass(slots=True)
class _Table:
    """Replaced maps, never changed ones: readers need no lock."""

    kernels: Mapping[tuple[str, str], Registered] = field(default_factory=dict)
    functions: Mapping[str, HostFunction] = field(default_factory=dict)
    plugins: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


_TABLE = _Table()


def register(kernel: Registered, function: HostFunction | None = None) -> None:
    """Keep a kernel; one of the same name and kind is replaced, as a notebook's cell that runs again wants it."""
    with _TABLE.lock:
        _TABLE.kernels = {**_TABLE.kernels, (kernel.name, kernel.kind): kernel}
        if function is not None:
            _TABLE.functions = {**_TABLE.functions, function.name: function}


def unregister(name: str) -> None:
    """Forget the kernels of a name, for every kind of target. Programs that hold their binaries go on."""
    with _TABLE.lock:
        _TABLE.kernels = {key: k for key, k in _TABLE.kernels.items() if key[0] != name}
        _TABLE.functions = {key: f for key, f in _TABLE.functions.items() if key.partition("@")[0] != name}


def registered_kernels(kind: str = "") -> tuple[Registered, ...]:
    """Those for a kind of target, in the order in which they came; all of them without one."""
    return tuple(k for k in _TABLE.kernels.values() if kind in ("", k.kind))


def kernel_words() -> tuple[str, ...]:
    """How policies name them: ``mine`` for ``softmax/mine``."""
    return tuple(dict.fromkeys(name.partition("/")[2] for name, _ in _TABLE.kernels))


def host_function(name: str, digest: str, who: str) -> HostFunction:
    """The function that a program calls. Raises KernelUnavailable when this process has none of that name, or another one."""
    load_plugins()
    found = _TABLE.functions.get(name)
    if found is None:
        raise KernelUnavailable(
            who,
            f"calls the Python function {name!r}, which nobody registered in this process",
            do="Register it before (xpuruntime.kernel), name its module in XPU_KERNELS, or compile with a kernel that travels: C++, CUDA C++ or Triton.",
        )
    if found.digest != digest:
        raise KernelUnavailable(
            who,
            f"was compiled with another {name!r} than the one that is registered here",
            got=f"code {found.digest[:12]}, wanted {digest[:12]}",
            do="Compile the model again.",
        )
    return found


def load_plugins() -> None:
    """Import what ``XPU_KERNELS`` and the entry points name, once. Raises PolicyError with the module that cannot be imported."""
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
            _TABLE.plugins = False  # a mended file is read by the next who asks
            raise


def _run(who: str, load: Callable[[], Any]) -> None:
    try:
        load()
    except Exception as error:
        raise PolicyError(
            who,
            "registers no kernels: importing it failed",
            got=f"{type(error).__name__}: {error}",
            do="Mend it, or take its name away.",
        ) from error


class _Fresh(SourceFileLoader):
    """Reads the text itself: kept bytecode is told apart by whole seconds and the text's length, and an edit within them would not be seen."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import(name: str) -> Any:
    """A module by its dotted name, or a file that ends in .py."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name).expanduser().resolve()
    module_name = f"xpuruntime_kernels_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, path, loader=_Fresh(module_name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError(f"no Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    return module


def code_digest(*parts: object) -> str:
    """sha256 of texts, plain values and functions. A function counts by its text, its defaults, and the plain values that it closes over."""
    found = hashlib.sha256()
    for part in parts:
        found.update(_text(part).encode() + b"\0")
    return found.hexdigest()


def _text(part: object) -> str:
    """The same in every process: no addresses, no order of sets."""
    function = inspect.unwrap(part) if callable(part) else part
    code = getattr(function, "__code__", None)
    if code is None:
        plain = isinstance(part, str | bytes | int | float | bool | tuple | frozenset | None)
        return _constant(part) if plain else f"{type(part).__module__}.{type(part).__qualname__}"
    try:
        text = inspect.getsource(code)  # of whole lines, which may hold several lambdas
        text += f" {[_constant(c) for c in code.co_consts]} {code.co_names}"
    except (OSError, TypeError):  # typed at a prompt
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
    except ValueError:  # a name that is not bound yet
        return ""
