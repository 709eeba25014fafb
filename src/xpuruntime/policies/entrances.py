"""What each field of an ExecutionPolicy does at each entrance, as one table: it holds there, or it is an error.

``demanded`` lays the layers over one another for an entrance other than a session, and ``refuse`` raises for what the entrance cannot do.
``docs/reference/policy-support.md`` is made of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..errors import DeviceUnavailable, EngineUnavailable, PolicyError, PrecisionUnavailable, XpuError
from .load import PolicyLike
from .precedence import Resolved, effective_policy
from .vocabulary import KERNELS

__all__ = ["ENTRANCES", "INSTEAD_OF_INT8", "PARTITIONED", "SESSION", "Use", "demanded", "possible", "refuse"]

Takes = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Use:
    """What an entrance makes of one field.

    does:  what the field does there. takes: whether a value holds there; None: every value does.
    why:   why other values do not hold. do: what to do instead.
    """

    does: str
    takes: Takes | None = None
    why: str = ""
    do: str = ""


def _is_not_always(value: Any) -> bool:
    return bool(value != "always")


def _never(value: Any) -> bool:
    return False


def _refused(why: str, do: str) -> Use:
    return Use("", _never, why, do)


def _kinds(*kinds: str) -> Takes:
    return lambda value: str(value).partition(":")[0] in kinds


def _native(value: Any) -> bool:
    return value in ("native", "auto")


def _no_buckets(value: Mapping[str, Any]) -> bool:
    return "native" not in value


def _orders_native(value: Mapping[str, Any]) -> bool:
    return all("native" in engines for kind, engines in value.items() if kind in ("cpu", "cuda"))


def _places_native(value: Mapping[str, str]) -> bool:
    return set(value.values()) <= {"native"}


def _is_cpu(value: Any) -> bool:
    return bool(value) and all(str(d).partition(":")[0] == "cpu" for d in value)


_SESSION = "Open an InferenceSession with this policy."
_ONLY_SESSIONS_CHECK = Use(
    "only sessions check; first_open and off hold",
    _is_not_always,
    "it compares with no reference",
    "Write self_check: first_open, or open an InferenceSession.",
)
_OWN_KERNELS = "it computes with our own kernels, which are the engine native"

# What is the same wherever our compiler alone computes.
_COMPILED: dict[str, Use] = {
    "target": Use("code for it, where no argument names a target", _kinds("cpu", "cuda", "auto"), "there is no code generator for it", _SESSION),
    "engine": Use("native and auto hold", _native, _OWN_KERNELS, _SESSION),
    "static_shape": Use("holds: programs have fixed shapes"),
    "allow_fallback": Use("devices to generate code for where the target cannot be had, with one warning; int8 becomes the model's own precision"),
    "optimization_level": Use("passes of this level, where no argument names passes"),
    "caching": Use("holds: the caller keeps the program"),
    "compile_timeout_s": _refused("its compiler runs in the caller's process and cannot be ended", _SESSION),
    "run_timeout_s": _refused("its runs cannot be ended by a time", _SESSION),
    "engine_options": Use("of other engines: they take no part", _no_buckets, "native's options are those of a session with open shapes", _SESSION),
    "engine_order": Use("orders with native hold", _orders_native, _OWN_KERNELS, "Add native to the order, or open an InferenceSession."),
    "place": Use("native holds", _places_native, _OWN_KERNELS, "Use partition and DAGExecutor, or an InferenceSession."),
    "strict": Use("an error where a library declines a kernel that was chosen"),
    "self_check": _ONLY_SESSIONS_CHECK,
}  # fmt: skip

PARTITIONED = ("target", "engine", "precision", "static_shape", "fixed_shapes", "engine_order", "place")
"""What partition settles for the DAGExecutor of its plan."""

SESSION: Mapping[str, Use] = MappingProxyType(
    {
        "target": Use("the device: had, or an error"),
        "engine": Use("had, or an error; auto measures"),
        "precision": Use("had, or an error"),
        "static_shape": Use("open dims are an error unless fixed_shapes sizes them"),
        "fixed_shapes": Use("the model is compiled for these sizes"),
        "allow_fallback": Use("devices that may take over, with one warning; then also the model's own precision"),
        "optimization_level": Use("had, or an error"),
        "caching": Use("whether the store is read and written"),
        "compile_timeout_s": Use("the compiler is ended, or an error where it cannot be"),
        "run_timeout_s": Use("a run is ended, or an error where it cannot be"),
        "engine_options": Use("handed to the engine that is chosen; an unknown one is an error"),
        "engine_order": Use("candidates in this order, where no engine is named"),
        "place": Use("a region of its own for each part, on the cpu"),
        "strict": Use("evidence that differs from the plan is an error"),
        "self_check": Use("outputs are compared with a reference when the session is opened"),
    }
)  # fmt: skip

ENTRANCES: Mapping[str, Mapping[str, Use]] = MappingProxyType(
    {
        "compile": MappingProxyType({
            **_COMPILED,
            "precision": Use("floats are kept in it between kernels"),
            "fixed_shapes": Use("sizes of symbolic dims that no argument gives"),
        }),
        "Generator": MappingProxyType({
            **_COMPILED,
            "target": Use("the device, where no argument names one", _kinds("cpu", "cuda", "auto"), "there is no code generator for it", "Name cpu or cuda:0."),
            "precision": Use("what is computed in, where dtype= does not say it"),
            "fixed_shapes": _refused("its sizes are its own arguments", "Give batch=, capacity= and buckets=."),
        }),
        "ops": MappingProxyType({
            **_COMPILED,
            "target": Use("where the operands are holds"),
            "precision": Use("the operands' own type holds"),
            "fixed_shapes": _refused("its sizes are those of the operands", "Drop it."),
            "allow_fallback": Use("admits operands on these devices where the target is another, with one warning"),
            "caching": Use("whether the store is read and written"),
        }),
        "partition": MappingProxyType({
            "target": Use("the device of the engine, where no argument names one"),
            "engine": Use("takes what it can, where no argument names one", lambda value: value != "auto", "nothing is measured", "Give costs= and name an engine, or open an InferenceSession."),
            "precision": Use("the model's own holds"),
            "static_shape": Use("open dims are an error unless fixed_shapes sizes them"),
            "fixed_shapes": Use("the graph is specialized to these sizes"),
            "allow_fallback": Use("cpu holds: regions fall to the engines of others=", _is_cpu, "regions fall to the engines of others=, on the cpu", "Give others=() for none."),
            "optimization_level": Use("native regions by passes of this level, others as their engines have it"),
            "caching": Use("whether the store= of the executor is used"),
            "compile_timeout_s": _refused("its compilers cannot be ended", _SESSION),
            "run_timeout_s": _refused("its runs cannot be ended by a time", _SESSION),
            "engine_options": Use("handed to the engines of the regions", _no_buckets, "native's options are those of a session with open shapes", _SESSION),
            "engine_order": Use("the engines after the first, where no argument names others"),
            "place": Use("had, or an error"),
            "self_check": _ONLY_SESSIONS_CHECK,
            "strict": Use("evidence that differs from the plan, or a region on another engine, is an error"),
        }),
        "DAGExecutor": MappingProxyType({
            **dict.fromkeys(PARTITIONED, Use("settled by partition; another value than its policy's is an error")),
            "allow_fallback": Use("as in partition", _is_cpu, "regions fall to the engines of others=, on the cpu", "Give others=() to partition for none."),
            "optimization_level": Use("native regions by passes of this level, others as their engines have it"),
            "caching": Use("whether store= is used"),
            "compile_timeout_s": _refused("its compilers cannot be ended", _SESSION),
            "run_timeout_s": _refused("its runs cannot be ended by a time", _SESSION),
            "engine_options": Use("handed to the engines of the regions", _no_buckets, "native's options are those of a session with open shapes", _SESSION),
            "self_check": _ONLY_SESSIONS_CHECK,
            "strict": Use("evidence that differs from the plan, or a region on another engine, is an error"),
        }),
        "Executor": MappingProxyType({
            **_COMPILED,
            "target": Use("the device, where no argument names one: had, with code for it in the program, or an error"),
            "precision": Use("that of the program holds; else an error"),
            "static_shape": Use("holds: programs have fixed shapes"),
            "fixed_shapes": Use("the sizes of the program hold; else an error"),
            "allow_fallback": Use("devices to run on where the target cannot be had, with one warning; int8 becomes the program's own precision"),
            "optimization_level": Use("the level that the program was compiled at holds; else an error"),
            "caching": Use("holds: it keeps nothing"),
            "compile_timeout_s": Use("holds: it compiles nothing"),
            "strict": Use("an error where a library declines a kernel of the program"),
        }),
    }
)  # fmt: skip
"""By entrance and field; sessions honor every field (``SESSION``)."""

_WORDS = " or ".join(
    word for word in KERNELS["matmul"] if word.endswith("8_weights") or word == "int4_weights"
)

INSTEAD_OF_INT8 = (
    "Quantize the model, weights and activations, with calibration data and hand that in; or keep only weights in few bits, by a policy "
    f"for the native engine such as kernel: {{matmul: int8_weights}} ({_WORDS}); or add allow_fallback='cpu' to compute in the "
    "model's own precision."
)
"""What somebody can do who asked for int8 and has a float model."""

# The error of a field is the one that says what cannot be had.
_ERRORS: dict[str, type[XpuError]] = {
    "engine": EngineUnavailable,
    "place": EngineUnavailable,
    "target": DeviceUnavailable,
    "precision": PrecisionUnavailable,
}


def demanded(entrance: str, arguments: Mapping[str, Any], policy: PolicyLike | Resolved) -> Resolved:
    """What arguments, a policy, ``with_policy`` and the environment demand of an entrance; a Resolved is taken as it is.

    Raises PolicyError, and the UnavailableError that fits, for what the entrance cannot do.
    """
    if isinstance(policy, Resolved):
        return policy
    return possible(entrance, effective_policy(arguments, policy, builtin=False))


def possible(entrance: str, found: Resolved) -> Resolved:
    """The demands, where the entrance can do all of them. Raises as ``demanded``."""
    for field, use in ENTRANCES[entrance].items():
        value = getattr(found.policy.execution, field)
        if field == "target" and found.policy.execution.allow_fallback:
            continue  # the entrance takes the first that it can
        if value is not None and use.takes is not None and not use.takes(value):
            raise refuse(entrance, field, found, use.why, use.do)
    return found


def _plain(value: Any) -> Any:
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def refuse(entrance: str, field: str, resolved: Resolved, why: str, do: str) -> XpuError:
    """The error for a field that an entrance cannot honor."""
    value = getattr(resolved.policy.execution, field)
    shown = _plain(value)
    origins = dict.fromkeys(
        o for k, o in resolved.origins.items() if f"{k}.".startswith(f"execution.{field}.")
    )
    kind = _ERRORS.get(field, PolicyError)
    return kind(entrance, f"cannot honor {field}: {why}", got=f"{shown!r} ({', '.join(origins)})", do=do)
