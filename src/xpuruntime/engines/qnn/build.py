"""Checks if QNN supports a model, and its offline preparation to a context binary in a child process."""

from __future__ import annotations

from collections.abc import Callable

from ...child_calls import call_within
from ...decisions import Reason, Support
from ...errors import BuildError, BuildTimeout
from ...protocols import Artifact, EngineRequest, ModelSource
from ...types import DType
from ..onnxruntime.providers import version as onnxruntime_version
from . import library, options
from .offline import ContextBinary
from .options import QnnSettings
from .probe import Refusal, refused_nodes

__all__ = ["build", "context_nodes", "fingerprint", "prepared", "supports"]

PREPARE_S = 3600.0
"""Longest time of a preparation, in seconds. ``compile_timeout_s`` sets a shorter one."""
_LIMIT = "the time limit of QNN's offline preparation"

_DOMAINS = frozenset({"", "com.microsoft"})
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
_IO_TYPES = frozenset(
    {
        *(DType.BOOL, DType.INT8, DType.INT16, DType.INT32, DType.INT64),
        *(DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64),
        *(DType.FLOAT16, DType.FLOAT32),
    }
)


def supports(model: ModelSource, request: EngineRequest) -> Support:
    """Check format, options, device, precision, shapes, element types and ops. The model is not prepared."""
    if model.format != "onnx":
        return Support.no(Reason.FORMAT_UNSUPPORTED, f"QNN reads ONNX, not {model.format}")
    settings = options.parse(request)
    if isinstance(settings, Support):
        return settings
    checks: tuple[Callable[[], Support], ...] = (
        lambda: library.usable(request.device, settings.emulator),
        lambda: _level(request),
        lambda: _precision(model, request),
        lambda: _shapes(model),
        lambda: _types(model),
        lambda: _ops(model),
    )
    return next((no for check in checks if not (no := check())), Support.yes())


def _level(request: EngineRequest) -> Support:
    if request.optimization == 3:
        return Support.yes()
    text = f"QNN always optimizes fully; level {request.optimization} is not supported"
    return Support.no(
        Reason.OPTION_UNKNOWN,
        text,
        do="Leave optimization_level at 3, or use the engine option htp_graph_finalization_optimization_mode.",
    )


def _precision(model: ModelSource, request: EngineRequest) -> Support:
    if request.precision in (None, model.precision):
        return Support.yes()
    if request.precision is DType.FLOAT16 and model.precision is DType.FLOAT32:
        if library.has_npu():
            return Support.yes()
        text = "the HTP emulator computes float32 models in float32; only the NPU computes them in float16"
        return Support.no(Reason.PRECISION_UNSUPPORTED, text, do="Leave the precision out.")
    return Support.no(
        Reason.PRECISION_UNSUPPORTED,
        f"QNN cannot compute this {model.precision.value} model in {request.precision}",
        do="Quantize the model first, or leave the precision out.",
    )


def _shapes(model: ModelSource) -> Support:
    """Reject dynamic dims of inputs: the provider would leave every node that has one on the CPU."""
    for spec in model.inputs:
        if any(not isinstance(d, int) for d in spec.shape):
            symbols = ", ".join(dict.fromkeys(f"{d}: 1" for d in spec.shape if not isinstance(d, int)))
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"QNN needs static shapes; input {spec.name!r} is {spec}",
                do=f"Fix the sizes in the execution policy: fixed_shapes={{{symbols}}}.",
            )
    return Support.yes()


def _types(model: ModelSource) -> Support:
    for spec in (*model.inputs, *model.outputs):
        if spec.dtype not in _IO_TYPES:
            text = (
                f"QNN does not support {spec.dtype.value} as a model input or output; {spec.name!r} is {spec}"
            )
            return Support.no(Reason.DTYPE_UNSUPPORTED, text)
    return Support.yes()


def _ops(model: ModelSource) -> Support:
    for node in model.nodes:
        if node.domain not in _DOMAINS and (node.domain, node.op) not in model.functions:
            return Support.no(
                Reason.OP_UNSUPPORTED,
                f"node {node.name!r} has op {node.op!r} of domain {node.domain!r}, which QNN does not know",
                do="Export the model without it.",
            )
        if node.op in _CONTROL_FLOW:
            return Support.no(
                Reason.OP_UNSUPPORTED,
                f"QNN takes no node of a model with control flow, and node {node.name!r} is {node.op!r}",
                do="Export the model without control flow.",
            )
    return Support.yes()


def context_nodes(model: ModelSource) -> bool:
    """Return True for a model of context binaries that was prepared before (EPContext nodes)."""
    return any(n.op == "EPContext" for n in model.nodes)


def fingerprint(request: EngineRequest) -> dict[str, str]:
    """Return the versions of both packages, and all options of the provider, also those that this engine sets by default."""
    settings = options.parse(request)
    provider = {} if isinstance(settings, Support) else settings.options
    values = {f"option.{k}": v for k, v in sorted(provider.items()) if k != "backend_path"}
    return {"onnxruntime": onnxruntime_version(), "onnxruntime-qnn": library.version(), **values}


def build(model: ModelSource, request: EngineRequest) -> Artifact:
    """Prepare the model in a child process. The artifact is an ONNX model whose EPContext nodes hold the context binaries.

    Raises BuildError with the vendor's text and the nodes on which it fails, and BuildTimeout.
    """
    who = f"qnn, model {model.name}"
    support = supports(model, request)
    if not support:
        raise BuildError(who, "cannot build", got=support.reason, do=support.do)
    if context_nodes(model):
        return Artifact("qnn", b"", cacheable=False)
    settings = options.parse(request)
    assert isinstance(settings, QnnSettings)
    done = prepared(model, settings, who)
    return Artifact("qnn", done.blob, cacheable=True, meta=done.meta)


def prepared(model: ModelSource, settings: QnnSettings, who: str) -> ContextBinary:
    """Prepare the model in a child process. After a failure, probe its nodes one by one and name those that fail."""
    failure: BuildError
    try:
        done: ContextBinary = call_within(
            "xpuruntime.engines.qnn.offline:prepare", (model, dict(settings.options)), PREPARE_S, who, _LIMIT
        )
        return done
    except BuildTimeout:
        raise
    except BuildError as error:
        failure = error
    refusals = refused_nodes(model, settings, who)
    if not refusals:
        raise failure
    raise BuildError(
        who,
        f"QNN fails on {_named(refusals)}",
        got=f"{failure.what}: {failure.got}",
        do="Replace these ops, quantize the model, or use another engine.",
    ) from failure


def _named(refusals: list[Refusal]) -> str:
    first = "; ".join(f"{r.op} (node {r.node!r}: {r.text})" for r in refusals[:3])
    return first + (f" and {len(refusals) - 3} more" if len(refusals) > 3 else "")
