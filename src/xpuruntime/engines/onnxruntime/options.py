"""Vendor options under ONNX Runtime's names: the known options, the object that each is set on, and the allowed values.

ONNX Runtime silently accepts unknown session config entries, so the known ones are listed here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...decisions import Reason, Support
from ...errors import BuildError
from ...protocols import EngineRequest
from . import providers
from .providers import CPU, PROVIDER_DEVICES, ort, short

__all__ = ["CUDA", "GRAPH", "Settings", "parse", "session_options"]

_BOOLS = {"1": True, "true": True, "0": False, "false": False}
_LEVELS = (
    "ORT_DISABLE_ALL",
    "ORT_ENABLE_BASIC",
    "ORT_ENABLE_EXTENDED",
    "ORT_ENABLE_LAYOUT",
    "ORT_ENABLE_ALL",
)

_BY_LEVEL = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")

# Attributes of SessionOptions -> the allowed texts (None: a non-negative integer).
_ATTRIBUTES: dict[str, tuple[str, ...] | None] = {
    "graph_optimization_level": _LEVELS,
    "execution_mode": ("ORT_SEQUENTIAL", "ORT_PARALLEL"),
    "inter_op_num_threads": None,
    "enable_cpu_mem_arena": tuple(_BOOLS),
    "enable_mem_pattern": tuple(_BOOLS),
    "enable_mem_reuse": tuple(_BOOLS),
    "use_deterministic_compute": tuple(_BOOLS),
    "log_severity_level": ("0", "1", "2", "3", "4"),
}

# Options of this engine: calls of SessionOptions, and the stream of a session on CUDA.
_OWN = ("providers", "free_dimension_overrides", "custom_op_libraries", "stream")
_STREAMS = ("default", "own")
CUDA = "CUDAExecutionProvider"
GRAPH = "enable_cuda_graph"

# Session config entries (onnxruntime_session_options_config_keys.h), without those that this engine sets itself.
_CONFIG_KEYS: frozenset[str] = frozenset(
    """
    ep.context_embed_mode ep.context_enable ep.context_file_path ep.context_model_external_initializers_file_name
    mlas.disable_kleidiai mlas.use_lut_gemm optimization.disable_specified_optimizers
    optimization.enable_cast_chain_elimination optimization.enable_gelu_approximation
    session.allow_released_opsets_only session.disable_aot_function_inlining session.disable_cpu_ep_fallback
    session.disable_double_qdq_remover session.disable_model_compile session.disable_prepacking
    session.disable_qdq_constant_folding session.disable_quant_qdq session.dynamic_block_base
    session.enable_dq_matmulnbits_fusion session.enable_quant_qdq_cleanup session.force_spinning_stop
    session.inter_op.allow_spinning session.intra_op.allow_spinning session.intra_op_thread_affinities
    session.max_shape_override session.qdq_matmulnbits_accuracy_level session.qdqisint8allowed
    session.set_denormal_as_zero session.strict_shape_type_inference session.use_device_allocator_for_initializers
    session.use_env_allocators session.x64quantprecision
    """.split()  # noqa: SIM905 - a table of words reads better so
)

_SET_BY_ENGINE = {
    "intra_op_num_threads": "Use threads=.",
    "session.intra_op_num_threads": "Use threads=.",
    "user_compute_stream": "Use stream=default or stream=own; runs are ordered with the stream of their tensors.",
    "enable_profiling": "Use receipt(), which profiles a twin of the session.",
    "session.enable_profiling": "Use receipt(), which profiles a twin of the session.",
}

# Options that make a provider compute in the model's own precision.
_PINNED: dict[str, dict[str, str]] = {CUDA: {"use_tf32": "0"}}


@dataclass(frozen=True, slots=True)
class Settings:
    """A request as ONNX Runtime's settings.

    providers:  providers in order, with their options. The CPU provider is last, unless an option forbids it.
    attributes: attributes of SessionOptions. config: session config entries.
    free_dims:  sizes of symbolic dims by name. libraries: paths of custom-op libraries.
    own_stream: True if runs on CUDA have a stream of their own, as CUDA graphs need; they may overlap with work on the default stream.
    """

    providers: tuple[tuple[str, dict[str, str]], ...]
    attributes: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    free_dims: Mapping[str, int] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    own_stream: bool = False

    @property
    def requested_provider(self) -> str:
        """Return the requested provider."""
        return self.providers[0][0]


def parse(request: EngineRequest) -> Settings | Support:
    """Return the request's settings, or the reason why it is not supported: no provider for the device, or an unknown option."""
    provider_names = _providers(request)
    if isinstance(provider_names, Support):
        return provider_names
    attributes: dict[str, str] = {"graph_optimization_level": _BY_LEVEL[request.optimization]}
    config: dict[str, str] = {}
    provider_options: dict[str, str] = {}
    free_dims = _free_dims(request.options.get("free_dimension_overrides", ""))
    libraries = tuple(p for p in request.options.get("custom_op_libraries", "").split(":") if p)
    if isinstance(free_dims, Support):
        return free_dims
    own_stream = _own_stream(request.options, provider_names[0])
    if isinstance(own_stream, Support):
        return own_stream
    for path in libraries:
        if not Path(path).is_file():
            text = f"the custom-op library {path!r} does not exist"
            return Support.no(Reason.OPTION_UNKNOWN, text, do="Give paths, separated by ':'.")
    for key, value in request.options.items():
        if key in _OWN:
            continue
        if key in _ATTRIBUTES:
            if not _fits(_ATTRIBUTES[key], value):
                allowed = _ATTRIBUTES[key]
                return Support.no(
                    Reason.OPTION_UNKNOWN,
                    f"ONNX Runtime option {key!r} cannot be {value!r}",
                    do=f"Use {'one of ' + ', '.join(allowed) if allowed else 'a non-negative integer'}.",
                )
            attributes[key] = value
        elif key in _CONFIG_KEYS:
            config[key] = value
        elif provider_names[0] != CPU and key not in _SET_BY_ENGINE:
            # A provider's option. ONNX Runtime checks it when the session is created, and an error becomes a BuildError.
            provider_options[key] = value
        else:
            return _unknown(key)
    device = {"device_id": str(request.device.index)} if request.device.index else {}
    providers_with_options = [
        (p, {**_PINNED.get(p, {}), **device, **provider_options} if i == 0 else {})
        for i, p in enumerate(provider_names)
        if p != CPU
    ]
    # ONNX Runtime raises an error for a session that both lists and forbids the CPU provider.
    without_cpu = providers_with_options and config.get("session.disable_cpu_ep_fallback") == "1"
    return Settings(
        (*providers_with_options,) if without_cpu else (*providers_with_options, (CPU, {})),
        attributes,
        config,
        free_dims,
        libraries,
        own_stream,
    )


