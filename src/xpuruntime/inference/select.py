"""Selection of an engine and a device: candidates in order, attempts, fallback, and the Decision with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..decisions import Candidate, Decision, Reason
from ..errors import (
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
from ..protocols import ModelSource
from ..storage.store import Store
from ..targets import DeviceId
from .partitioned.auto_mixed import chosen_mix, wanted_by
from .partitioned.mixed import locked_mix
from .partitioned.partition_fallback import partition_fallback
from .selection.auto_choice import measured_choice
from .selection.candidate import EngineCandidate, LoadedEngine, attempt, checked
from .selection.request import SessionRequest

__all__ = ["Selection", "select"]


# The devices if none is named. An NPU needs a model made for it, so it is never chosen without being named.
_DEVICES = (DeviceId("cuda"), DeviceId("cpu"))


@dataclass(slots=True)
class Selection:
    """The chosen engine, every decision on the way, and one sentence for each warning."""

    loaded: LoadedEngine
    decisions: list[Decision]
    warnings: list[str] = field(default_factory=list)
    alternatives: tuple[str, ...] = ()


def select(model: ModelSource, request: SessionRequest, store: Store) -> Selection:
    """Choose and load an engine. Raises the UnavailableError, BuildError or PolicyError of the most telling failure."""
    candidates = _candidates(request)
    warnings: list[str] = []
    replaying = request.lock is not None and bool(request.lock.regions)
    if replaying:
        loaded, decision = _locked_regions(model, request, store)
    elif wanted_by(request.place):
        loaded, decision, warnings = chosen_mix(model, request, store)
    elif request.place:
        loaded, decision = None, Decision("engine", model.name, None)
    else:
        loaded, decision, warnings = _on_one_engine(model, request, candidates, store)
    fallback = _fallbacks(request, candidates)
    partitioned = (
        None
        if replaying or wanted_by(request.place)
        else partition_fallback(model, request, loaded, decision, fallback, store)
    )
    if partitioned is not None:
        loaded, decision = partitioned
        outcome = checked(loaded, store)
        if isinstance(outcome, Candidate):
            loaded, decision = None, Decision("engine", model.name, None, (outcome, *decision.rejected))
        else:
            loaded = outcome
    elif request.place and not wanted_by(request.place) and not replaying:
        loaded, decision, warnings = _on_one_engine(model, request, candidates, store)  # nothing to place
    if loaded is None and fallback:
        untried = [c for c in fallback if c not in candidates]
        loaded, decision = _fall_back(model, decision, untried, store)
        if loaded is not None:
            why = decision.rejected[0]
            instead = f"{loaded.candidate.name} runs {model.name} instead"
            if loaded.candidate.precision is not request.precision:
                instead += f", in {loaded.precision.value}"
            warnings.append(f"{why.name} cannot be had ({why.reason}); {instead}")
    if loaded is None:
        raise _unavailable(model, request, decision)
    precision, note = _precision(model, request, loaded, decision)
    names = dict.fromkeys(c.name for c in fallback)
    left = tuple(n for n in names if n not in {loaded.candidate.name, *(c.name for c in decision.rejected)})
    self_check = [] if loaded.verdict is None else [loaded.verdict.decision(model.name)]
    untuned = _untuned(model, request, loaded)
    loaded = replace(loaded, candidate=replace(loaded.candidate, request=loaded.candidate.request.released()))
    return Selection(loaded, [decision, precision, *untuned, *self_check], [*warnings, *note], left)


def _untuned(model: ModelSource, request: SessionRequest, loaded: LoadedEngine) -> list[Decision]:
    """Return the decision that nothing is measured under ``tune``, because an engine that chooses its kernels itself was chosen."""
    engine = loaded.candidate.engine
    if request.tune is None or engine == "native":
        return []
    why = f"{engine} chooses its kernels itself, so none is measured"
    name = f"on_build {request.tune.seconds:g} s"
    return [Decision("tune", model.name, None, (Candidate(name, Reason.NOT_APPLICABLE, why),))]


def _on_one_engine(
    model: ModelSource, request: SessionRequest, candidates: Sequence[EngineCandidate], store: Store
) -> tuple[LoadedEngine | None, Decision, list[str]]:
    """Return the whole model on the fastest candidate for the engine ``auto``, else on the first that loads, and warnings."""
    if request.engine == "auto":
        return _measured(model, request, candidates, store)
    return *_first(model, request, candidates, store), []


def _measured(
    model: ModelSource, request: SessionRequest, candidates: Sequence[EngineCandidate], store: Store
) -> tuple[LoadedEngine | None, Decision, list[str]]:
    """Return the fastest candidate with correct outputs. A candidate that fails the self-check is removed, and the rest is measured again."""
    wrong: list[Candidate] = []
    while True:
        loaded, decision, warnings = measured_choice(model, request, candidates, store)
        outcome = None if loaded is None else checked(loaded, store)
        decision = replace(decision, rejected=(*decision.rejected, *wrong))
        if not isinstance(outcome, Candidate):
            return outcome, decision, warnings
        wrong.append(outcome)
        candidates = [c for c in candidates if c.name != outcome.name]


def _locked_regions(
    model: ModelSource, request: SessionRequest, store: Store
) -> tuple[LoadedEngine | None, Decision]:
    """Return the model on the regions of the lock."""
    outcome = locked_mix(model, request, store)
    if isinstance(outcome, Candidate):
        return None, Decision("engine", model.name, None, (outcome,))
    facts = {k: outcome.facts[k] for k in ("regions", "from_store")}
    name = str(outcome.facts["mix"])
    head = Candidate(name, Reason.LOCKED, "the lock names every region", facts=facts)
    return outcome, Decision("engine", model.name, head)


def _candidates(request: SessionRequest) -> list[EngineCandidate]:
    """Return every engine and device that the request admits, in order."""
    devices = (request.device,) if request.device else _DEVICES
    named = () if request.engine in (None, "auto") else (str(request.engine),)
    return [
        EngineCandidate(e, d, request) for d in devices for e in named or request.execution.order_for(d.kind)
    ]


def _first(
    model: ModelSource, request: SessionRequest, candidates: Sequence[EngineCandidate], store: Store
) -> tuple[LoadedEngine | None, Decision]:
    """Return the first candidate that loads."""
    rejected: list[Candidate] = []
    for i, candidate in enumerate(candidates):
        outcome = _opened(model, candidate, store)
        if isinstance(outcome, Candidate):
            rejected.append(outcome)
            continue
        if request.engine is None:
            head = Candidate(
                candidate.name, Reason.DEFAULT, "first of the built-in order that loads", facts=outcome.facts
            )
            text = f"{candidate.name} is earlier in the preference order"
            rejected += [Candidate(c.name, Reason.LOWER_PREFERENCE, text) for c in candidates[i + 1 :]]
        elif request.locked is not None:
            head = Candidate(candidate.name, Reason.LOCKED, "the lock names it", facts=outcome.facts)
        else:
            head = Candidate(candidate.name, Reason.REQUESTED, "named by the user", facts=outcome.facts)
            rejected += _not_requested(request)
        return outcome, Decision("engine", model.name, head, tuple(rejected))
    return None, Decision("engine", model.name, None, (*rejected, *_not_requested(request)))


def _opened(model: ModelSource, candidate: EngineCandidate, store: Store) -> LoadedEngine | Candidate:
    """Load a candidate. The outputs of a PyTorch module are compared on any engine, because we write its ONNX form."""
    outcome = attempt(model, candidate, store)
    if model.format == "graph" and isinstance(outcome, LoadedEngine):
        return checked(outcome, store)
    return outcome


def _fallbacks(request: SessionRequest, candidates: Sequence[EngineCandidate]) -> list[EngineCandidate]:
    """Return the fallbacks in order: the engines on the devices of ``allow_fallback`` in the demanded precision, then, in the model's
    own precision, the request itself on those devices, and those engines again.
    """
    named = [
        EngineCandidate(e, d, request) for d in request.fallback for e in request.execution.order_for(d.kind)
    ]
    if request.precision is None:
        return named
    kinds = {d.kind for d in request.fallback}
    same = [c for c in candidates if c.device.kind in kinds]
    return [*named, *dict.fromkeys(replace(c, own_precision=True) for c in (*same, *named))]


def _not_requested(request: SessionRequest) -> list[Candidate]:
    """Return every other engine if the user named one."""
    if request.engine is None:
        return []
    order = request.execution.engine_order or {}
    others = dict.fromkeys(e for engines in order.values() for e in engines if e != request.engine)
    return [Candidate(e, Reason.NOT_REQUESTED, f"{request.engine} was named") for e in others]


def _fall_back(
    model: ModelSource, failed: Decision, fallback: Sequence[EngineCandidate], store: Store
) -> tuple[LoadedEngine | None, Decision]:
    """Return the first fallback that loads. The user's request, with the reason against it, stays first among the rejected."""
    rejected = [c for c in failed.rejected if c.code is not Reason.NOT_REQUESTED]
    for candidate in fallback:
        outcome = _opened(model, candidate, store)
        if isinstance(outcome, LoadedEngine):
            first = rejected[0].name if rejected else "the request"
            text = f"allow_fallback names {candidate.device}, and {first} cannot be had"
            head = Candidate(candidate.name, Reason.FALLBACK, text, facts=outcome.facts)
            return outcome, Decision("engine", model.name, head, tuple(rejected))
        rejected.append(outcome)
    return None, Decision("engine", model.name, None, tuple(rejected))


