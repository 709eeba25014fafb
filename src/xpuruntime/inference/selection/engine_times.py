"""The engine ``auto`` by a file of measured times (``xpu tune --engine``): nothing is measured again, and a file that does not fit says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...compiler.placement_times import PlacementTimes
from ...compiler.times import EngineTimes, KernelTimes
from ...decisions import Candidate, Decision, Reason
from ...engines import lookup
from ...protocols import ModelSource
from ...runtime.device import cuda
from ...storage.store import Store
from ..native.engine import TIMES, machine_facts
from .candidate import EngineCandidate, LoadedEngine, attempt
from .request import SessionRequest

__all__ = ["choice_by_file", "is_available", "misfit", "times_of_file"]


def times_of_file(request: SessionRequest) -> tuple[str, KernelTimes | None]:
    """Return the file that the option ``kernel_times`` names, and its times. Raises FormatError if it cannot be read."""
    file = request.execution.options_for("native").get(TIMES, "")
    return file, KernelTimes.load(file) if file else None


def choice_by_file(
    model: ModelSource, request: SessionRequest, candidates: Sequence[EngineCandidate], store: Store
) -> tuple[LoadedEngine, Decision] | str:
    """Return the fastest engine by the file that the option ``kernel_times`` names, or why the file does not decide (empty: no file).

    Of several sets of sizes, the sum of the times decides. Every available candidate must have a time, of its release and on this device.
    """
    file, times = times_of_file(request)
    if times is None or not times.engines:
        return ""
    rows = [row for row in times.engines if row.model == model.digest]
    usable = [c for c in candidates if is_available(c)]
    if reason := misfit(rows, times, usable, request):
        return f"{file} does not choose the engine: {reason}"
    totals = {c: sum(row.times_us[c.engine] for row in rows) for c in usable}
    order = sorted(usable, key=totals.__getitem__)
    refused: list[Candidate] = []
    for candidate in order:
        outcome = attempt(model, candidate, store)
        if isinstance(outcome, Candidate):
            refused.append(outcome)
            continue
        text = f"{_told(rows, candidate.engine)}, measured before in {file} (sha256:{times.digest[:12]})"
        head = Candidate(candidate.name, Reason.RECORDED, text, facts=outcome.facts)
        others = [
            Candidate(c.name, Reason.SLOWER, _told(rows, c.engine))
            for c in order
            if totals[c] > totals[candidate]
        ]
        absent = [c for c in candidates if c not in usable]
        refused += [
            Candidate.rejected(c.name, lookup(c.engine).installed())
            for c in absent
            if not lookup(c.engine).installed()
        ]
        return outcome, Decision("engine", model.name, head, (*refused, *others))
    return f"{file} does not choose the engine: none of its engines loads"


def is_available(candidate: EngineCandidate) -> bool:
    """Return True if the engine is installed and its device exists."""
    if not lookup(candidate.engine).installed():
        return False
    return candidate.device.kind != "cuda" or bool(cuda().devices)


def misfit(
    rows: Sequence[EngineTimes | PlacementTimes],
    times: KernelTimes,
    usable: Sequence[EngineCandidate],
    request: SessionRequest,
) -> str:
    """Return why the rows of a model do not decide among the candidates; empty if they do."""
    if not rows:
        return "its engines were measured on another model"
    kinds = {c.device.kind for c in usable}
    if kinds != {times.target.partition(":")[0]}:
        return (
            f"candidates are on {', '.join(sorted(kinds)) or 'no device'}, and it has times of {times.target}"
        )
    caveat = times.compared(machine_facts(usable[0].device), request.threads).caveat
    if caveat:
        return caveat
    for row in rows:
        for candidate in usable:
            name = candidate.engine
            if name not in row.times_us:
                return f"it has no time of {name}"
            here = lookup(name).version()
            if row.versions[name] != here:
                return f"{name} is {here} here, {row.versions[name]} in the file"
    return ""


def _told(rows: Sequence[EngineTimes], engine: str) -> str:
    texts = []
    for row in rows:
        sizes = _sizes(row.shapes)
        texts.append(f"median {row.times_us[engine]:.1f} us of {row.rounds} alternating rounds{sizes}")
    return "; ".join(texts)


def _sizes(shapes: Mapping[str, int]) -> str:
    return f" for {', '.join(f'{k}={v}' for k, v in sorted(shapes.items()))}" if shapes else ""