def _own_stream(given: Mapping[str, str], provider: str) -> bool | Support:
    """Return whether the session has a stream of its own."""
    stream, graph = given.get("stream"), given.get(GRAPH) == "1"
    if stream is None:
        return provider == CUDA and graph  # graphs cannot capture the default stream
    if stream not in _STREAMS:
        text = f"ONNX Runtime option 'stream' cannot be {stream!r}"
        return Support.no(Reason.OPTION_UNKNOWN, text, do=f"Use one of {', '.join(_STREAMS)}.")
    if provider != CUDA:
        text = f"ONNX Runtime option 'stream' is for sessions of {CUDA}, and this one has {provider}"
        return Support.no(Reason.OPTION_UNKNOWN, text, do="Drop it, or open the session on device='cuda'.")
    if stream == "default" and graph:
        text = f"ONNX Runtime option 'stream' cannot be 'default' with {GRAPH}=1: CUDA graphs cannot capture the default stream"
        return Support.no(Reason.OPTION_UNKNOWN, text, do=f"Use stream=own, or drop {GRAPH}.")
    return stream == "own"


def _free_dims(text: str) -> dict[str, int] | Support:
    """Parse ``batch=1,seq=128``."""
    sizes = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, _, size = word.partition("=")
        if not (name and size.isdecimal() and int(size) < 2**31):
            return Support.no(
                Reason.OPTION_UNKNOWN,
                f"ONNX Runtime option 'free_dimension_overrides' cannot have {word!r}",
                do="Write SYMBOL=SIZE, separated by commas: batch=1,seq=128.",
            )
        sizes[name] = int(size)
    return sizes


