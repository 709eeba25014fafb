"""Limits on the nodes of a model with all local functions expanded, counted before anything expands them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....errors import ModelError
from ..proto import all_nodes

__all__ = ["MAX_NODES", "check_functions"]

MAX_NODES = 100_000
"""Maximum nodes of a model with every call of a local function expanded. 31 functions that each call the next one twice make 2^31."""

_Key = tuple[str, str]


def check_functions(proto: Any, who: str) -> None:
    """Raise ModelError if local functions are recursive, or expand to more than ``MAX_NODES`` nodes."""
    if not proto.functions:
        return
    functions = {_key(f.domain, f.name): f for f in proto.functions}
    sizes: dict[_Key, int] = {}
    calls: dict[_Key, int] = {}  # own nodes, plus the size of each function called
    for root in functions:
        stack: list[tuple[_Key, Iterator[_Key]]] = []
        active: set[_Key] = set()
        if root not in sizes:
            _enter(functions, root, stack, active, calls)
        while stack:
            key, callees = stack[-1]
            for called in callees:
                if called in active:
                    raise ModelError(
                        who,
                        f"has a function that calls itself: {called[1]!r}",
                        got=" -> ".join(repr(k[1]) for k, _ in stack[-8:]) + f" -> {called[1]!r}",
                        do="Functions of ONNX cannot recurse: export the model again.",
                    )
                if called not in sizes:
                    _enter(functions, called, stack, active, calls)
                    break
                calls[key] = min(calls[key] + sizes[called], MAX_NODES + 1)
            else:
                sizes[key] = calls[key]
                active.discard(key)
                stack.pop()
                if stack:
                    calls[stack[-1][0]] = min(calls[stack[-1][0]] + sizes[key], MAX_NODES + 1)
    total = 0
    for node in all_nodes(proto.graph):
        total += 1 + sizes.get(_key(node.domain, node.op_type), 0)
        if total > MAX_NODES:
            raise ModelError(
                who,
                f"expands to more than {MAX_NODES:,} nodes",
                got=f"{len(functions)} local functions that call each other",
                do="Export it with fewer levels of functions.",
            )


def _enter(
    functions: dict[_Key, Any],
    key: _Key,
    stack: list[tuple[_Key, Iterator[_Key]]],
    active: set[_Key],
    calls: dict[_Key, int],
) -> None:
    nodes = list(all_nodes(functions[key]))
    calls[key] = len(nodes)
    active.add(key)
    called = (_key(n.domain, n.op_type) for n in nodes)
    stack.append((key, (k for k in called if k in functions)))


def _key(domain: str, name: str) -> _Key:
    return "" if domain == "ai.onnx" else domain, name
