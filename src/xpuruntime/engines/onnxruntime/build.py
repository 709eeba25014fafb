"""Checks if ONNX Runtime supports a model. Nothing is compiled here: ONNX Runtime compiles when it loads."""

from __future__ import annotations

import os

from ...decisions import Reason, Support
from ...errors import BuildError
from ...protocols import Artifact, EngineRequest, ModelSource
from ...types import DType
from . import options, providers
from .providers import CPU, version

__all__ = ["CARRIERS", "build", "cpu_threads", "fingerprint", "supports"]

# Domains whose ops the official ONNX Runtime builds contain.
_DOMAINS = frozenset(
    {
        "",
        "ai.onnx.ml",
        "ai.onnx.training",
        "ai.onnx.preview.training",
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.microsoft.experimental",
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
    }
)

# Types that ONNX Runtime has and NumPy lacks -> the integer type of the same width in which their bits are passed.
CARRIERS: dict[DType, str] = {
    DType.BFLOAT16: "uint16",
    DType.FLOAT8_E4M3FN: "uint8",
    DType.FLOAT8_E4M3FNUZ: "uint8",
    DType.FLOAT8_E5M2: "uint8",
    DType.FLOAT8_E5M2FNUZ: "uint8",
}


def cpu_threads(request: EngineRequest) -> int:
    """Return the requested threads, otherwise every core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return request.threads or cores or 1


def supports(model: ModelSource, request: EngineRequest) -> Support:
    """Check format, precision, options and provider, element types of inputs and outputs, op domains and opset. Builds nothing."""
    if model.format != "onnx":
        return Support.no(
            Reason.FORMAT_UNSUPPORTED,
            f"ONNX Runtime reads ONNX, not {model.format}",
            do="Use engine='openvino'.",
        )
    settings = options.parse(request)
    if isinstance(settings, Support):
        return settings
    if request.precision not in (None, model.precision):
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"ONNX Runtime computes in the model's own precision, {model.precision.value}; it cannot compute in {request.precision} instead",
            do=f"Convert the model to {request.precision} first, or choose an engine with a precision option.",
        )
    symbols = {str(d) for s in model.inputs for d in s.shape if not isinstance(d, int)}
    if unknown := sorted(settings.free_dims.keys() - symbols):
        text = f"the model has no symbolic dim {', '.join(map(repr, unknown))} to override; it has {', '.join(sorted(symbols)) or 'none'}"
        return Support.no(Reason.OPTION_UNKNOWN, text, do="Correct the option 'free_dimension_overrides'.")
    for spec in (*model.inputs, *model.outputs):
        if spec.dtype not in CARRIERS and (spec.dtype.numpy.kind == "V" or spec.dtype.is_complex):
            return Support.no(
                Reason.DTYPE_UNSUPPORTED,
                f"ONNX Runtime does not support {spec.dtype.value} arrays; {spec.name!r} is {spec}",
            )
    for node in model.nodes:
        if node.op == "EPContext" and settings.requested_provider == CPU:
            return Support.no(
                Reason.OP_UNSUPPORTED,
                f"node {node.name!r} holds a context binary of an execution provider, which ONNX Runtime's CPU provider cannot run",
                do="Use engine='qnn' for a Qualcomm binary, or name the provider in the engine option 'providers'.",
            )
        own = settings.libraries or (node.domain, node.op) in model.functions
        if node.domain not in _DOMAINS and not own:
            return Support.no(
                Reason.OP_UNSUPPORTED,
                f"node {node.name!r} has op {node.op!r} of domain {node.domain!r}, which no ONNX Runtime build has",
                do="Export the model without it, give the model a local function that defines it, or name a library in the engine option 'custom_op_libraries'.",
            )
    refusal = providers.reads_opsets(tuple((d, v) for d, v in sorted(model.opsets.items()) if d in _DOMAINS))
    if refusal:
        return Support.no(
            Reason.FORMAT_UNSUPPORTED,
            f"ONNX Runtime {version()} rejects the model's opset: {refusal}",
            do=_OLDER,
        )
    return Support.yes()


_OLDER = "Export the model with an older opset, or run: pip install --upgrade onnxruntime"


def fingerprint(request: EngineRequest) -> dict[str, str]:
    """Return version, provider and threads. No compiled code is stored, so this only identifies measurements."""
    settings = options.parse(request)
    provider = settings.requested_provider if isinstance(settings, options.Settings) else "none"
    return {"onnxruntime": version(), "provider": provider, "threads": str(cpu_threads(request))}


def build(model: ModelSource, request: EngineRequest) -> Artifact:
    """Return an empty artifact, since ONNX Runtime compiles when it loads. Raises BuildError if the request is not supported."""
    support = supports(model, request)
    if not support:
        raise BuildError(
            f"onnxruntime, model {model.name}", "cannot build", got=support.reason, do=support.do
        )
    return Artifact("onnxruntime", b"", cacheable=False)
