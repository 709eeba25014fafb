"""Calls: a kernel's stages with named buffers, and the lowered form of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..decisions import Decision
from ..errors import BuildError
from ..ir import Graph, Node
from ..ir.family import source_names
from ..kernels.kernel import LoweredCall, Stage
from ..program.program import StateRef
from .memory import Memory, MemoryUse
from .weights import KnownValues

__all__ = ["COUNTERS", "LoweredGraph", "StageCall", "calls_of"]

COUNTERS = "temp.counters"
"""The buffer of the counters that calls of a program share."""


@dataclass(frozen=True, slots=True)
class StageCall:
    """A stage of a kernel with the names of its buffers: ``inputs``, then ``outputs``, in the order of the function's parameters.

    because: the reason for the kernel's choice, for errors.
    """

    kernel: str
    stage: Stage
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    in_place: Mapping[str, str] = field(default_factory=dict)
    because: str = ""

    @property
    def use(self) -> MemoryUse:
        """Return the call's memory accesses."""
        return MemoryUse(self.inputs, self.outputs, self.in_place)


@dataclass(slots=True)
class LoweredGraph:
    """The lowered form of a graph on one target.

    inputs, outputs: names of the graph's input and output buffers, the same on every target.
    renamed:  values that are stored in an output buffer, and that buffer's name.
    declined: kernels and nodes that this machine's libraries declined.
    """

    graph: Graph
    calls: list[StageCall]
    memory: Memory
    known: KnownValues
    decisions: list[Decision]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    states: tuple[StateRef, ...] = ()
    declined: tuple[str, ...] = ()


def calls_of(
    kernel: str, node: Node, lowered: LoweredCall, names: Mapping[str, str], because: str = ""
) -> list[StageCall]:
    """Return the stages of a lowered node in order. ``names``: the buffer of each argument (``in0``, ``out0``, ``temp0`` ...).

    Raises BuildError for a stage that takes a result before an operand.
    """
    in_place = {f"out{o}": f"in{i}" for o, i in lowered.in_place.items()}
    written: set[str] = set()
    calls = []
    for stage in lowered.stages:
        # A temp is a result of the first stage that names it and an operand of later ones. Counters are always results.
        results = [
            a
            for a in stage.args
            if a.startswith(("out", "counters")) or (a.startswith("temp") and a not in written)
        ]
        operands = [a for a in stage.args if a not in results]
        if [*operands, *results] != list(stage.args):
            raise BuildError(
                f"kernel {kernel} for {node.op} %{node.name}",
                "must take operands before results",
                got=stage.args,
            )
        written.update(results)
        calls.append(
            StageCall(
                kernel,
                stage,
                tuple(names[a] for a in operands),
                tuple(names[a] for a in results),
                source_names(node),
                _ops(node),
                {names[o]: names[i] for o, i in in_place.items() if o in results and i in operands},
                because,
            )
        )
    return calls


def _ops(node: Node) -> tuple[str, ...]:
    if node.op == "fused":
        return tuple(n.op for n in node.attrs["body"].nodes if n.op != "constant")
    return (node.op,)