def _precision(
    model: ModelSource, request: SessionRequest, loaded: LoadedEngine, engine: Decision
) -> tuple[Decision, list[str]]:
    """Return the decision on precision, and a warning if a permitted precision could not be used."""
    name = loaded.precision.value
    if request.precision is not None and loaded.candidate.precision is None:
        text = "the model's own: allow_fallback, and the demanded precision cannot be had"
        head = Candidate(name, Reason.FALLBACK, text)
        lacking = next((c for c in engine.rejected if c.code is Reason.PRECISION_UNSUPPORTED), None)
        wished = Candidate(
            request.precision.value,
            Reason.PRECISION_UNSUPPORTED,
            lacking.reason if lacking else "no engine on the devices of allow_fallback has it",
        )
        return Decision("precision", model.name, head, (wished,)), []
    if request.precision is not None:
        text = "demanded by the policy"
        return Decision("precision", model.name, Candidate(name, Reason.REQUESTED, text)), []
    if request.permit is not None and loaded.precision is request.permit:
        return Decision("precision", model.name, Candidate(name, Reason.REQUESTED, "fp16=True")), []
    head = Candidate(name, Reason.DEFAULT, "the model's own")
    if loaded.precision_note or request.permit is None:
        return Decision("precision", model.name, head), []
    wished = Candidate.rejected(request.permit.value, loaded.precision_note)
    warning = (
        f"{request.permit.value} cannot be had on {loaded.candidate.name} ({wished.reason}); {name} is used"
    )
    return Decision("precision", model.name, head, (wished,)), [warning]


