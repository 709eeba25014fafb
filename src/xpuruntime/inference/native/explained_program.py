"""A compiled program that is explained without running. Its native code is not loaded, because loading alone executes constructors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from ... import __version__
from ...decisions import Decision
from ...errors import RunError
from ...program.node_kernels import kernels_by_node
from ...program.program import CompiledProgram
from ...protocols import (
    Array,
    EngineRequest,
    Evidence,
    ModelSource,
    ReportsDecisions,
    ReportsFallbacks,
    ReportsKernels,
    Stoppable,
)
from ...runtime.device import Device
from ...runtime.execution.choice import choose_plan
from ...runtime.memory.buffer import backend_of
from ..models.programs import buckets_of

__all__ = ["PlannedProgram"]


class PlannedProgram(Stoppable, ReportsFallbacks, ReportsDecisions, ReportsKernels):
    """The inputs, outputs and decisions of a program, after a check that this machine satisfies its binaries' requirements.

    Raises UnavailableError if no alternative of an entry point runs here.
    """

    def __init__(self, model: ModelSource, request: EngineRequest) -> None:
        program: CompiledProgram = model.graph
        self.inputs, self.outputs = model.inputs, model.outputs
        self._decisions = program.decisions
        self._who = f"native, program {model.name}"
        backend = backend_of(Device(request.device))
        plans = [choose_plan(program, program.entry(name), backend)[0] for name in buckets_of(program)]
        self._kernels = kernels_by_node(plans[0].calls)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Return the decisions of the compiler."""
        return self._decisions

    @property
    def kernels(self) -> Mapping[str, str]:
        """Return the kernels of each node in the first entry point."""
        return self._kernels

    def run(self, feeds: dict[str, Array]) -> NoReturn:
        """Raise RunError."""
        raise RunError(self._who, "is explained, not run", do="Open it as a session.")

    def context(self) -> Any:
        """Raise RunError."""
        self.run({})

    def evidence(self, feeds: dict[str, Array] | None = None) -> Evidence:
        """Return empty evidence."""
        return Evidence("native", __version__, (), "session")

    def fallbacks(self) -> tuple[str, ...]:
        """Return no fallbacks."""
        return ()

    def close(self) -> None:
        """Do nothing."""
