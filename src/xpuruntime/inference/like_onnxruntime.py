"""The names under which programs written for ONNX Runtime's Python package use xpuruntime.

``import xpuruntime as ort`` is the one line that changes: ``InferenceSession(path, providers=[...])``, ``run(names, feeds)``,
``get_inputs()``, ``get_outputs()``, ``io_binding()``, ``run_with_iobinding``. Attributes of a SessionOptions are translated where a policy has
a field for them. Others raise an error, so that no option is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..arguments import check_several
from ..engines.onnxruntime.providers import BY_NAME_ONLY, PROVIDER_DEVICES
from ..errors import InputError, PolicyError
from ..policies import ExecutionPolicy
from ..types import DType, TensorSpec

__all__ = ["NodeArg", "no_options", "node_args", "pick", "policy_of"]

_WORDS = {
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.FLOAT8_E4M3FN: "float8e4m3fn",
    DType.FLOAT8_E5M2: "float8e5m2",
}

_WHO = "session"


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output. ``type``: for example ``tensor(float)``. ``shape``: integers, names of open dims, None for unnamed ones."""

    name: str
    type: str
    shape: list[int | str | None]


def node_args(specs: Sequence[TensorSpec]) -> list[NodeArg]:
    """Return the specs as ONNX Runtime's NodeArg."""
    return [
        NodeArg(
            s.name,
            f"tensor({_WORDS.get(s.dtype, s.dtype.value)})",
            [d if isinstance(d, int) else str(d) for d in s.shape],
        )
        for s in specs
    ]


def pick(outputs: Mapping[str, Any], names: Sequence[str] | None, run_options: Any, who: str) -> list[Any]:
    """Return the named outputs in their order, or all for None. Raises InputError for an unknown name."""
    no_options(run_options, who)
    if names is None:
        return list(outputs.values())
    do = f"Give a list such as {list(outputs)[:1]}, or None for all."
    names = check_several(who, "output names", names, "several names", do)
    if not names:
        return list(outputs.values())
    for name in names:
        if name not in outputs:
            known = ", ".join(outputs)
            raise InputError(who, "no output of that name", got=repr(name), do=f"Outputs are {known}.")
    return [outputs[name] for name in names]


def no_options(run_options: Any, who: str) -> None:
    """Raise InputError if RunOptions are given."""
    if run_options is not None:
        do = "Use run_timeout_s of an ExecutionPolicy, or sess.cancel()."
        raise InputError(who, "takes no RunOptions", got=type(run_options).__name__, do=do)


def policy_of(
    sess_options: Any,
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
    *,
    engine_named: bool,
) -> tuple[ExecutionPolicy | None, int | None]:
    """Return the policy and the number of threads that the arguments mean.

    providers: the first one's device is the target; the devices of the others are fallbacks in order. The engine is onnxruntime unless
    one is named. Raises PolicyError.
    """
    fields: dict[str, Any] = {}
    _check_providers(providers, provider_options)
    if providers:
        names = [p if isinstance(p, str) else p[0] for p in providers]
        options = [{} if isinstance(p, str) else dict(p[1]) for p in providers]
        if provider_options:
            options = [dict(o) for o in provider_options]
        unknown = [n for n in names if n not in PROVIDER_DEVICES]
        if unknown:
            known = ", ".join(PROVIDER_DEVICES)
            raise PolicyError(
                _WHO, "no provider of that name", got=repr(unknown[0]), do=f"Known are {known}."
            )
        devices = list(dict.fromkeys(PROVIDER_DEVICES[n] for n in names))
        index = str(options[0].pop("device_id", "0")) if options else "0"
        fields["target"] = devices[0] + (f":{index}" if index != "0" else "")
        if len(devices) > 1:
            fields["allow_fallback"] = devices[1:]
        if not engine_named:
            fields["engine"] = "onnxruntime"
            fields["engine_order"] = {d: ["onnxruntime"] for d in devices[1:]}
            named = {"providers": names[0]} if names[0] in BY_NAME_ONLY else {}
            if named or options[0]:
                fields["engine_options"] = {"onnxruntime": {**named, **options[0]}}
    threads = _read_options(sess_options, fields) if sess_options is not None else None
    return (ExecutionPolicy(**fields) if fields else None), threads


def _check_providers(providers: Any, provider_options: Any) -> None:
    """Raise PolicyError for arguments that ONNX Runtime's own session refuses."""

    def listed(value: Any, fine: Callable[[Any], bool]) -> bool:
        return not value or (isinstance(value, list | tuple) and all(map(fine, value)))

    def is_provider(p: Any) -> bool:
        pair = isinstance(p, list | tuple) and len(p) == 2 and isinstance(p[1], Mapping)
        return isinstance(p, str) or (pair and isinstance(p[0], str))

    if not listed(providers, is_provider):
        do = "Give ['CPUExecutionProvider'], or pairs of a name and its options."
        raise PolicyError(_WHO, "providers are names", got=repr(providers), do=do)
    if not listed(provider_options, lambda o: isinstance(o, Mapping)):
        do = "Give one mapping for each provider."
        raise PolicyError(_WHO, "provider_options are mappings", got=repr(provider_options), do=do)


_LEVELS = {
    "ORT_DISABLE_ALL": 0,
    "ORT_ENABLE_BASIC": 1,
    "ORT_ENABLE_EXTENDED": 2,
    "ORT_ENABLE_LAYOUT": 3,
    "ORT_ENABLE_ALL": 3,
}

# Attributes of SessionOptions that change the computation or write files, with the value that requests nothing.
_MUST_BE_DEFAULT = {
    "enable_profiling": (False, "Use sess.receipt()."),
    "optimized_model_filepath": ("", "Use xpu compile."),
    "use_deterministic_compute": (
        False,
        "Leave it out: every run of a session gives the same bits on the CPU.",
    ),
}


def _read_options(options: Any, fields: dict[str, Any]) -> int | None:
    level = getattr(getattr(options, "graph_optimization_level", None), "name", "ORT_ENABLE_ALL")
    if _LEVELS.get(level, 3) != 3:
        fields["optimization_level"] = _LEVELS[level]
    for name, (default, do) in _MUST_BE_DEFAULT.items():
        if getattr(options, name, default) != default:
            raise PolicyError(_WHO, f"SessionOptions.{name} is not taken", got=getattr(options, name), do=do)
    return int(getattr(options, "intra_op_num_threads", 0)) or None
