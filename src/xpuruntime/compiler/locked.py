"""KernelLock: the kernel of each call of a program, recorded by one compilation and used without any choice by later ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..errors import LockError
from ..ir import Node
from ..ir.family import source_names
from ..kernels.kernel import NodeCall
from .calls import COUNTERS, StageCall
from .times import call_key

__all__ = ["SESSION_REMEDY", "KernelLock"]

SESSION_REMEDY = "Write the lock for these shapes (xpu lock --shape, --bucket), or run without it."


class KernelLock:
    """Kernels by call. A call is identified by ``call_key`` and the name of its node's first value.

    kernels: the words of kernels (``generated``, ``cublasLt[algorithm=21]``). None records the choices of a compilation.
    remedy: the advice for a call that was not recorded.
    ``used`` has those that a compilation needed: a lock may cover other shapes, too.
    ``alternatives``: kernels that a measurement may choose for each recorded call, the chosen one first.
    ``demands``: recorded calls with a rule that demands deterministic kernels, and that rule.
    ``stages``: by entry point, the key of each call of the program; empty for a call without a node.
    """

    def __init__(self, kernels: Mapping[str, str] | None = None, remedy: str = SESSION_REMEDY) -> None:
        self.recording, self.remedy = kernels is None, remedy
        self.kernels: dict[str, str] = dict(kernels or {})
        self.used: dict[str, str] = {}
        self.alternatives: dict[str, tuple[str, ...]] = {}
        self.demands: dict[str, str] = {}
        self.stages: dict[str, tuple[str, ...]] = {}
        self._values: dict[str, str] = {}

    def record(
        self, node: Node, call: NodeCall, kernel: str, others: Sequence[str] = (), demand: str = ""
    ) -> None:
        """Add the choice of a kernel. ``others``: usable kernels that only their order or their time excludes. ``demand``: a rule that demands a
        deterministic one.
        """
        key = self._note(node, call)
        if demand:
            self.demands[key] = demand
        self.kernels[key] = kernel
        self.alternatives[key] = (kernel, *others)

    def note_stages(self, entry: str, calls: Sequence[StageCall]) -> None:
        """Attribute the calls of an entry point to the recorded calls. A stage that writes a temp belongs to the node that reads it."""
        keys, readers = [], dict[str, str]()
        for call in reversed(calls):
            outputs = [o for o in call.outputs if not o.startswith(COUNTERS)] or call.outputs
            names = (readers.get(o) or self._values.get(o) for o in outputs)
            key = next((k for k in names if k), "")
            keys.append(key)
            readers |= {i: key for i in call.inputs if i.startswith("temp.") and i not in self._values}
        self.stages[entry] = tuple(reversed(keys))

    def _note(self, node: Node, call: NodeCall) -> str:
        key = _key(node, call)
        self._values |= {v.name: key for v in node.outputs}
        return key

    def has(self, node: Node, call: NodeCall) -> bool:
        """Return True if the lock names a kernel for a call."""
        return _key(node, call) in self.kernels

    def kernel(self, node: Node, call: NodeCall) -> str:
        """Return the kernel of a call. Raises LockError for a call that was not recorded."""
        key = self._note(node, call)
        word = self.kernels.get(key)
        if word is None:
            name = source_names(node)[0]
            shapes = ", ".join(str(t.spec) for t in call.tensors)
            raise LockError(
                f"node {name}",
                "is not in the lock: its shapes, types or attributes are others",
                got=f"{node.op} of {shapes or 'no tensor'}",
                do=self.remedy,
                changes=((f"node {name}", "absent", f"{node.op} of {shapes}"),),
            )
        self.used[key] = word
        return word


def _key(node: Node, call: NodeCall) -> str:
    return f"{call_key(call)} {node.name}"
