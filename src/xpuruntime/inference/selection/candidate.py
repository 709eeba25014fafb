"""One candidate: an engine on a device for a model. Can it be had, and if so, loaded, from the store where it lies there."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ... import __version__
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
)
from ...faults import contained
from ...plugins import EnginePlugin
from ...printable import logger
from ...protocols import Artifact, Engine, EngineRequest, Executable, ModelSource
from ...store import Store, digest
from ...targets import DeviceId
from ...types import DType
from ..execution.contexts import DEADLINES
from ..execution.timeouts import build_within
from ..models.modules import as_onnx
from ..models.shape_cache import KeptShapes
from ..self_check import ADVICE, SelfCheck, Verdict, checked_on_opening
from .integers import in_integers
from .vendor_options import met_by_options
from .vendor_policy import vendor_refused

__all__ = ["Loaded", "Wanted", "attempt", "checked", "find"]

_log = logger("xpuruntime.session")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One candidate to try.

    precision: what was demanded: None (the model's own), a float DType, or an integer one, which only quantized models have.
    permit:    a lower precision that is welcome where the engine has it (``fp16=True``), else the model's own is kept.
    caching:   whether the store may be read and written for it.
    kernels:   the KernelPolicy as JSON text; only engines whose kernels can be chosen see it.
    compile_timeout_s: seconds after which its compiler is ended; decides nothing about what is built.
    check:     how its outputs are compared with a reference before it is used; decides nothing about what is built either.
    region_options: options of every engine that may take a region, by engine.
    """

    engine: str
    device: DeviceId
    precision: DType | None = None
    permit: DType | None = None
    threads: int | None = None
    options: tuple[tuple[str, str], ...] = ()
    caching: bool = True
    optimization: int = 3
    kernels: str = ""
    compile_timeout_s: float | None = None
    check: SelfCheck | None = field(default=None, compare=False, repr=False)
    region_options: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()

    @property
    def name(self) -> str:
        """``engine on device``, as decisions and plans call it."""
        return f"{self.engine} on {self.device}"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A candidate that loaded.

    model:     the model that the engine was given (fixed shapes make it another than the user's).
    precision: what it computes in, as the plan says it.
    precision_note: Support.no where ``permit`` could not be used, with the engine's reason.
    facts:     seconds of build and load, whether the artifact came from the store.
    key:       everything that decides what was built. verdict: what comparing its outputs found; None: nobody asked.
    """

    wanted: Wanted
    model: ModelSource
    executable: Executable
    version: str
    precision: DType
    precision_note: Support
    facts: dict[str, Any]
    key: Mapping[str, Any] = field(default_factory=dict)
    verdict: Verdict | None = None


def find(engine: str) -> EnginePlugin | Support:
    """The engine's plugin, or why a known word has none in this release. Raises EngineUnavailable for an unknown name."""
    try:
        return lookup(engine)
    except EngineUnavailable as error:
        if error.decision is None:
            raise
        no = error.decision.rejected[0]
        return Support.no(no.code, no.reason, do=no.do)


def attempt(model: ModelSource, wanted: Wanted, store: Store) -> Loaded | Candidate:
    """Load the candidate, or say why it cannot be had. Raises EngineUnavailable for a name that nobody knows: a typing
    error must not become a fallback.
    """
    try:
        with contained(f"{wanted.name}, model {model.name}"):
            return _attempt(model, wanted, store)
    except InternalError as error:
        facts = {"parts": list(error.parts), "reproduction": error.folder}
        return Candidate(wanted.name, Reason.INTERNAL_ERROR, error.what, error.do, facts=facts)
    except (OutOfMemory, PluginError) as error:
        return Candidate(wanted.name, Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)


def _attempt(model: ModelSource, wanted: Wanted, store: Store) -> Loaded | Candidate:
    plugin = find(wanted.engine)
    if isinstance(plugin, Support):
        return Candidate.rejected(wanted.name, plugin)
    installed = plugin.installed()
    if not installed:
        return Candidate.rejected(wanted.name, installed)
    engine: Engine = plugin.load()
    try:
        source = model if model.format in plugin.formats else as_onnx(model)
    except (
        ModelError,
        IrError,
        EngineUnavailable,
    ) as error:  # what has no ONNX form, or no package that writes it
        why = f"{error.who} {error.what}" + (f": {error.got}" if error.got else "")
        return Candidate(wanted.name, Reason.FORMAT_UNSUPPORTED, why, error.do)
    met: dict[str, tuple[str, str]] = {}
    if not plugin.chooses_kernels:
        given = dict(wanted.options)
        more, met = met_by_options(engine, wanted.device, wanted.kernels, given)
        wanted = replace(wanted, options=tuple(sorted({**more, **given}.items())))
    request, note = _request(engine, source, wanted, wanted.kernels if plugin.chooses_kernels else "")
    support = engine.supports(source, request)
    if support and not plugin.chooses_kernels:
        support = vendor_refused(model, wanted.kernels, plugin.name, wanted.device, met)
    integers = in_integers(source, own_kernels=plugin.chooses_kernels)
    if support and wanted.precision is not None and wanted.precision.is_integer:
        support = integers
    if not support:
        return Candidate.rejected(wanted.name, support)
    try:
        executable, facts = _obtain(
            plugin,
            engine,
            source,
            request,
            store if wanted.caching else Store(mode="off"),
            wanted.compile_timeout_s,
        )
    except BuildTimeout as error:
        return Candidate(wanted.name, Reason.TIMED_OUT, f"{error.what}: {error.got}", error.do)
    except InternalError:
        raise
    except BuildError as error:
        return Candidate(wanted.name, Reason.BUILD_FAILED, f"{error.what}: {error.got}", error.do)
    own = source.quantized if integers else None
    precision = own or request.precision or source.precision
    if met:
        facts["kernels_by_option"] = {family: list(kernel) for family, kernel in met.items()}
    key = artifact_key(plugin.name, engine, source, request) if wanted.check is not None else {}
    loaded = Loaded(wanted, source, executable, engine.version(), precision, note, facts, key)
    return checked(loaded, store) if plugin.name == "native" else loaded


def checked(loaded: Loaded, store: Store) -> Loaded | Candidate:
    """The candidate with the verdict on its outputs; closed and rejected where they are wrong."""
    wanted, check = loaded.wanted, loaded.wanted.check
    if check is None or loaded.verdict is not None:
        return loaded
    kept = store if wanted.caching else Store(mode="off")
    verdict = checked_on_opening(
        loaded.model, loaded.executable, wanted.engine, loaded.precision, loaded.key, check, kept
    )
    if verdict.wrong:
        loaded.executable.close()
        return Candidate(wanted.name, Reason.WRONG_RESULT, verdict.text, ADVICE)
    return replace(loaded, verdict=verdict)


def _request(
    engine: Engine, model: ModelSource, wanted: Wanted, kernels: str
) -> tuple[EngineRequest, Support]:
    """The request, with the permitted precision where the engine has it."""
    given = (
        wanted.precision is None or wanted.precision.is_integer
    )  # integers are the model's own, or not had
    own = None if given or wanted.precision is model.precision else wanted.precision
    request = EngineRequest(
        wanted.device, own, wanted.threads, dict(wanted.options), wanted.optimization, kernels
    )
    if own is not None or wanted.permit in (None, model.precision):
        return request, Support.yes()
    lower = replace(request, precision=wanted.permit)
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
    """Load the artifact from the store, or build, keep and load it. Raises BuildError; BuildTimeout after ``seconds`` of compiling."""
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
            except Exception as error:  # whole by its checksum, yet the engine refuses it
                store.forget("artifact", key, f"is refused by {name}; got {type(error).__name__}: {error}")
        if seconds is None or not plugin.compiles_in_build:
            artifact = engine.build(model, request)
        else:
            artifact = build_within(plugin.entry, model, request, seconds)
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
    """Everything that decides what an engine builds. Whatever is not in here must not change an artifact."""
    return {
        "xpuruntime": __version__,
        "engine": name,
        "fingerprint": engine.fingerprint(request),
        "model": model.digest,
        "device": str(request.device),
        "precision": request.precision,
        "threads": request.threads,
        "options": dict(request.options),
        "optimization": request.optimization,
        "kernels": request.kernels,
    }


@contextlib.contextmanager
def _locked(store: Store, key: str, seconds: float | None, who: str) -> Iterator[None]:
    try:
        with store.lock(key, seconds):
            yield
    except BuildTimeout:
        raise
    except TimeoutError as error:  # another process builds the same for longer than this one may wait
        do = "Allow more time; it is taken from the store when the other process is done."
        raise BuildTimeout(who, "waited longer than compile_timeout_s", got=error, do=do) from error


def _load(
    engine: Engine, artifact: Artifact, model: ModelSource, request: EngineRequest, seconds: float | None
) -> Executable:
    """Load; where loading is what compiles, under the limit, or not at all."""
    if seconds is None or artifact.blob:
        return engine.load(artifact, model, request)
    who = f"{artifact.engine}, model {model.name}"
    executable: Executable
    if hasattr(engine, "stoppable_load"):
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
    if hasattr(executable, "limit_compiles"):  # it compiles when it meets a shape
        executable.limit_compiles(seconds)
        return executable
    executable.close()
    do = "Drop compile_timeout_s, or name another engine or device."
    raise BuildError(who, "compiles where it cannot be stopped, so compile_timeout_s cannot be kept", do=do)


def _keeping(executable: Executable, store: Store, ingredients: dict[str, Any]) -> Executable:
    """The executable; one that compiles when it meets a shape finds its place in the store."""
    if hasattr(executable, "keep_in"):
        executable.keep_in(KeptShapes(store, ingredients))
    return executable


def _keep(store: Store, ingredients: dict[str, Any], artifact: Artifact) -> None:
    try:
        store.put("artifact", ingredients, _pack(artifact))
    except StoreError as error:  # a full disk must not stop a model that is already built
        _log.warning("%s The model runs; the next start builds it again.", error)


def _pack(artifact: Artifact) -> bytes:
    """An artifact as one payload: length of its meta, its meta as JSON, its blob."""
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
