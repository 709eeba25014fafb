"""Compilation of a model to OpenVINO's exported blob, with a fixed precision and checked options."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from typing import Any

from ...decisions import Reason, Support
from ...errors import BuildError
from ...plugins.vendor_imports import vendor
from ...protocols import Artifact, EngineRequest, ModelSource
from ...types import DType
from ..definitions import follows_definitions
from . import devices
from .devices import (
    DEVICE_OPTION,
    META_DEVICES,
    capabilities,
    core,
    requested_name,
    short,
    usable_meta,
    version,
)
from .evidence import original_names

__all__ = ["CARRIERS", "build", "compile_model", "computes_in", "fingerprint", "properties", "supports"]

# Precision -> (INFERENCE_PRECISION_HINT, the required entry of OPTIMIZATION_CAPABILITIES).
_HINTS: dict[DType, tuple[str, str]] = {
    DType.FLOAT32: ("f32", "FP32"),
    DType.FLOAT16: ("f16", "FP16"),
    DType.BFLOAT16: ("bf16", "BF16"),
}

# Options that this engine sets from the request.
_SET_BY_ENGINE = {
    "INFERENCE_PRECISION_HINT": "Use precision= (or fp16=True).",
    "INFERENCE_NUM_THREADS": "Use threads=.",
    "PERF_COUNT": "Use receipt(), which profiles a twin.",
    "DEVICE_ID": "Use device='gpu:1'.",
    "WEIGHTS_PATH": "The weights come with the model.",
}

# From this version, OpenVINO removes pairs of QuantizeLinear and DequantizeLinear with 16-bit codes; 2026.0 and older saturate.
_REMOVES_WIDE_PAIRS = (2026, 1)

_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "org.openvinotoolkit", "org.pytorch.aten"})

# Types that NumPy lacks -> the integer type of the same width in which their bits are passed.
CARRIERS: dict[DType, str] = {DType.BFLOAT16: "uint16"}

_IO_TYPES = frozenset(
    {
        *(DType.BOOL, DType.INT8, DType.INT16, DType.INT32, DType.INT64),
        *(DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64),
        *(DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32),
    }
)


def supports(model: ModelSource, request: EngineRequest) -> Support:
    """Check device, precision, options, element types of inputs and outputs, and op domains. The model is not compiled."""
    if model.format not in ("onnx", "openvino-ir"):
        return Support.no(
            Reason.FORMAT_UNSUPPORTED, f"OpenVINO reads ONNX and OpenVINO IR, not {model.format}"
        )
    # The device comes first, since only a usable device reports its precisions and options.
    checks: tuple[Callable[[], Support], ...] = (
        lambda: devices.usable(request.device),
        lambda: _meta_device(request),
        lambda: _precision(model, request),
        lambda: _options(request),
        lambda: _types(model),
        lambda: _pairs(model),
        lambda: _ops(model),
        lambda: follows_definitions(model, "OpenVINO"),
    )
    return next((no for check in checks if not (no := check())), Support.yes())


def _meta_device(request: EngineRequest) -> Support:
    name = request.options.get(DEVICE_OPTION)
    return Support.yes() if name is None else usable_meta(request.device, name)


def _own_options(request: EngineRequest) -> dict[str, str]:
    """Return the options for OpenVINO; the name of a meta device is not one."""
    return {k: v for k, v in request.options.items() if k != DEVICE_OPTION}


def _precision(model: ModelSource, request: EngineRequest) -> Support:
    name = requested_name(request)
    precision = request.precision or model.precision
    if precision is DType.FLOAT64:
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            "OpenVINO silently computes float64 in float32",
            do="Use engine='onnxruntime', or convert the model to float32.",
        )
    if request.precision is None:
        return Support.yes()
    if precision not in _HINTS:
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"OpenVINO has no precision hint for {precision.value}; it has {', '.join(_HINTS)}",
            do="Quantize the model first." if precision.is_integer else "Choose one of these precisions.",
        )
    has = capabilities(name)
    if precision is not DType.FLOAT32 and _HINTS[precision][1] not in has:
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"OpenVINO's {name} does not compute in {precision.value}: its OPTIMIZATION_CAPABILITIES are {', '.join(has)}",
            do="Request a precision of the device's capabilities, or leave precision out.",
        )
    return Support.yes()


def _options(request: EngineRequest) -> Support:
    name = requested_name(request)
    if request.optimization != 3:
        return Support.no(
            Reason.OPTION_UNKNOWN,
            f"OpenVINO always optimizes fully; level {request.optimization} is not supported",
            do="Leave optimization_level at 3, or use engine='onnxruntime'.",
        )
    names = devices.writable_properties(name)
    own_options = _own_options(request)
    for key in own_options:
        if key in _SET_BY_ENGINE:
            return Support.no(
                Reason.OPTION_UNKNOWN, f"OpenVINO option {key!r} is set by xpuruntime", do=_SET_BY_ENGINE[key]
            )
        if key not in names:
            near = difflib.get_close_matches(key.upper(), names, n=1)
            return Support.no(
                Reason.OPTION_UNKNOWN,
                f"OpenVINO's {name} has no option {key!r}",
                do=(f"Did you mean {near[0]!r}? " if near else "")
                + f"Options are {', '.join(sorted(names - set(_SET_BY_ENGINE)))}.",
            )
    refusal = devices.refuses_options(name, own_options) if own_options else ""
    if refusal:
        return Support.no(
            Reason.OPTION_UNKNOWN,
            f"OpenVINO's {name} refuses the options: {refusal}",
            do="Correct the values.",
        )
    return Support.yes()


def _pairs(model: ModelSource) -> Support:
    """Reject QuantizeLinear to 16 bits where OpenVINO removes it, so that values beyond its range do not saturate."""
    release = re.match(r"(\d+)\.(\d+)", version())  # None for a build of one's own
    saturates = release is not None and (int(release[1]), int(release[2])) < _REMOVES_WIDE_PAIRS
    if saturates or not model.wide_pairs:
        return Support.yes()
    count = f"{model.wide_pairs} QuantizeLinear node{'' if model.wide_pairs == 1 else 's'} with 16-bit codes"
    return Support.no(
        Reason.DTYPE_UNSUPPORTED,
        f"OpenVINO {version()} removes QuantizeLinear to 16 bits, so values beyond its range do not saturate; the model has {count}",
        do="Quantize with uint8 activations, use engine='onnxruntime', or install openvino<2026.1, which saturates.",
    )


def _types(model: ModelSource) -> Support:
    for spec in (*model.inputs, *model.outputs):
        if spec.dtype not in _IO_TYPES:
            why = (
                "it computes float64 in float32"
                if spec.dtype is DType.FLOAT64
                else "its Python package has no array for it"
            )
            return Support.no(
                Reason.DTYPE_UNSUPPORTED,
                f"OpenVINO does not support {spec.dtype.value} as a model input or output ({why}); {spec.name!r} is {spec}",
                do="Use engine='onnxruntime'.",
            )
    return Support.yes()


def _ops(model: ModelSource) -> Support:
    if model.format != "onnx":
        return Support.yes()
    for node in model.nodes:
        if node.domain not in _DOMAINS and (node.domain, node.op) not in model.functions:
            return Support.no(
                Reason.OP_UNSUPPORTED,
                f"node {node.name!r} has op {node.op!r} of domain {node.domain!r}, for which OpenVINO has no conversion rule",
                do="Export the model without it.",
            )
    return Support.yes()


def computes_in(model: ModelSource, request: EngineRequest) -> DType:
    """Return the precision to pin: the requested one; otherwise the model's own, or float32 if the device does not support it."""
    precision = request.precision or model.precision
    if precision in _HINTS and _HINTS[precision][1] in capabilities(requested_name(request)):
        return precision
    return DType.FLOAT32