# The error of each reason if nothing is available. Any other reason becomes EngineUnavailable.
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


def _unavailable(model: ModelSource, request: SessionRequest, decision: Decision) -> XpuError:
    tried = [c for c in decision.rejected if c.code is not Reason.NOT_REQUESTED]
    request_text = " ".join(
        part
        for part in (
            f"engine {request.engine!r}" if request.engine else "",
            f"device '{request.device}'" if request.device else "",
            f"precision {request.precision.value!r}" if request.precision else "",
        )
        if part
    )
    who = f"session({model.name!r})"
    if not tried:
        return EngineUnavailable(
            who,
            "no engine is known for this request",
            got=request_text,
            do="Name another engine or device; `xpu devices` lists them.",
            decision=decision,
        )
    # A missing device tells more than engines that are not installed. Without a named device, though,
    # a missing device tells less than the reason of an engine on an existing device.
    absent = (Reason.NO_DEVICE, Reason.DEVICE_MISMATCH) if request.device is None else ()
    pool = [c for c in tried if c.code not in absent] or tried
    if request.engine in (None, "auto") and model.format == "graph":
        # What the native engine lacks tells more than engines that cannot read the module either.
        pool = [c for c in pool if c.name.startswith("native on ")] or pool
    telling = (
        next((c for c in pool if c.code in _ERRORS), pool[0]) if request.engine in (None, "auto") else pool[0]
    )
    kind = _ERRORS.get(telling.code, EngineUnavailable)
    what = f"{request_text or 'the request'} cannot be had: {telling.reason}"
    what = what.rstrip(".")
    got = ", ".join(f"{c.name}: {c.code.value}" for c in tried)
    do = telling.do or "Name another engine or device, or add allow_fallback='cpu'."
    if kind is InternalError:
        parts, folder = tuple(telling.facts.get("parts", ())), telling.facts.get("reproduction", "")
        return InternalError(who, what, got=got, do=do, decision=decision, parts=parts, folder=folder)
    return kind(who, what, got=got, do=do, decision=decision)
