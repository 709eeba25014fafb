"""KernelLock: the kernel of each call of a program, recorded by one compilation and used without any choice by later ones."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import LockError
from ..ir import Node
from ..ir.family import source_names
from ..kernels.kernel import NodeCall
from .times import call_key

__all__ = ["KernelLock"]


class KernelLock:
    """Kernels by call. A call is identified by ``call_key`` and the name of its node's first value.

    kernels: the words of kernels (``generated``, ``cublasLt[algorithm=21]``). None records the choices of a compilation.
    ``used`` has those that a compilation needed: a lock may cover other shapes, too.
    """

    def __init__(self, kernels: Mapping[str, str] | None = None) -> None:
        self.recording = kernels is None
        self.kernels: dict[str, str] = dict(kernels or {})
        self.used: dict[str, str] = {}

    def record(self, node: Node, call: NodeCall, kernel: str) -> None:
        """Add the choice of a kernel."""
        self.kernels[_key(node, call)] = kernel

    def kernel(self, node: Node, call: NodeCall) -> str:
        """Return the kernel of a call. Raises LockError for a call that was not recorded."""
        key = _key(node, call)
        word = self.kernels.get(key)
        if word is None:
            name = source_names(node)[0]
            shapes = ", ".join(str(t.spec) for t in call.tensors)
            raise LockError(
                f"node {name}",
                "is not in the lock: its shapes, types or attributes are others",
                got=f"{node.op} of {shapes or 'no tensor'}",
                do="Write the lock for these shapes (xpu lock --shape, --bucket), or run without it.",
                changes=((f"node {name}", "absent", f"{node.op} of {shapes}"),),
            )
        self.used[key] = word
        return word


def _key(node: Node, call: NodeCall) -> str:
    return f"{call_key(call)} {node.name}"
