"""The effect of each ExecutionPolicy field at each entry point, in one table: the field is honored, or an error is raised.

``demanded`` merges the layers for an entry point other than a session, and ``refuse`` raises for values that the entry point does not
support. ``docs/reference/policy-support.md`` is generated from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..errors import DeviceUnavailable, EngineUnavailable, PolicyError, PrecisionUnavailable, XpuError
from .files.load import PolicyLike
from .precedence import Resolved, effective_policy
from .vocabulary import WEIGHT_KERNELS

__all__ = [
    "ENTRANCES",
    "INSTEAD_OF_INT8",
    "PARTITIONED",
    "SESSION",
    "SPECULATION",
    "FieldUse",
    "demanded",
    "possible",
    "refuse",
]

Takes = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class FieldUse:
    """The effect of one field at one entry point.

    does:  the effect of the field. takes: a predicate for supported values; None supports every value.
    why:   why other values are not supported. do: what to do instead.
    """

    does: str
    takes: Takes | None = None
    why: str = ""
    do: str = ""


def _is_not_always(value: Any) -> bool:
    return bool(value != "always")


def _never(value: Any) -> bool:
    return False


def _refused(why: str, do: str) -> FieldUse:
    return FieldUse("", _never, why, do)


def _kinds(*kinds: str) -> Takes:
    return lambda value: str(value).partition(":")[0] in kinds


def _native(value: Any) -> bool:
    return value in ("native", "auto")


SPECULATION = (
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "assistant_model",
    "num_assistant_tokens",
)
"""Options of the engine native at a Generator: words of a generation that a policy may set."""


def _speculates(value: Mapping[str, Any]) -> bool:
    return set(value.get("native", ())) <= set(SPECULATION)


def _no_buckets(value: Mapping[str, Any]) -> bool:
    return "native" not in value


def _orders_native(value: Mapping[str, Any]) -> bool:
    return all("native" in engines for kind, engines in value.items() if kind in ("cpu", "cuda"))


def _places_native(value: Mapping[str, str]) -> bool:
    return set(value.values()) <= {"native"}


def _is_one_device(value: Mapping[str, int]) -> bool:
    return all(count == 1 for count in value.values())


def _measures_nothing(value: Mapping[str, float]) -> bool:
    return not any(value.values())


def _is_cpu(value: Any) -> bool:
    return bool(value) and all(str(d).partition(":")[0] == "cpu" for d in value)


_SESSION = "Open an InferenceSession with this policy."
_ONLY_SESSIONS_CHECK = FieldUse(
    "no check is made; only first_open and off are supported",
    _is_not_always,
    "it does not compare with a reference",
    "Use self_check: first_open, or open an InferenceSession.",
)
_NO_COPIES = FieldUse(
    "a program runs on one device and copies nothing inside a run; sync: none is an error if it branches or loops by values"
)
_AUTOCAST = FieldUse("no effect: it is the table of `xpuruntime.pytorch.autocast`")
_ONE_DEVICE = FieldUse(
    "only one device is supported",
    _is_one_device,
    "it runs a model on one device",
    "Open the language model as a Generator.",
)
_NO_CACHE = FieldUse(
    "only `model` is supported",
    lambda value: value == "model",
    "it has no cache of keys and values",
    "Open the language model as a Generator.",
)
_MEASURES_NOTHING = FieldUse(
    "nothing is measured; only 0 seconds are supported",
    _measures_nothing,
    "it measures no kernels",
    "Open an InferenceSession, or give a file of xpu tune to compile(times=).",
)
_OWN_KERNELS = "it computes with xpuruntime's own kernels, which are the engine native"

# Fields with the same effect wherever only the native compiler computes.
_COMPILED: dict[str, FieldUse] = {
    "target": FieldUse("the target of code generation, if no argument names one", _kinds("cpu", "cuda", "auto"), "xpuruntime generates no code for it", _SESSION),
    "engine": FieldUse("`native` and `auto` are supported", _native, _OWN_KERNELS, _SESSION),
    "static_shape": FieldUse("always true: programs have fixed shapes"),
    "allow_fallback": FieldUse("devices to generate code for if the target is unavailable, with one warning; int8 becomes the model's own precision"),
    "optimization_level": FieldUse("level of passes, if no argument names passes"),
    "caching": FieldUse("no effect: the caller stores the program"),
    "compile_timeout_s": _refused("its compiler runs in the caller's process and cannot be stopped", _SESSION),
    "run_timeout_s": _refused("its runs have no time limit", _SESSION),
    "memory_bytes": _refused("the memory of its runs has no limit", _SESSION),
    "engine_options": FieldUse("no effect for engines that are not used", _no_buckets, "native's options are for sessions with symbolic shapes", _SESSION),
    "engine_order": FieldUse("orders that include `native` are supported", _orders_native, _OWN_KERNELS, "Add native to the order, or open an InferenceSession."),
    "place": FieldUse("`native` is supported", _places_native, _OWN_KERNELS, "Use partition and DAGExecutor, or an InferenceSession."),
    "transfers": _NO_COPIES,
    "tune": _MEASURES_NOTHING,
    "strict": FieldUse("an error if a library declines a chosen kernel"),
    "self_check": _ONLY_SESSIONS_CHECK,
    "autocast": _AUTOCAST,
    "parallel": _ONE_DEVICE,
    "kv_cache": _NO_CACHE,
}  # fmt: skip

PARTITIONED = ("target", "engine", "precision", "static_shape", "fixed_shapes", "engine_order", "place")
"""Fields that partition decides for the DAGExecutor of its plan."""

SESSION: Mapping[str, FieldUse] = MappingProxyType(
    {
        "target": FieldUse("the device; an error if unavailable"),
        "engine": FieldUse("the engine; an error if unavailable; auto measures"),
        "precision": FieldUse("honored, or an error"),
        "static_shape": FieldUse("symbolic dims are an error unless fixed_shapes sets their sizes"),
        "fixed_shapes": FieldUse("the model is compiled for these sizes"),
        "allow_fallback": FieldUse("devices to fall back to, with one warning; then also the model's own precision"),
        "optimization_level": FieldUse("honored, or an error"),
        "caching": FieldUse("use of the store"),
        "compile_timeout_s": FieldUse("the compiler is stopped; an error if it cannot be"),
        "run_timeout_s": FieldUse("a run is stopped; an error if it cannot be"),
        "memory_bytes": FieldUse("runs wait for memory; an error if weights and a run do not fit, or the engine allocates memory itself"),
        "engine_options": FieldUse("passed to the chosen engine; an unknown option is an error"),
        "engine_order": FieldUse("order of candidates, if no engine is named"),
        "place": FieldUse("one region per part, on the cpu or the GPU that is named"),
        "transfers": FieldUse("an error if the model, the plan or a run breaks a limit"),
        "tune": FieldUse("the kernels of the native engine are measured when a program is built; an error on another engine that is named, on several regions, and for a compiled program"),
        "strict": FieldUse("an error if the evidence differs from the plan"),
        "self_check": FieldUse("the outputs are compared with a reference when the session opens"),
        "parallel": FieldUse("more than one device is an error"),
        "kv_cache": FieldUse("fp8 is an error: a session has no cache of its own"),
        "autocast": FieldUse("no effect: it is the table of `xpuruntime.pytorch.autocast`; `precision` decides what the session computes in"),
    }
)  # fmt: skip

ENTRANCES: Mapping[str, Mapping[str, FieldUse]] = MappingProxyType(
    {
        "compile": MappingProxyType({
            **_COMPILED,
            "precision": FieldUse("type of floats between kernels"),
            "fixed_shapes": FieldUse("sizes of symbolic dims that no argument sets"),
        }),
        "Generator": MappingProxyType({
            **_COMPILED,
            "target": FieldUse("the device, if no argument names one", _kinds("cpu", "cuda", "auto"), "xpuruntime generates no code for it", "Use cpu or cuda:0."),
            "precision": FieldUse("the precision, if dtype= is not given"),
            "caching": FieldUse("use of the store"),
            "engine_options": FieldUse("options of `native` select speculative decoding: `prompt_lookup_num_tokens`, `max_matching_ngram_size`, `assistant_model`, `num_assistant_tokens`; no effect for engines that are not used; assistant_model is an error at a BatchGenerator", _speculates, f"native's options at a Generator are {', '.join(SPECULATION)}", "Remove the others."),
            "fixed_shapes": _refused("its sizes are arguments", "Pass batch=, capacity= and buckets=."),
            "parallel": FieldUse("the number of devices that the linear layers are divided over"),
            "kv_cache": FieldUse("the type that keys and values are stored in; fp8 is an error at a BatchGenerator"),
            "tune": FieldUse("nothing is measured; only 0 seconds are supported", _measures_nothing, "the kernels of a language model's programs are not measured", "Leave tune out, and name kernels by a KernelPolicy."),
            "transfers": FieldUse("h2d and d2h: its programs copy nothing inside a run", lambda value: value.get("sync") != "none", "the host reads each token to decide whether to go on", "Leave sync out."),
        }),
        "ops": MappingProxyType({
            **_COMPILED,
            "target": FieldUse("the device of the operands is supported"),
            "precision": FieldUse("the operands' own type is supported"),
            "fixed_shapes": _refused("the operands determine its sizes", "Remove it."),
            "allow_fallback": FieldUse("also allows operands on these devices, with one warning"),
            "caching": FieldUse("use of the store"),
            "transfers": FieldUse("a call is one program on the device of its operands, which copies nothing and waits for nothing inside"),
        }),
        "partition": MappingProxyType({
            "target": FieldUse("the device of the engine, if no argument names one"),
            "engine": FieldUse("the engine that runs all it supports, if no argument names one", lambda value: value != "auto", "it does not measure", "Pass costs= and name an engine, or open an InferenceSession."),
            "precision": FieldUse("the model's own is supported"),
            "static_shape": FieldUse("symbolic dims are an error unless fixed_shapes sets their sizes"),
            "fixed_shapes": FieldUse("the graph is specialized to these sizes"),
            "allow_fallback": FieldUse("`cpu` is supported: other regions run on the engines of others=", _is_cpu, "regions may run on the engines of others=, on the cpu", "Pass others=() for none."),
            "optimization_level": FieldUse("level of passes of native regions; other regions use their engine's setting"),
            "caching": FieldUse("use of the executor's store="),
            "compile_timeout_s": _refused("its compilers cannot be stopped", _SESSION),
            "run_timeout_s": _refused("its runs have no time limit", _SESSION),
            "memory_bytes": _refused("the memory of its runs has no limit", _SESSION),
            "engine_options": FieldUse("passed to the engines of the regions", _no_buckets, "native's options are for sessions with symbolic shapes", _SESSION),
            "engine_order": FieldUse("the engines after the first, if no argument names others"),
            "place": FieldUse("honored, or an error"),
            "self_check": _ONLY_SESSIONS_CHECK,
            "transfers": FieldUse("an error if the graph or the plan breaks a limit"),
            "tune": _MEASURES_NOTHING,
            "strict": FieldUse("an error if the evidence differs from the plan, or a region runs on another engine"),
            "autocast": _AUTOCAST,
            "parallel": _ONE_DEVICE,
            "kv_cache": _NO_CACHE,
        }),
        "DAGExecutor": MappingProxyType({
            **dict.fromkeys(PARTITIONED, FieldUse("decided by partition; a value other than its policy's is an error")),
            "allow_fallback": FieldUse("as in partition", _is_cpu, "regions may run on the engines of others=, on the cpu", "Pass others=() to partition for none."),
            "optimization_level": FieldUse("level of passes of native regions; other regions use their engine's setting"),
            "caching": FieldUse("use of store="),
            "compile_timeout_s": _refused("its compilers cannot be stopped", _SESSION),
            "run_timeout_s": _refused("its runs have no time limit", _SESSION),
            "memory_bytes": _refused("the memory of its runs has no limit", _SESSION),
            "engine_options": FieldUse("passed to the engines of the regions", _no_buckets, "native's options are for sessions with symbolic shapes", _SESSION),
            "self_check": _ONLY_SESSIONS_CHECK,
            "transfers": FieldUse("an error if the graph, the plan or a run breaks a limit"),
            "tune": _MEASURES_NOTHING,
            "strict": FieldUse("an error if the evidence differs from the plan, or a region runs on another engine"),
            "autocast": _AUTOCAST,
            "parallel": _ONE_DEVICE,
            "kv_cache": _NO_CACHE,
        }),
        "Executor": MappingProxyType({
            **_COMPILED,
            "target": FieldUse("the device, if no argument names one; an error if it is unavailable or the program has no code for it"),
            "precision": FieldUse("an error unless it is the program's"),
            "static_shape": FieldUse("always true: programs have fixed shapes"),
            "fixed_shapes": FieldUse("an error unless they are the program's"),
            "allow_fallback": FieldUse("devices to run on if the target is unavailable, with one warning; int8 becomes the program's own precision"),
            "optimization_level": FieldUse("an error unless it is the level that the program was compiled at"),
            "caching": FieldUse("if false, plans of cuDNN are not kept"),
            "compile_timeout_s": FieldUse("no effect: it compiles nothing"),
            "tune": FieldUse("no effect: it compiles nothing"),
            "strict": FieldUse("an error if a library declines a kernel of the program"),
        }),
    }
)  # fmt: skip
"""By entry point and field; sessions honor every field (``SESSION``)."""

INSTEAD_OF_INT8 = (
    "Quantize the model, weights and activations, with calibration data and hand that in; or keep only weights in few bits, by a policy "
    f"for the native engine such as kernel: {{weights: int8}} ({' or '.join(WEIGHT_KERNELS)}); or add allow_fallback='cpu' to compute in the "
    "model's own precision."
)
"""Advice for a request of int8 with a float model."""

# The error class of a field names the unavailable thing.
_ERRORS: dict[str, type[XpuError]] = {
    "engine": EngineUnavailable,
    "place": EngineUnavailable,
    "target": DeviceUnavailable,
    "precision": PrecisionUnavailable,
}


def demanded(entrance: str, arguments: Mapping[str, Any], policy: PolicyLike | Resolved) -> Resolved:
    """Return the effective policy of an entry point, from arguments, a policy, ``with_policy`` and the environment.

    A Resolved is used unchanged. Raises PolicyError or the matching UnavailableError for demands that the entry point does not support.
    """
    if isinstance(policy, Resolved):
        return policy
    return possible(entrance, effective_policy(arguments, policy, builtin=False))


def possible(entrance: str, resolved: Resolved) -> Resolved:
    """Return the demands if the entry point supports all of them. Raises as ``demanded``."""
    for field, use in ENTRANCES[entrance].items():
        value = getattr(resolved.policy.execution, field)
        if field == "target" and resolved.policy.execution.allow_fallback:
            continue  # the entry point uses the first one that it supports
        if value is not None and use.takes is not None and not use.takes(value):
            raise refuse(entrance, field, resolved, use.why, use.do)
    return resolved


def _plain(value: Any) -> Any:
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def refuse(entrance: str, field: str, resolved: Resolved, why: str, do: str) -> XpuError:
    """Return the error for a field value that an entry point does not support."""
    value = getattr(resolved.policy.execution, field)
    shown = _plain(value)
    origins = dict.fromkeys(
        o for k, o in resolved.origins.items() if f"{k}.".startswith(f"execution.{field}.")
    )
    kind = _ERRORS.get(field, PolicyError)
    return kind(entrance, f"cannot honor {field}: {why}", got=f"{shown!r} ({', '.join(origins)})", do=do)
