"""The kernels of a model's nodes, read from the calls of a program."""

from __future__ import annotations

from collections.abc import Iterable

from .program import KernelCall

__all__ = ["kernels_by_node"]


def kernels_by_node(calls: Iterable[KernelCall]) -> dict[str, str]:
    """Return the kernels of each node that calls name, joined with `` + `` if several compute it. Nodes without a call are left out."""
    kernels: dict[str, dict[str, None]] = {}
    for call in calls:
        for node in call.nodes:
            kernels.setdefault(node, {})[call.kernel] = None
    return {node: " + ".join(names) for node, names in kernels.items()}
