"""Choice among the alternatives of an entry point: the first whose binary this machine can run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ... import _core
from ...decisions import Candidate, Decision, Reason, Support
from ...errors import KernelRefused, UnavailableError
from ...program.program import CompiledProgram, EntryPoint, ExecutionPlan
from .binding import Bound, bind_plan
from .control import Bodies

if TYPE_CHECKING:
    from ...storage.store import Store
    from ..backends.base import RuntimeBackend

__all__ = ["choose_plan", "first_bound"]


def choose_plan(
    program: CompiledProgram,
    entry: EntryPoint,
    backend: RuntimeBackend,
    refused: Mapping[int, str] = MappingProxyType({}),
) -> tuple[ExecutionPlan, Decision]:
    """Return the first plan that this machine can run, and the decision.

    refused: for the index of each plan that could not be prepared, the reason.
    Raises UnavailableError with the reason of each plan if none can run.
    """
    chosen: ExecutionPlan | None = None
    winner: Candidate | None = None
    rejected: list[Candidate] = []
    for i, plan in enumerate(entry.plans):
        support = _supported(program, plan, backend)
        if i in refused:
            support = Support.no(Reason.BUILD_FAILED, refused[i])
        if not support.ok:
            rejected.append(Candidate.rejected(plan.target, support))
        elif winner is None:
            chosen = plan
            winner = Candidate(plan.target, Reason.DEFAULT, "the first alternative that this machine runs")
        else:
            rejected.append(
                Candidate(plan.target, Reason.LOWER_PREFERENCE, "an earlier alternative runs on this machine")
            )
    decision = Decision("alternative", f"{program.name}:{entry.name}", winner, tuple(rejected))
    if chosen is None:
        raise UnavailableError(
            f"program {program.name!r}",
            f"has no alternative of {entry.name!r} that this machine can run",
            got="; ".join(f"{c.name}: {c.reason}" for c in rejected) or "no alternative at all",
            do="Compile it for this machine's target.",
            decision=decision,
        )
    return chosen, decision


def first_bound(
    program: CompiledProgram,
    entry: EntryPoint,
    backend: RuntimeBackend,
    threads: int,
    contexts: int,
    bodies: Bodies,
    communicator: int = 0,
    arenas: _core.ArenaPool | None = None,
    store: Store | None = None,
) -> tuple[ExecutionPlan, Decision, Bound]:
    """Bind the first alternative that runs on this machine and whose calls no library refuses. Raises UnavailableError, KernelRefused,
    BuildError.
    """
    refused: dict[int, str] = {}
    while True:
        plan, decision = choose_plan(program, entry, backend, refused)
        try:
            bound = bind_plan(
                program, entry, plan, backend, threads, contexts, bodies, communicator, arenas, store
            )
        except KernelRefused as error:
            refused[next(i for i, p in enumerate(entry.plans) if p is plan)] = str(error.got)
            try:
                choose_plan(program, entry, backend, refused)
            except UnavailableError:
                raise error from None  # no other alternative is left
        else:
            return plan, decision, bound


def _supported(program: CompiledProgram, plan: ExecutionPlan, backend: RuntimeBackend) -> Support:
    kind = plan.target.partition(":")[0]
    if not backend.kind:  # the null backend accepts every plan
        return Support.yes()
    if kind != backend.kind:
        return Support.no(Reason.DEVICE_MISMATCH, f"compiled for {kind}; the device is {backend.kind}")
    for index in plan.binaries:
        binary = program.binaries[index]
        foreign = backend.foreign(binary.format)
        if foreign:
            return Support.no(Reason.DEVICE_MISMATCH, foreign)
        missing = backend.missing(binary.requires)
        if missing:
            return Support.no(Reason.DEVICE_REFUSED, f"this machine lacks {', '.join(missing)}")
    return Support.yes()
