"""Digest of what a PyTorch module computes without its export: two modules with one export may take different branches in eager mode."""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

__all__ = ["eager_digest"]

_LIBRARIES = frozenset(["torch", "numpy", *sys.stdlib_module_names])
"""Packages whose functions and objects count by name."""
_DEPTH = 2
"""How many calls, containers and objects deep values are read."""
_MOST = 20_000
"""Values that are read at most; a module with more has no digest."""


class _TooMany(Exception):
    """There are more values than a cheap digest can have."""


def eager_digest(module: Any) -> str | None:
    """Return the digest of the module's classes, the code of their functions and of those that they name, and plain attributes; None if there is none."""
    module = getattr(module, "_orig_mod", module)
    try:
        lines = _Lines()
        for name, part in module.named_modules(remove_duplicate=False):
            lines.add(name)
            lines.module(part)
        return lines.text()
    except Exception:  # what a user's attribute raises; such a module is compared at each opening
        return None


class _Lines:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}
        self._count = 0

    def text(self) -> str:
        return self._hash.hexdigest()

    def add(self, line: str) -> None:
        self._count += 1
        if self._count > _MOST:
            raise _TooMany
        self._hash.update(line.encode("utf-8", "surrogatepass") + b"\0")

    def _again(self, value: Any) -> bool:
        """Return True if a value was read before, and name it by its place in the order then. It is kept, so that its id stays its own."""
        place = self._seen.get(id(value))
        if place is None:
            self._seen[id(value)] = (len(self._seen), value)
            return False
        self.add(f"again {place[0]}")
        return True

    def module(self, part: Any) -> None:
        """Read the class and the attributes of one submodule; parameters, buffers, submodules and hooks are not its own code."""
        base: Any = next(c for c in type(part).__mro__ if c.__module__ == "torch.nn.modules.module")
        self.cls(type(part))
        hidden = vars(base()).keys() - {"training"}
        for name, value in vars(part).items():
            if name not in hidden:
                self.add(name)
                self.value(value, 0)

    def cls(self, cls: type, depth: int = 0) -> None:
        """Read the functions and plain attributes of a class and its bases, as far as they are the user's."""
        if self._again(cls):
            return
        for base in cls.__mro__:
            self.add(f"class {base.__module__}.{base.__qualname__}")
            if _root(base) in _LIBRARIES or base is object:
                continue
            for name, value in vars(base).items():
                if not name.startswith("__") or name in ("__call__", "__getattr__"):
                    self.add(name)
                    self.value(value, depth)

    def value(self, value: Any, depth: int) -> None:
        """Read a value: functions by code, plain values by themselves, objects by their plain attributes, others by class."""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            self.add(f"{type(value).__name__} {value!r}")
        elif isinstance(value, types.CodeType):
            self.code(value)
        elif isinstance(value, (classmethod, staticmethod)):
            self.value(value.__func__, depth)
        elif isinstance(value, property):
            self.value(value.fget, depth)
        elif isinstance(value, types.MethodType):
            self.value(value.__func__, depth)
        elif isinstance(value, types.FunctionType):
            self.function(value, depth)
        elif isinstance(value, type) and depth < _DEPTH:
            self.cls(value, depth + 1)
        elif isinstance(value, types.ModuleType):
            self.add(value.__name__)
        elif isinstance(value, (type, types.BuiltinFunctionType)):
            self.add(f"{value.__module__}.{value.__qualname__}")
        elif depth >= _DEPTH:
            self.add(f"{type(value).__module__}.{type(value).__qualname__}")
        elif not self._again(value):
            self.compound(value, depth + 1)

    def compound(self, value: Any, depth: int) -> None:
        cls = type(value)
        self.add(f"{cls.__module__}.{cls.__qualname__}")
        if isinstance(value, partial):
            for part in (value.func, value.args, value.keywords):
                self.value(part, depth)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.value(key, depth)
                self.value(item, depth)
        elif isinstance(value, (tuple, list)):
            self.add(str(len(value)))
            for item in value:
                self.value(item, depth)
        elif isinstance(value, (set, frozenset)):
            self.add(repr(sorted(map(repr, value))))
        elif cls.__module__ == "torch" and cls.__qualname__ in ("dtype", "device", "layout", "memory_format"):
            self.add(str(value))
        elif isinstance(wrapped := getattr(value, "__dict__", {}).get("__wrapped__"), types.FunctionType):
            self.value(wrapped, depth)
        elif hasattr(cls, "named_modules") or (_root(cls) in _LIBRARIES and cls is not types.SimpleNamespace):
            return  # a submodule, which is read on its own; a tensor, which is data; a logger and the like
        elif hasattr(value, "__dict__"):
            for name, item in sorted(vars(value).items()):
                if "hash" not in name:  # hashes of words differ between processes
                    self.add(name)
                    self.value(item, depth)

    def function(self, function: types.FunctionType, depth: int) -> None:
        """Read a function: its code, defaults, closure, and the globals that it names."""
        self.add(f"def {function.__module__}.{function.__qualname__}")
        if _root(function) in _LIBRARIES or self._again(function):
            return
        self.code(function.__code__)
        for given in (function.__defaults__, function.__kwdefaults__):
            self.value(given, depth + 1)
        for cell in function.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            self.value(held, depth + 1)
        if depth >= _DEPTH:
            return
        names = list(dict.fromkeys(_names(function.__code__)))
        for name in names:
            if name not in function.__globals__:
                continue
            held = function.__globals__[name]
            self.add(name)
            if isinstance(held, types.ModuleType) and held.__name__.partition(".")[0] not in _LIBRARIES:
                for attribute in names:
                    if (member := vars(held).get(attribute)) is not None:
                        self.value(member, depth + 1)
            else:
                self.value(held, depth + 1)

    def code(self, code: types.CodeType) -> None:
        """Read a code object without its file and lines."""
        self.add(f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {code.co_freevars}")
        for constant in code.co_consts:
            if isinstance(constant, frozenset):
                self.add(repr(sorted(map(repr, constant))))
            elif isinstance(constant, types.CodeType):
                self.code(constant)
            else:
                self.add(repr(constant))


def _root(thing: Any) -> str:
    return str(getattr(thing, "__module__", "") or "").partition(".")[0]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
