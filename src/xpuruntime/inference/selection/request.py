"""What holds for one session: arguments, policies, environment and built-in default become one ``Ask``."""

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
from ...policies.load import PolicyLike
from ...protocols import Array
from ...runtime.device import cpu
from ...targets import DeviceId
from ...types import DType
from ..self_check import SelfCheck
from .candidate import Wanted, find

__all__ = ["Ask", "Effective", "effective_ask"]


@dataclass(frozen=True, slots=True)
class Ask:
    """What the effective policy says, in the words of ``select``.

    engine:   a name, ``auto`` (measure), or None (first of the built-in order). device: None for the built-in ones in order.
    fallback: devices that may take over, in order; empty means that what was named must be had.
    order:    device kind -> engines to try, in order.
    examples: what to measure candidates on, by input name. check: how outputs are compared with a reference.
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

    def wanted(self, engine: str, device: DeviceId) -> Wanted:
        """The candidate of that engine and device."""
        options = tuple(sorted(self.options.get(engine, {}).items()))
        return Wanted(
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
class Effective:
    """The effective policy, what ``select`` needs of it, and what was asked for with the origin of each word."""

    policy: Policy
    ask: Ask
    strict: bool
    static_shape: bool
    fixed_shapes: Mapping[str, int | Sequence[int]]
    run_timeout_s: float | None
    request: dict[str, Any]


def effective_ask(
    *,
    device: str | DeviceId | None,
    engine: str | None,
    backend: str | None,
    policies: Sequence[PolicyLike],
    fp16: bool,
    strict: bool | None,
    threads: int | None,
) -> Effective:
    """Lay everything over one another (policies: the first is the highest). Raises PolicyError, DeviceUnavailable, EngineUnavailable."""
    arguments = {
        "engine": _engine(engine, backend),
        "target": None if device is None else str(DeviceId.parse(device)),
        "strict": strict,
    }
    resolved = effective_policy(arguments, *policies, engines=engine_names())
    execution = resolved.policy.execution
    ask = Ask(
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
    return Effective(
        policy=resolved.policy,
        ask=ask,
        strict=bool(execution.strict),
        static_shape=bool(execution.static_shape) or bool(execution.fixed_shapes),
        fixed_shapes=execution.fixed_shapes or {},
        run_timeout_s=execution.run_timeout_s,
        request=request,
    )


def half(policy: PolicyLike, part: Any) -> PolicyLike:
    """``kernel_policy=`` and ``exec_policy=`` take a file or a mapping too; the half they name must be in it."""
    return policy if policy is None else load_policy(policy, part=part)


def _engine(engine: str | None, backend: str | None) -> str | None:
    """One name from the two spellings, canonical. ``auto`` stays."""
    if engine and backend and engine != backend:
        raise PolicyError(
            "session",
            "engine and backend are two names of one thing",
            got=f"engine={engine!r}, backend={backend!r}",
            do="Give one of them.",
        )
    name = engine or backend
    if not isinstance(name, str | None):
        raise PolicyError("session", "engine is a name", got=repr(name), do="Give 'native', 'auto' ...")
    if name is None or name.strip().lower() == "auto":
        return None if name is None else "auto"
    found = find(name)
    return name.strip().lower() if isinstance(found, Support) else found.name


def _device(target: str | None, origin: str) -> DeviceId | None:
    """The device that somebody named. The built-in ``auto`` means that nobody did."""
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