def properties(model: ModelSource, request: EngineRequest) -> dict[str, Any]:
    """Return all options for OpenVINO. Optimizations that would reduce the model's precision are disabled."""
    name = requested_name(request)
    writable = devices.writable_properties(name)
    precision = computes_in(model, request)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    pinned: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": _HINTS[precision][0],
    }
    if "CPU" in devices.members(name):
        pinned["INFERENCE_NUM_THREADS"] = str(request.threads or cores or 1)
    if request.precision is None and "DYNAMIC_QUANTIZATION_GROUP_SIZE" in writable and name == "CPU":
        pinned |= {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "KV_CACHE_PRECISION": _HINTS[precision][0]}
    if name.partition(":")[0] == "HETERO":  # it refuses the hint that AUTO and devices have
        pinned.pop("PERFORMANCE_HINT") if "PERFORMANCE_HINT" not in writable else None
    return {**pinned, **_own_options(request)}


def fingerprint(request: EngineRequest) -> dict[str, str]:
    """Return version, device, its capabilities, threads and options. A blob is valid only for these."""
    facts = devices.device_facts(requested_name(request))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    options = {f"option.{k}": str(v) for k, v in sorted(request.options.items())}
    return {"openvino": core_version(), **facts, "threads": str(request.threads or cores or 1), **options}


def core_version() -> str:
    """Return OpenVINO's full build string, since two builds of one version may write different blobs."""
    openvino = vendor("openvino")

    return str(openvino.get_version())


def compile_model(model: ModelSource, request: EngineRequest, **options: str) -> Any:
    """Return the vendor's compiled model. Raises BuildError with the vendor's text."""
    try:
        network = core().read_model(_readable(model))
        return core().compile_model(
            network, requested_name(request), {**properties(model, request), **options}
        )
    except Exception as error:  # RuntimeError, or an error of converting arguments
        raise BuildError(
            f"openvino, model {model.name}",
            f"OpenVINO {version()} cannot build this model",
            got=short(str(error)),
            do="Choose another engine, or change the part of the model that the vendor's text names.",
        ) from error


def _readable(model: ModelSource) -> str | bytes:
    """Return the original file or bytes. Local functions are inlined, since OpenVINO does not read them."""
    if not model.functions:
        return str(model.path) if model.path is not None else model.data or b""
    import onnx
    import onnx.inliner

    proto = (
        onnx.load(str(model.path))
        if model.path is not None
        else onnx.ModelProto.FromString(model.data or b"")
    )
    inlined: bytes = onnx.inliner.inline_local_functions(proto).SerializeToString()
    return inlined


def build(model: ModelSource, request: EngineRequest) -> Artifact:
    """Compile and export. AUTO, MULTI and BATCH cannot export, so their artifact is empty and ``load`` compiles.

    The blob lacks some source names of fused nodes. They are stored with it, in ``meta["original_names"]``.
    """
    support = supports(model, request)
    if not support:
        raise BuildError(f"openvino, model {model.name}", "cannot build", got=support.reason, do=support.do)
    name = requested_name(request)
    exports = name.partition(":")[0] not in META_DEVICES or name.startswith("HETERO:")
    if not exports or "EXPORT_IMPORT" not in capabilities(name):
        return Artifact("openvino", b"", cacheable=False)
    compiled = compile_model(model, request)
    blob = exported(compiled)
    meta = {"original_names": original_names(compiled)}
    return Artifact("openvino", blob, cacheable=True, meta=meta)


def exported(compiled: Any) -> bytes:
    """Return ``export_model`` as bytes; depending on the version it returns bytes or a stream."""
    blob = compiled.export_model()
    return bytes(blob.getvalue() if hasattr(blob, "getvalue") else blob)
