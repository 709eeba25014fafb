"""The request of one session, merged from arguments, policies, environment and built-in defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import env
from ...decisions import Support
from ...engines import engine_names
from ...errors import PolicyError
from ...policies import Policy, effective_policy, load_policy
from ...policies.files.load import PolicyLike
from ...protocols import Array
from ...runtime.device import cpu
from ...targets import DeviceId
from ...types import DType
from ..self_check import SelfCheck
from .candidate import EngineCandidate, find

__all__ = ["EffectiveRequest", "SelectionRequest", "effective_request"]


@dataclass(frozen=True, slots=True)
class SelectionRequest:
    """The effective policy as arguments of ``select``.

    engine:   a name, ``auto`` (measure), or None (first of the built-in order). device: None for the built-in devices in order.
    fallback: fallback devices in order. If it is empty, the named engine and device must be available.
    order:    engines to try by device kind, in order.
    examples: inputs for measuring candidates, by name. check: how outputs are compared with a reference.
    """

    engine: str | None
    device: DeviceId | None
    precision: DType | None
    permit: DType | None
    fallback: tuple[DeviceId, ...]
    threads: int | None
    options: Mapping[str, Mapping[str, str]]
    caching: bool
    order: Mapping[str, Sequence[str]]
    optimization: int
    kernels: str = ""
    compile_timeout_s: float | None = None
    place: Mapping[str, str] = field(default_factory=dict)
    examples: Mapping[str, Array] | None = None
    check: SelfCheck = field(default_factory=lambda: SelfCheck("first_open"), compare=False)

    def wanted(self, engine: str, device: DeviceId) -> EngineCandidate:
        """Return the candidate of an engine and device."""
        options = tuple(sorted(self.options.get(engine, {}).items()))
        return EngineCandidate(
            engine,
            device,
            self.precision,
            self.permit,
            self.threads,
            options,
            self.caching,
            self.optimization,
            self.kernels,
            self.compile_timeout_s,
            self.check,
            tuple((e, tuple(sorted(o.items()))) for e, o in sorted(self.options.items())),
        )


@dataclass(frozen=True, slots=True)
class EffectiveRequest:
    """The effective policy, the selection request made of it, and every requested field with its origin."""

    policy: Policy
    selection: SelectionRequest
    strict: bool
    static_shape: bool
    fixed_shapes: Mapping[str, int | Sequence[int]]
    run_timeout_s: float | None
    request: dict[str, Any]


def effective_request(
    *,
    device: str | DeviceId | None,
    engine: str | None,
    backend: str | None,
    policies: Sequence[PolicyLike],
    fp16: bool,
    strict: bool | None,
    threads: int | None,
) -> EffectiveRequest:
    """Merge arguments and policies (the first has the highest precedence). Raises PolicyError, DeviceUnavailable, EngineUnavailable."""
    arguments = {
        "engine": _engine(engine, backend),
        "target": None if device is None else str(DeviceId.parse(device)),
        "strict": strict,
    }
    resolved = effective_policy(arguments, *policies, engines=engine_names())
    execution = resolved.policy.execution
    selection = SelectionRequest(
        engine=execution.engine,
        device=_device(execution.target, resolved.origin_of("execution.target")),
        precision=_precision(execution.precision, fp16),
        permit=DType.FLOAT16 if fp16 else None,
        fallback=tuple(DeviceId.parse(d) for d in execution.allow_fallback or ()),
        threads=_threads(threads),
        options={e: {k: str(v) for k, v in o.items()} for e, o in (execution.engine_options or {}).items()},
        caching=execution.caching is not False,
        order=execution.engine_order or {},
        optimization=3 if execution.optimization_level is None else execution.optimization_level,
        kernels=json.dumps(resolved.policy.kernel.to_dict(), sort_keys=True)
        if resolved.policy.kernel.layers
        else "",
        compile_timeout_s=execution.compile_timeout_s,
        place=execution.place or {},
        check=SelfCheck(execution.self_check or "first_open"),
    )
    fields = execution.set_fields()
    request = {
        f: f"{_shown(v)} ({resolved.origin_of(f'execution.{f}')})"
        for f, v in fields.items()
        if f != "engine_order" and resolved.origin_of(f"execution.{f}") != "built-in"
    }
    if fp16:
        request["fp16"] = "True (argument)"
    if any(resolved.policy.kernel.layers):
        request["kernel_policy"] = resolved.policy.kernel.to_dict()["kernel"]
    return EffectiveRequest(
        policy=resolved.policy,
        selection=selection,
        strict=bool(execution.strict),
        static_shape=bool(execution.static_shape) or bool(execution.fixed_shapes),
        fixed_shapes=execution.fixed_shapes or {},
        run_timeout_s=execution.run_timeout_s,
        request=request,
    )


def half(policy: PolicyLike, part: Any) -> PolicyLike:
    """Load one half of a policy. ``kernel_policy=`` and ``exec_policy=`` also take a file or a mapping, which must contain that half."""
    return policy if policy is None else load_policy(policy, part=part)


def _engine(engine: str | None, backend: str | None) -> str | None:
    """Return the engine's canonical name from its two arguments. ``auto`` stays."""
    if engine and backend and engine != backend:
        raise PolicyError(
            "session",
            "engine and backend name the same option",
            got=f"engine={engine!r}, backend={backend!r}",
            do="Give one of them.",
        )
    name = engine or backend
    if not isinstance(name, str | None):
        raise PolicyError("session", "engine is a name", got=repr(name), do="Give 'native', 'auto' ...")
    if name is None or name.strip().lower() == "auto":
        return None if name is None else "auto"
    plugin = find(name)
    return name.strip().lower() if isinstance(plugin, Support) else plugin.name


def _device(target: str | None, origin: str) -> DeviceId | None:
    """Return the named device. The built-in ``auto`` means that none was named."""
    return None if target is None or origin == "built-in" else DeviceId.parse(target)


def _precision(name: str | None, fp16: bool) -> DType | None:
    if not isinstance(fp16, bool):
        raise PolicyError("session", "fp16 must be True or False", got=repr(fp16), do="Give a bool.")
    precision = None if name in (None, "model") else DType.of(name)
    if fp16 and precision not in (None, DType.FLOAT16):
        raise PolicyError(
            "session",
            "fp16=True contradicts the policy's precision",
            got=f"precision={name!r}",
            do="Drop one of the two.",
        )
    return precision


def _threads(threads: int | None) -> int:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise PolicyError(
            "session", "threads must be a positive integer", got=repr(threads), do="Give 1 or more."
        )
    return threads or env.get_int("XPU_NUM_THREADS") or cpu().usable_cores


def _shown(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
