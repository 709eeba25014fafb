"""What a module holds, kept as it is while ``forward`` runs on tensors without content."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from .words import NotTraced

__all__ = ["unchanged_attributes", "unmoved"]

_DICTS = ("_parameters", "_buffers", "_modules")


@contextlib.contextmanager
def unchanged_attributes(model: Any) -> Iterator[None]:
    """Give each submodule the attributes, parameters, buffers and submodules back that it had. Raise NotTraced if the block replaced any."""
    before: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for part in model.modules():
        attributes = vars(part)
        before.append((attributes, dict(attributes)))
        before += [(attributes[name], dict(attributes[name])) for name in _DICTS]
    try:
        yield
    finally:
        changed = [(now, then) for now, then in before if not _same(now, then)]
        for now, then in changed:
            now.clear()
            now.update(then)
    if changed:
        raise NotTraced("an assignment to an attribute of the module")


def _same(now: dict[str, Any], then: dict[str, Any]) -> bool:
    return len(now) == len(then) and all(k in now and now[k] is v for k, v in then.items())


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