def _providers(request: EngineRequest) -> tuple[str, ...] | Support:
    device, listed = request.device, providers.available()
    requested = tuple(p.strip() for p in request.options.get("providers", "").split(",") if p.strip())
    for p in requested:
        kind = PROVIDER_DEVICES.get(p, "auto")
        if p not in listed:
            return Support.no(
                Reason.OPTION_UNKNOWN,
                f"the installed ONNX Runtime has no provider {p!r}; it has {', '.join(listed)}",
                do=_near(p, listed) + "Install the onnxruntime package that is built with it.",
            )
        if kind not in ("auto", "cpu", device.kind) and device.kind not in ("auto", "gpu"):
            return Support.no(
                Reason.DEVICE_MISMATCH, f"{p} drives {kind}, not {device}", do=f"Use device={kind!r}."
            )
    candidates = requested or providers.for_device(device)
    if not candidates:
        return Support.no(
            Reason.NO_DEVICE,
            f"the installed ONNX Runtime has no provider for device {device}; it has {', '.join(listed)}",
            do="Install the onnxruntime package that is built for the device (for cuda: onnxruntime-gpu), or choose device='cpu'.",
        )
    refused = None
    for p in candidates:
        support = providers.usable(p, request.device.index)
        if support:
            return (p, *(q for q in requested if q != p))
        refused = refused or support
        if requested:
            break
    assert refused is not None
    return refused


def _fits(allowed: tuple[str, ...] | None, value: str) -> bool:
    return value.isdecimal() and len(value) < 6 if allowed is None else value in allowed


def _unknown(key: str) -> Support:
    if key in _SET_BY_ENGINE:
        return Support.no(
            Reason.OPTION_UNKNOWN, f"ONNX Runtime option {key!r} is set by xpuruntime", do=_SET_BY_ENGINE[key]
        )
    names = [*_OWN, *_ATTRIBUTES, *sorted(_CONFIG_KEYS)]
    return Support.no(
        Reason.OPTION_UNKNOWN,
        f"ONNX Runtime has no option {key!r} for the CPU",
        do=_near(key, names)
        + f"Options are {', '.join(names[: len(_OWN) + len(_ATTRIBUTES)])} and session config entries such as {names[-1]}.",
    )


def _near(name: str, names: Any) -> str:
    matches = difflib.get_close_matches(name, names, n=1)
    return f"Did you mean {matches[0]!r}? " if matches else ""


def session_options(settings: Settings, threads: int) -> Any:
    """Return new SessionOptions with the requested options.

    The number of threads is fixed, and node placement is recorded. Spinning is off, since spinning threads slow other threads. The vendor's
    log is off, since errors are raised as exceptions.
    """
    vendor = ort()
    options = vendor.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for key, value in settings.attributes.items():
        options.__setattr__(key, _value(vendor, key, value))
    defaults = {
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "0",
        "session.record_ep_graph_assignment_info": "1",
    }
    for key, value in {**defaults, **settings.config}.items():
        options.add_session_config_entry(key, value)
    for name, size in settings.free_dims.items():
        options.add_free_dimension_override_by_name(name, size)
    for path in settings.libraries:
        try:
            options.register_custom_ops_library(path)
        except Exception as error:  # the vendor's exceptions have no common base class
            raise BuildError(
                f"onnxruntime, custom-op library {path!r}",
                "ONNX Runtime cannot load it",
                got=short(str(error)),
                do="Build it for this platform and this version of ONNX Runtime.",
            ) from error
    return options


def _value(vendor: Any, key: str, text: str) -> Any:
    if key == "graph_optimization_level":
        return getattr(vendor.GraphOptimizationLevel, text)
    if key == "execution_mode":
        return getattr(vendor.ExecutionMode, text)
    return _BOOLS[text] if _ATTRIBUTES[key] == tuple(_BOOLS) else int(text)
