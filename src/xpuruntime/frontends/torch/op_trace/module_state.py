"""The state of a module, kept as it is while ``forward`` runs on tensors without content."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from .words import NotTraced

__all__ = ["unchanged_attributes", "unmoved"]

_DEPTH = 4
"""How many containers and objects deep the attributes of a module are kept."""
_CONTAINERS: tuple[type[Any], ...] = (dict, OrderedDict, list, set)


@contextlib.contextmanager
def unchanged_attributes(model: Any) -> Iterator[None]:
    """Give each submodule the attributes, parameters, buffers and submodules back that it had, and containers and objects among them their
    content. Raise NotTraced if the block replaced any.
    """
    before: list[tuple[Any, Any]] = []
    seen: set[int] = set()
    for part in model.modules():
        _remember(vars(part), before, seen, 0)
    try:
        yield
    finally:
        changed = [(now, then) for now, then in before if not _same(now, then)]
        for now, then in changed:
            now.clear()
            (now.extend if isinstance(now, list) else now.update)(then)
    if changed:
        raise NotTraced("an assignment to an attribute of the module")


def _remember(value: Any, before: list[tuple[Any, Any]], seen: set[int], depth: int) -> None:
    """Append containers with copies of them: the value itself, and those in it. Modules are left to the caller; a tensor has no content here."""
    cls = type(value)
    if cls not in _CONTAINERS:
        if cls.__module__.partition(".")[0] in ("torch", "builtins") or hasattr(cls, "named_modules"):
            return
        value = getattr(value, "__dict__", None)
        cls = type(value)
        if cls is not dict:
            return
    if id(value) in seen or depth > _DEPTH:
        return
    seen.add(id(value))
    before.append((value, cls(value)))
    for inner in value.values() if isinstance(value, dict) else value:
        if type(inner) not in _PLAIN:
            _remember(inner, before, seen, depth + 1)


_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), type))


def _same(now: Any, then: Any) -> bool:
    if len(now) != len(then):
        return False
    if isinstance(now, dict):
        return all(k in now and now[k] is v for k, v in then.items())
    if isinstance(now, set):
        return bool(now == then)
    return all(a is b for a, b in zip(now, then, strict=True))


@contextlib.contextmanager
def unmoved(tensors: Iterable[Any]) -> Iterator[None]:
    """Give each tensor the memory back that it had. Raise NotTraced if the block gave it another, as an assignment to ``data`` does."""
    before = [(tensor, tensor.data_ptr(), tensor.data) for tensor in tensors]
    try:
        yield
    finally:
        moved = [(tensor, data) for tensor, memory, data in before if tensor.data_ptr() != memory]
        for tensor, data in moved:
            tensor.data = data
    if moved:
        raise NotTraced("an assignment to the data of a tensor of the module")
