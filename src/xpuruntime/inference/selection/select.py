"""Which engine on which device runs the model: candidates in order, attempts, fallback, and the Decision that says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...decisions import Candidate, Decision, Reason
from ...errors import (
    BuildError,
    BuildTimeout,
    DeviceUnavailable,
    EngineUnavailable,
    InternalError,
    KernelUnavailable,
    PolicyError,
    PrecisionUnavailable,
    WrongResult,
    XpuError,
)
from ...protocols import ModelSource
from ...store import Store
from ...targets import DeviceId
from ..partitioned.auto_mixed import chosen_mix, wanted_by
from .auto_choice import measured_choice
from .candidate import Loaded, Wanted, attempt, checked
from .partition_fallback import on_several
from .request import Ask

__all__ = ["Selection", "select"]


# Where nobody names a device. An NPU is not among them: it wants a model made for it, so it is never taken unasked.
_DEVICES = (DeviceId("cuda"), DeviceId("cpu"))


@dataclass(slots=True)
class Selection:
    """What was chosen, every decision on the way, and one sentence for each thing the user should know."""

    loaded: Loaded
    decisions: list[Decision]
    warnings: list[str] = field(default_factory=list)
    alternatives: tuple[str, ...] = ()


def select(model: ModelSource, ask: Ask, store: Store) -> Selection:
    """Choose and load. Raises the UnavailableError, BuildError or PolicyError that fits when nothing can be had."""
    candidates = _candidates(ask)
    warnings: list[str] = []
    if wanted_by(ask.place):
        loaded, decision, warnings = chosen_mix(model, ask, store)
    elif ask.place:
        loaded, decision = None, Decision("engine", model.name, None)
    elif ask.engine == "auto":
        loaded, decision, warnings = _measured(model, ask, candidates, store)
    else:
        loaded, decision = _first(model, ask, candidates, store)
    fallback = _fallbacks(ask, candidates)
    several = None if wanted_by(ask.place) else on_several(model, ask, loaded, decision, fallback, store)
    if several is not None:
        loaded, decision = several
        outcome = checked(loaded, store)
        if isinstance(outcome, Candidate):
            loaded, decision = None, Decision("engine", model.name, None, (outcome, *decision.rejected))
        else:
            loaded = outcome
    if loaded is None and fallback:
        untried = [w for w in fallback if w not in candidates]
        loaded, decision = _fall_back(model, decision, untried, store)
        if loaded is not None:
            why = decision.rejected[0]
            instead = f"{loaded.wanted.name} runs {model.name} instead"
            if loaded.wanted.precision is not ask.precision:
                instead += f", in {loaded.precision.value}"
            warnings.append(f"{why.name} cannot be had ({why.reason}); {instead}")
    if loaded is None:
        raise _unavailable(model, ask, decision)
    precision, note = _precision(model, ask, loaded, decision)
    names = dict.fromkeys(w.name for w in fallback)
    left = tuple(n for n in names if n not in {loaded.wanted.name, *(c.name for c in decision.rejected)})
    found = [] if loaded.verdict is None else [loaded.verdict.decision(model.name)]
    loaded = replace(loaded, wanted=replace(loaded.wanted, check=None))  # which holds the user's module
    return Selection(loaded, [decision, precision, *found], [*warnings, *note], left)


def _measured(
    model: ModelSource, ask: Ask, candidates: Sequence[Wanted], store: Store
) -> tuple[Loaded | None, Decision, list[str]]:
    """The fastest candidate whose outputs are right, also beside an independent reference; those that are not are out, and the rest is measured."""
    wrong: list[Candidate] = []
    while True:
        loaded, decision, warnings = measured_choice(model, ask, candidates, store)
        outcome = None if loaded is None else checked(loaded, store)
        decision = replace(decision, rejected=(*decision.rejected, *wrong))
        if not isinstance(outcome, Candidate):
            return outcome, decision, warnings
        wrong.append(outcome)
        candidates = [c for c in candidates if c.name != outcome.name]


def _candidates(ask: Ask) -> list[Wanted]:
    """Every engine and device that the request admits, in order."""
    devices = (ask.device,) if ask.device else _DEVICES
    if ask.engine not in (None, "auto"):
        return [ask.wanted(ask.engine, d) for d in devices]
    return [ask.wanted(e, d) for d in devices for e in ask.order.get(d.kind, ())]


def _first(
    model: ModelSource, ask: Ask, candidates: Sequence[Wanted], store: Store
) -> tuple[Loaded | None, Decision]:
    """The first candidate that loads."""
    rejected: list[Candidate] = []
    for i, wanted in enumerate(candidates):
        outcome = attempt(model, wanted, store)
        if isinstance(outcome, Candidate):
            rejected.append(outcome)
            continue
        if ask.engine is None:
            head = Candidate(
                wanted.name, Reason.DEFAULT, "first of the built-in order that loads", facts=outcome.facts
            )
            text = f"stands after {wanted.name}, which loads"
            rejected += [Candidate(w.name, Reason.LOWER_PREFERENCE, text) for w in candidates[i + 1 :]]
        else:
            head = Candidate(wanted.name, Reason.REQUESTED, "named by the user", facts=outcome.facts)
            rejected += _not_requested(ask)
        return outcome, Decision("engine", model.name, head, tuple(rejected))
    return None, Decision("engine", model.name, None, (*rejected, *_not_requested(ask)))


def _fallbacks(ask: Ask, candidates: Sequence[Wanted]) -> list[Wanted]:
    """What may take over, in order: the engines of the devices that ``allow_fallback`` names in the demanded precision, then, in the model's
    own precision, what was asked for where such a device was, and those engines.
    """
    named = [ask.wanted(e, d) for d in ask.fallback for e in ask.order.get(d.kind, ())]
    if ask.precision is None:
        return named
    kinds = {d.kind for d in ask.fallback}
    same = [w for w in candidates if w.device.kind in kinds]
    return [*named, *dict.fromkeys(replace(w, precision=None) for w in (*same, *named))]


def _not_requested(ask: Ask) -> list[Candidate]:
    """Every other engine of the vocabulary, where the user named one."""
    if ask.engine is None:
        return []
    others = dict.fromkeys(e for engines in ask.order.values() for e in engines if e != ask.engine)
    return [Candidate(e, Reason.NOT_REQUESTED, f"{ask.engine} was named") for e in others]


def _fall_back(
    model: ModelSource, failed: Decision, fallback: Sequence[Wanted], store: Store
) -> tuple[Loaded | None, Decision]:
    """The first fallback that loads. What the user asked for, and why it cannot be had, stays in front of the rejected."""
    rejected = [c for c in failed.rejected if c.code is not Reason.NOT_REQUESTED]
    for wanted in fallback:
        outcome = attempt(model, wanted, store)
        if isinstance(outcome, Loaded):
            asked = rejected[0].name if rejected else "what was asked for"
            text = f"allow_fallback names {wanted.device}, and {asked} cannot be had"
            head = Candidate(wanted.name, Reason.FALLBACK, text, facts=outcome.facts)
            return outcome, Decision("engine", model.name, head, tuple(rejected))
        rejected.append(outcome)
    return None, Decision("engine", model.name, None, tuple(rejected))


def _precision(model: ModelSource, ask: Ask, loaded: Loaded, engine: Decision) -> tuple[Decision, list[str]]:
    """The decision on precision, and a warning where a permitted precision could not be used."""
    name = loaded.precision.value
    if ask.precision is not None and loaded.wanted.precision is None:
        text = "the model's own: allow_fallback, and the demanded precision cannot be had"
        head = Candidate(name, Reason.FALLBACK, text)
        lacking = next((c for c in engine.rejected if c.code is Reason.PRECISION_UNSUPPORTED), None)
        wished = Candidate(
            ask.precision.value,
            Reason.PRECISION_UNSUPPORTED,
            lacking.reason if lacking else "no engine on the devices of allow_fallback has it",
        )
        return Decision("precision", model.name, head, (wished,)), []
    if ask.precision is not None:
        text = "demanded by the policy"
        return Decision("precision", model.name, Candidate(name, Reason.REQUESTED, text)), []
    if ask.permit is not None and loaded.precision is ask.permit:
        return Decision("precision", model.name, Candidate(name, Reason.REQUESTED, "fp16=True")), []
    head = Candidate(name, Reason.DEFAULT, "the model's own")
    if loaded.precision_note or ask.permit is None:
        return Decision("precision", model.name, head), []
    wished = Candidate.rejected(ask.permit.value, loaded.precision_note)
    warning = f"{ask.permit.value} cannot be had on {loaded.wanted.name} ({wished.reason}); {name} is used"
    return Decision("precision", model.name, head, (wished,)), [warning]


# Which error a reason becomes when nothing could be had; everything else is an EngineUnavailable.
_ERRORS: dict[Reason, type[XpuError]] = {
    Reason.NO_DEVICE: DeviceUnavailable,
    Reason.DEVICE_REFUSED: DeviceUnavailable,
    Reason.DEVICE_MISMATCH: DeviceUnavailable,
    Reason.PRECISION_UNSUPPORTED: PrecisionUnavailable,
    Reason.FORBIDDEN: KernelUnavailable,
    Reason.WORKSPACE_EXCEEDED: KernelUnavailable,
    Reason.OPTION_UNKNOWN: PolicyError,
    Reason.BUILD_FAILED: BuildError,
    Reason.INTERNAL_ERROR: InternalError,
    Reason.WRONG_RESULT: WrongResult,
    Reason.TIMED_OUT: BuildTimeout,
}


def _unavailable(model: ModelSource, ask: Ask, decision: Decision) -> XpuError:
    tried = [c for c in decision.rejected if c.code is not Reason.NOT_REQUESTED]
    asked = " ".join(
        part
        for part in (
            f"engine {ask.engine!r}" if ask.engine else "",
            f"device '{ask.device}'" if ask.device else "",
            f"precision {ask.precision.value!r}" if ask.precision else "",
        )
        if part
    )
    who = f"session({model.name!r})"
    if not tried:
        return EngineUnavailable(who, "no engine is known for this request", got=asked, decision=decision)
    # A device that is missing says more than the engines that happen not to be installed.
    # But where no device was named, one that is not there says less than what an engine said about one that is.
    absent = (Reason.NO_DEVICE, Reason.DEVICE_MISMATCH) if ask.device is None else ()
    pool = [c for c in tried if c.code not in absent] or tried
    telling = (
        next((c for c in pool if c.code in _ERRORS), pool[0]) if ask.engine in (None, "auto") else pool[0]
    )
    kind = _ERRORS.get(telling.code, EngineUnavailable)
    what = f"{asked or 'what was asked for'} cannot be had: {telling.reason}"
    what = what.rstrip(".")
    got = ", ".join(f"{c.name}: {c.code.value}" for c in tried)
    do = telling.do or "Name another engine or device, or add allow_fallback='cpu'."
    if kind is InternalError:
        parts, folder = tuple(telling.facts.get("parts", ())), telling.facts.get("reproduction", "")
        return InternalError(who, what, got=got, do=do, decision=decision, parts=parts, folder=folder)
    return kind(who, what, got=got, do=do, decision=decision)
