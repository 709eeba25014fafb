"""One candidate, an engine on a device for a model: its availability, and its artifact from the store or the engine."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import __version__
from ...child_calls import build_within
from ...decisions import Candidate, Reason, Support
from ...engines import lookup
from ...errors import (
    BuildError,
    BuildTimeout,
    EngineUnavailable,
    InternalError,
    IrError,
    ModelError,
    OutOfMemory,
    PluginError,
    StoreError,
    UnavailableError,
    XpuError,
)
from ...faults import contained
from ...frontends.onnx.exporters.dense import in_loops
from ...plugins.loader import EnginePlugin
from ...policies import KernelPolicy
from ...printable import logger
from ...progress import step
from ...protocols import (
    Artifact,
    CompilesShapes,
    Engine,
    EngineRequest,
    Executable,
    HoldsMemory,
    ModelSource,
    StoppableLoad,
)
from ...storage.store import Store, digest
from ...targets import DeviceId
from ...types import DType
from ..execution.contexts import DEADLINES
from ..models.modules import as_onnx
from ..models.shape_cache import KeptShapes
from ..self_check import ADVICE, Verdict, checked_on_opening
from ..tuning.ledger import note_measured, remeasure_reason
from .integers import in_integers
from .request import SessionRequest, kernels_key
from .vendor_options import met_by_options
from .vendor_policy import vendor_refused

__all__ = ["EngineCandidate", "LoadedEngine", "artifact_key", "attempt", "checked", "ignored_text"]

_log = logger("xpuruntime.session")

_CHECKED = ("native", "qnn")
"""Engines whose outputs are compared on opening: ours, and QNN, which computes wrong values for some ops without an error (padded MaxPool)."""


@dataclass(frozen=True, slots=True)
class EngineCandidate:
    """One engine on one device for a session's request.

    own_precision: True if the model's own precision is used whatever the request demands, as a fallback may.
    """

    engine: str
    device: DeviceId
    request: SessionRequest = field(default_factory=SessionRequest, repr=False)
    own_precision: bool = False

    @property
    def name(self) -> str:
        """Return ``engine on device``, its name in decisions and plans."""
        return f"{self.engine} on {self.device}"

    @property
    def precision(self) -> DType | None:
        """Return the demanded precision; None for the model's own."""
        return None if self.own_precision else self.request.precision

    @property
    def options(self) -> dict[str, str]:
        """Return the vendor options of this engine."""
        return dict(self.request.execution.options_for(self.engine))


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A candidate that loaded.

    model:     the model given to the engine (fixed shapes make it differ from the user's).
    precision: the precision that it computes in, as shown in the plan.
    precision_note: Support.no with the engine's reason if ``permit`` could not be used.
    facts:     seconds of build and load, and whether the artifact came from the store.
    key:       everything that decides the artifact. verdict: the result of comparing its outputs, or None without a check.
    """

    candidate: EngineCandidate
    model: ModelSource
    executable: Executable
    version: str
    precision: DType
    precision_note: Support
    facts: dict[str, Any]
    key: Mapping[str, Any] = field(default_factory=dict)
    verdict: Verdict | None = None


def attempt(model: ModelSource, candidate: EngineCandidate, store: Store) -> LoadedEngine | Candidate:
    """Load the candidate, or return the reason why it is unavailable.

    Raises EngineUnavailable for an unknown name: a typing error must not cause a fallback.
    """
    try:
        with contained(f"{candidate.name}, model {model.name}"):
            return _attempt(model, candidate, store)
    except InternalError as error:
        facts = {"parts": list(error.parts), "reproduction": error.folder}
        return Candidate(candidate.name, Reason.INTERNAL_ERROR, error.what, error.do, facts=facts)
    except UnavailableError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):  # not of a package that is not installed
            raise
        return Candidate(candidate.name, Reason.NOT_INSTALLED, error.what, error.do)
    except (OutOfMemory, PluginError) as error:
        return Candidate(candidate.name, Reason.BUILD_FAILED, _what_and_got(error), error.do)


def _attempt(model: ModelSource, candidate: EngineCandidate, store: Store) -> LoadedEngine | Candidate:
    plugin = lookup(candidate.engine)
    installed = plugin.installed()
    if not installed:
        return Candidate.rejected(candidate.name, installed)
    engine: Engine = plugin.load()
    if candidate.request.automatic and not plugin.chooses_kernels and (looped := _in_loops(model)):
        why = f"ONNX has no {' and no '.join(looped)}; a loop over the columns of a matrix is slower than native kernels"
        do = f"Name engine={plugin.name!r} to run the loop."
        return Candidate(candidate.name, Reason.OP_UNSUPPORTED, why, do)
    try:
        source = model if model.format in plugin.formats else as_onnx(model)
    except (
        ModelError,
        IrError,
        EngineUnavailable,
    ) as error:  # the model cannot be written as ONNX, or the package that writes it is missing
        why = f"{error.who} {error.what}" + (f": {error.got}" if error.got else "")
        return Candidate(candidate.name, Reason.FORMAT_UNSUPPORTED, why, error.do)
    if (
        candidate.request.tune is not None
        and not plugin.chooses_kernels
        and candidate.request.engine == plugin.name
    ):
        why = f"tune measures the kernels of the native engine, and {plugin.name} chooses its own"
        return Candidate(candidate.name, Reason.OPTION_UNKNOWN, why, "Drop tune, or name engine='native'.")
    limited = candidate.request.execution.memory_bytes is not None
    if limited and plugin.holds_memory is False:
        return _without_memory_limit(candidate)
    kernels, options = candidate.request.kernels, candidate.options
    ignored = _of_other_devices(candidate, plugin)
    options = {name: value for name, value in options.items() if name not in ignored}
    met: dict[str, tuple[str, str]] = {}
    if not plugin.chooses_kernels:
        more, met = met_by_options(engine, candidate.device, kernels, options)
        options = {**more, **options}
    own_kernels = kernels if plugin.chooses_kernels else None
    used = store if candidate.request.caching else Store(mode="off")
    request, note = _engine_request(
        engine, source, candidate, options, own_kernels, plugin.chooses_kernels, used
    )
    support = engine.supports(source, request)
    if support and not plugin.chooses_kernels:
        support = vendor_refused(model, kernels, plugin.name, candidate.device, met)
    integers = in_integers(source, plugin, candidate.device.kind)
    if support and candidate.precision is not None and candidate.precision.is_integer:
        support = integers
    if not support:
        return Candidate.rejected(candidate.name, support)
    step(f"opening on {candidate.name}")
    try:
        executable, facts = _obtain(
            plugin,
            engine,
            source,
            request,
            used,
            candidate.request.execution.compile_timeout_s,
        )
    except BuildTimeout as error:
        return Candidate(candidate.name, Reason.TIMED_OUT, _what_and_got(error), error.do)
    except InternalError:
        raise
    except BuildError as error:
        return Candidate(candidate.name, Reason.BUILD_FAILED, _what_and_got(error), error.do)
    if limited and not isinstance(executable, HoldsMemory):
        executable.close()
        return _without_memory_limit(candidate)
    own = source.quantized if integers else None
    precision = own or request.precision or source.precision
    if met:
        facts["kernels_by_option"] = {family: list(kernel) for family, kernel in met.items()}
    if ignored:
        facts["options_ignored"] = ignored
        _log.warning("%s: %s", candidate.name, ignored_text(facts))
    checking = candidate.request.check is not None
    key = artifact_key(plugin.name, engine, source, request) if checking else {}
    loaded = LoadedEngine(candidate, source, executable, engine.version(), precision, note, facts, key)
    return checked(loaded, store) if plugin.name in _CHECKED else loaded


def _in_loops(model: ModelSource) -> Sequence[str]:
    """Return the ops of a module that are written as ONNX loops over the columns of a matrix, each once."""
    return in_loops(model.graph[0]) if model.format == "graph" else ()


def _of_other_devices(candidate: EngineCandidate, plugin: EnginePlugin) -> dict[str, list[str]]:
    """Return the given options that are for other kinds of devices, with these kinds; none if the user named this device."""
    if candidate.device == candidate.request.device:
        return {}
    kinds = {name: plugin.device_options.get(name, (candidate.device.kind,)) for name in candidate.options}
    return {name: [*of] for name, of in kinds.items() if candidate.device.kind not in of}


def ignored_text(facts: Mapping[str, Any]) -> str:
    """Return which options an engine ignores on its device, as a note; empty without any."""
    words = [f"{name!r} (for {', '.join(of)})" for name, of in facts.get("options_ignored", {}).items()]
    return f"options of other devices are ignored: {', '.join(words)}" if words else ""


def _without_memory_limit(candidate: EngineCandidate) -> Candidate:
    why = "memory_bytes cannot be enforced: the engine allocates memory itself"
    do = "Drop memory_bytes, or name engine='native'."
    return Candidate(candidate.name, Reason.OPTION_UNKNOWN, why, do)


def checked(loaded: LoadedEngine, store: Store) -> LoadedEngine | Candidate:
    """Return the candidate with the verdict on its outputs; close and reject it if they are wrong."""
    candidate, check = loaded.candidate, loaded.candidate.request.check
    if check is None or loaded.verdict is not None:
        return loaded
    used = store if candidate.request.caching else Store(mode="off")
    verdict = checked_on_opening(
        loaded.model, loaded.executable, candidate.engine, loaded.precision, loaded.key, check, used
    )
    if verdict.wrong:
        loaded.executable.close()
        return Candidate(candidate.name, Reason.WRONG_RESULT, verdict.text, verdict.advice or ADVICE)
    return replace(loaded, verdict=verdict)


def _engine_request(
    engine: Engine,
    model: ModelSource,
    candidate: EngineCandidate,
    options: Mapping[str, str],
    kernels: KernelPolicy | None,
    kernels_are_ours: bool,
    store: Store,
) -> tuple[EngineRequest, Support]:
    """Return the request to the engine, with the permitted precision if the engine supports it."""
    wanted = candidate.precision
    # An integer precision comes from the model alone.
    precision = None if wanted is None or wanted.is_integer or wanted is model.precision else wanted
    session = candidate.request
    request = EngineRequest(
        candidate.device,
        precision,
        session.threads,
        dict(sorted(options.items())),
        session.optimization,
        kernels,
        session.locked if kernels_are_ours else None,
        session.tune if kernels_are_ours else None,
        store,
    )
    if precision is not None or session.permit in (None, model.precision):
        return request, Support.yes()
    lower = replace(request, precision=session.permit)
    support = engine.supports(model, lower)
    if support or support.code is not Reason.PRECISION_UNSUPPORTED:
        return lower, Support.yes()
    return request, support


def _obtain(
    plugin: EnginePlugin,
    engine: Engine,
    model: ModelSource,
    request: EngineRequest,
    store: Store,
    seconds: float | None,
) -> tuple[Executable, dict[str, Any]]:
    """Load the artifact from the store, or build, store and load it. Raises BuildError, and BuildTimeout after ``seconds`` of compiling."""
    name = plugin.name
    ingredients = artifact_key(name, engine, model, request)
    key = digest(ingredients)
    start = time.perf_counter()
    with _locked(store, key, seconds, f"{name}, model {model.name}"):
        blob = store.view("artifact", key)
        if blob is not None:
            try:
                executable = _keeping(engine.load(_unpack(name, blob), model, request), store, ingredients)
                _log.debug("%s: artifact of %s taken from %s", model.name, name, store.path("artifact", key))
                return executable, {"from_store": True, "load_s": round(time.perf_counter() - start, 4)}
            except InternalError:
                raise
            except Exception as error:  # its checksum is right, but the engine refuses it
                store.forget("artifact", key, f"is refused by {name}; got {type(error).__name__}: {error}")
        build_request = request
        if request.tune is not None:
            build_request = replace(
                request, tune=replace(request.tune, remeasure_reason=remeasure_reason(store, ingredients))
            )
        if seconds is None or not plugin.compiles_in_build:
            artifact = engine.build(model, build_request)
        else:
            artifact = build_within(plugin.entry, model, build_request, seconds)
        built = time.perf_counter()
        if artifact.cacheable:
            _keep(store, ingredients, artifact)
    executable = _keeping(_load(engine, artifact, model, request, seconds), store, ingredients)
    done = time.perf_counter()
    _log.debug("%s: built by %s in %.3f s, loaded in %.3f s", model.name, name, built - start, done - built)
    return executable, {
        "from_store": False,
        "build_s": round(built - start, 4),
        "load_s": round(done - built, 4),
    }


def artifact_key(name: str, engine: Engine, model: ModelSource, request: EngineRequest) -> dict[str, Any]:
    """Return everything that decides an engine's artifact. Nothing else may change the artifact."""
    lock = {} if request.locked is None else {"locked": digest(dict(request.locked))}
    tune = {} if request.tune is None else {"tune": request.tune.seconds}
    return (
        lock
        | tune
        | {
            "xpuruntime": __version__,
            "engine": name,
            "fingerprint": engine.fingerprint(request),
            "model": model.digest,
            "device": str(request.device),
            "precision": request.precision,
            "threads": request.threads,
            "options": dict(request.options),
            "optimization": request.optimization,
            "kernels": kernels_key(request.kernels),
        }
    )


@contextlib.contextmanager
def _locked(store: Store, key: str, seconds: float | None, who: str) -> Iterator[None]:
    try:
        with store.lock(key, seconds):
            yield
    except BuildTimeout:
        raise
    except (
        TimeoutError
    ) as error:  # another process builds the same artifact for longer than this one may wait
        do = "Allow more time; it is taken from the store when the other process is done."
        raise BuildTimeout(who, "waited longer than compile_timeout_s", got=error, do=do) from error


def _load(
    engine: Engine, artifact: Artifact, model: ModelSource, request: EngineRequest, seconds: float | None
) -> Executable:
    """Load. If loading compiles, apply the time limit or raise BuildError."""
    if seconds is None or artifact.blob:
        return engine.load(artifact, model, request)
    who = f"{artifact.engine}, model {model.name}"
    executable: Executable
    if isinstance(engine, StoppableLoad):
        go, stop = engine.stoppable_load(artifact, model, request)
        with DEADLINES.after(seconds, stop) as deadline:
            try:
                executable = go()
            except BuildError as error:
                if not deadline.over:
                    raise
                do = "Allow more time, or name another engine or device."
                raise BuildTimeout(
                    who, "took longer than compile_timeout_s and was ended", got=f"{seconds} s", do=do
                ) from error
        return executable
    executable = engine.load(artifact, model, request)
    if isinstance(executable, CompilesShapes):
        executable.limit_compiles(seconds)
        return executable
    executable.close()
    do = "Drop compile_timeout_s, or name another engine or device."
    raise BuildError(who, "compiles where it cannot be stopped, so compile_timeout_s cannot be kept", do=do)


def _keeping(executable: Executable, store: Store, ingredients: dict[str, Any]) -> Executable:
    """Return the executable; one that compiles new shapes gets access to the store."""
    if isinstance(executable, CompilesShapes):
        executable.keep_in(KeptShapes(store, ingredients))
    return executable


def _keep(store: Store, ingredients: dict[str, Any], artifact: Artifact) -> None:
    try:
        store.put("artifact", ingredients, _pack(artifact))
    except StoreError as error:  # a full disk must not stop a model that is already built
        _log.warning("%s The model runs; the next start builds it again.", error)
    note_measured(store, ingredients)


def _pack(artifact: Artifact) -> bytes:
    """Return an artifact as one payload: the length of its meta, its meta as JSON, its blob."""
    meta = json.dumps(dict(artifact.meta), sort_keys=True).encode()
    return len(meta).to_bytes(8, "little") + meta + artifact.blob


def _unpack(engine: str, payload: bytes | memoryview) -> Artifact:
    """Return the inverse of ``_pack``, without a copy of the blob. Raise ValueError, RecursionError."""
    end = 8 + int.from_bytes(payload[:8], "little")
    if end > len(payload):
        raise ValueError(
            f"the kept artifact of {engine} is damaged: its meta would end at byte {end} of {len(payload)}."
        )
    return Artifact(engine, payload[end:], True, json.loads(bytes(payload[8:end])))


def _what_and_got(error: XpuError) -> str:
    return error.what if error.got is None else f"{error.what}: {error.got}"
