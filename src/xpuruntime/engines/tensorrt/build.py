"""Checks if TensorRT supports a model, and the build of engines with profiles, precision flags and a timing cache."""

from __future__ import annotations

from collections.abc import Callable

from ...decisions import Reason, Support
from ...errors import BuildError, StoreError
from ...printable import logger
from ...protocols import Artifact, EngineRequest, ModelSource
from ...storage.store import Store, digest
from ...types import DType
from ..definitions import follows_definitions
from . import devices, options
from .api import Api, BuildRequest, api, short
from .options import TensorRtSettings

__all__ = ["build", "build_request", "fingerprint", "supports"]

_log = logger("xpuruntime.session")
_IO_TYPES = frozenset(
    {
        *(DType.BOOL, DType.INT8, DType.UINT8, DType.INT32, DType.INT64),
        *(DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32),
    }
)


def supports(model: ModelSource, request: EngineRequest) -> Support:
    """Check format, device, options, precision, profiles and element types. Nothing is built; the parser checks the ops in ``build``."""
    if model.format not in ("onnx", "tensorrt-plan"):
        return Support.no(
            Reason.FORMAT_UNSUPPORTED, f"TensorRT reads ONNX and its own plans, not {model.format}"
        )
    if not (device := devices.usable(request.device)):
        return device
    vendor = api()
    settings = options.parse(request, vendor)
    if isinstance(settings, Support):
        return settings
    checks: tuple[Callable[[], Support], ...] = (
        lambda: _precision(model, request, vendor),
        lambda: _profiles(model, settings),
        lambda: _types(model),
        lambda: follows_definitions(model, "TensorRT"),
    )
    return next((no for check in checks if not (no := check())), Support.yes())


def _precision(model: ModelSource, request: EngineRequest, vendor: Api) -> Support:
    if request.precision in (None, model.precision):
        return Support.yes()
    if model.format != "onnx":
        text = "the precision of a TensorRT plan was decided when it was built"
        return Support.no(
            Reason.PRECISION_UNSUPPORTED, text, do="Leave the precision out, or give the ONNX model."
        )
    if model.precision is DType.FLOAT32 and request.precision in vendor.precisions():
        return Support.yes()
    own = model.precision.value
    if vendor.precisions():
        others = ", ".join(p for p in vendor.precisions() if p.is_float)
        text = f"TensorRT {vendor.version} computes a float32 model in float32, {others}; this one is {own}, not {request.precision}"
    else:
        text = f"TensorRT {vendor.version} computes in the types of the model, {own}, and not in {request.precision}"
    return Support.no(
        Reason.PRECISION_UNSUPPORTED, text, do=f"Convert the model to {request.precision} first."
    )


def _profiles(model: ModelSource, settings: TensorRtSettings) -> Support:
    if model.format != "onnx":
        return Support.yes()
    profiles = options.profiles_of(model, settings)
    return profiles if isinstance(profiles, Support) else Support.yes()


def _types(model: ModelSource) -> Support:
    for spec in (*model.inputs, *model.outputs):
        if spec.dtype not in _IO_TYPES:
            text = f"TensorRT does not support {spec.dtype.value} as a model input or output; {spec.name!r} is {spec}"
            return Support.no(Reason.DTYPE_UNSUPPORTED, text, do="Use engine='onnxruntime'.")
    return Support.yes()


def build_request(model: ModelSource, request: EngineRequest, vendor: Api) -> BuildRequest:
    """Return the settings of the build. The default precision is the model's own: TF32, which TensorRT enables by default, is an option."""
    settings = options.parse(request, vendor)
    assert isinstance(settings, TensorRtSettings)
    profiles = options.profiles_of(model, settings)
    assert not isinstance(profiles, Support)
    lower = request.precision if request.precision is not model.precision else None
    typed = lower is None and vendor.has("NetworkDefinitionCreationFlag.STRONGLY_TYPED")
    flags: list[DType] = [] if lower is None else [lower]
    if not typed:  # a network without STRONGLY_TYPED computes in INT8 and 16 bits only if flags allow it
        own = (model.precision, *((DType.INT8,) if model.quantized is DType.INT8 else ()))
        flags += [d for d in own if d in vendor.precisions() and d not in flags]
    return BuildRequest(
        flags=flags,
        typed=typed,
        tf32=settings.tf32,
        profiles=profiles,
        workspace=settings.workspace,
        sources=settings.sources,
        settings=settings.settings,
        builder_flags=settings.flags,
        timing_cache=_timing_cache(request) if settings.timing_cache else None,
    )


def fingerprint(request: EngineRequest) -> dict[str, str]:
    """Return version, driver, device, and the digests of plug-in libraries. An engine is valid only for these."""
    settings = options.parse(request, api())
    digests = options.plugin_digests(settings) if isinstance(settings, TensorRtSettings) else {}
    return {**devices.device_facts(request.device), **digests}


def build(model: ModelSource, request: EngineRequest) -> Artifact:
    """Build and serialize an engine. Raises BuildError with the vendor's text."""
    who = f"tensorrt, model {model.name}"
    support = supports(model, request)
    if not support:
        raise BuildError(who, "cannot build", got=support.reason, do=support.do)
    if model.format == "tensorrt-plan":
        return Artifact("tensorrt", b"", cacheable=False)
    vendor = api()
    settings = options.parse(request, vendor)
    assert isinstance(settings, TensorRtSettings)
    path = str(model.path) if model.path is not None else ""
    data = model.path.read_bytes() if model.path is not None else model.data or b""
    try:
        engine, cache = vendor.build(data, path, settings.plugins, build_request(model, request, vendor))
    except Exception as error:  # RuntimeError of ``api``, or an error of the vendor's package
        raise BuildError(
            who,
            f"TensorRT {vendor.version} cannot build this model",
            got=short(str(error)),
            do="Choose another engine, or change the part of the model that the vendor's text names.",
        ) from error
    if settings.timing_cache:
        _keep_timing_cache(request, cache)
    return Artifact("tensorrt", engine, cacheable=True)


def _store(request: EngineRequest) -> Store:
    return Store() if request.store is None else request.store


def _cache_key(request: EngineRequest) -> dict[str, str]:
    return {"kind": "TensorRT timing cache", **devices.device_facts(request.device)}


def _timing_cache(request: EngineRequest) -> bytes | None:
    """Return the measured times of earlier builds on this device, from the request's store."""
    return _store(request).get("timing", digest(_cache_key(request)))


def _keep_timing_cache(request: EngineRequest, cache: bytes) -> None:
    try:
        _store(request).put("timing", _cache_key(request), cache)
    except StoreError as error:  # the engine is built; only the next build takes longer
        _log.warning("%s The next TensorRT build measures again.", error)
