"""The request of one session, merged from arguments, policies, environment and built-in defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ... import env
from ...arguments import MAX_THREADS, check_count
from ...engines import engine_names, lookup
from ...errors import PolicyError
from ...policies import ExecutionPolicy, KernelPolicy, Policy, Resolved, effective_policy, load_policy
from ...policies.files.load import PolicyLike
from ...program.lock import Lock
from ...protocols import Array, TuneRequest
from ...runtime.device import cpu
from ...targets import DeviceId
from ...types import DType
from ..self_check import SelfCheck

__all__ = [
    "SessionRequest",
    "demanded_fields",
    "half",
    "kernels_key",
    "session_request",
    "thread_count",
]


@dataclass(frozen=True, slots=True, eq=False)
class SessionRequest:
    """The demands on one session: the effective policy, and what only arguments of the call can say.

    policy:   the merged policy. Layers of its kernel half know their origin.
    device:   the named device; None for the built-in devices in order.
    permit:   a lower precision to use if the engine supports it (``fp16=True``); otherwise the model's own is kept.
    threads:  CPU threads; None lets each engine decide.
    examples: inputs for measuring candidates, by name.
    check:    how outputs are compared with a reference before use; None for no check. It does not affect an artifact.
    demanded: every demanded field with its origin, as plans show it.
    lock:     the lock that the session is opened under, if any.
    """

    policy: Policy = field(default_factory=Policy)
    device: DeviceId | None = None
    permit: DType | None = None
    threads: int | None = None
    examples: Mapping[str, Array] | None = field(default=None, repr=False)
    check: SelfCheck | None = field(default=None, repr=False)
    demanded: Mapping[str, Any] = field(default_factory=dict, repr=False)
    lock: Lock | None = field(default=None, repr=False)

    @property
    def locked(self) -> Mapping[str, str] | None:
        """Return the kernel of each call of the native engine under a lock; None without a lock."""
        return None if self.lock is None else self.lock.kernels

    @property
    def execution(self) -> ExecutionPolicy:
        """Return the policy's execution half."""
        return self.policy.execution

    @property
    def kernels(self) -> KernelPolicy | None:
        """Return the demands on kernels without their origins; None without any."""
        kernel = self.policy.kernel
        return kernel.without_origins() if kernel.layers else None

    @property
    def engine(self) -> str | None:
        """Return the named engine, ``auto`` (measure), or None (first of the order that loads)."""
        return self.execution.engine

    @property
    def automatic(self) -> bool:
        """Return True if no engine is named."""
        return self.engine in (None, "auto")

    @property
    def divides_modules(self) -> bool:
        """Return True if PyTorch may compute parts of a module: no engine is named, or a lock names PyTorch for a region."""
        if self.lock is not None and self.lock.regions:
            return any(r.engine == "torch" for r in self.lock.regions)
        on_host = self.device is None or self.device.kind == "cpu"
        return self.automatic and on_host and not self.execution.strict

    @property
    def precision(self) -> DType | None:
        """Return the demanded precision: None (the model's own), a float DType, or an integer DType, which only quantized models have."""
        name = self.execution.precision
        return None if name in (None, "model") else DType.of(name)

    @property
    def fallback(self) -> tuple[DeviceId, ...]:
        """Return the fallback devices in order. Without any, the named engine and device must be available."""
        return tuple(DeviceId.parse(d) for d in self.execution.allow_fallback or ())

    @property
    def optimization(self) -> int:
        """Return the level of optimization; by default 3, the highest."""
        level = self.execution.optimization_level
        return 3 if level is None else level

    @property
    def tune(self) -> TuneRequest | None:
        """Return the measurement of kernels when a program is built; None without one, and under a lock, which names them."""
        tune = self.execution.tune  # its normal form is a mapping
        seconds = tune.get("on_build", 0.0) if isinstance(tune, Mapping) else 0.0
        return TuneRequest(seconds) if seconds and self.lock is None else None

    @property
    def caching(self) -> bool:
        """Return True if the store may be read and written."""
        return self.execution.caching is not False

    @property
    def place(self) -> Mapping[str, str]:
        """Return the engines for parts of the model."""
        return self.execution.place or {}

    @property
    def names_native(self) -> bool:
        """Return True if the native engine is named, for the model or for parts of it. Only then it draws a module's random numbers."""
        return "native" in (self.engine, *(e.partition(" on ")[0] for e in self.place.values()))

    @property
    def options(self) -> dict[str, dict[str, str]]:
        """Return vendor options by engine."""
        return {e: dict(self.execution.options_for(e)) for e in self.execution.engine_options or {}}

    @property
    def static_shape(self) -> bool:
        """Return True if the model is compiled for fixed shapes only."""
        return bool(self.execution.static_shape) or bool(self.execution.fixed_shapes)

    def for_regions(self) -> SessionRequest:
        """Return the demands that also hold for a vendor engine that computes one region: options, caching, optimization and threads."""
        execution = self.execution
        return SessionRequest(
            policy=Policy(
                execution=ExecutionPolicy(
                    engine_options=execution.engine_options,
                    caching=execution.caching,
                    optimization_level=execution.optimization_level,
                )
            ),
            threads=self.threads,
        )

    def released(self) -> SessionRequest:
        """Return the request without the user's module and inputs, for a session to keep."""
        return replace(self, examples=None, check=None)


def session_request(
    *,
    device: str | DeviceId | None,
    engine: str | None,
    backend: str | None,
    policies: Sequence[PolicyLike],
    fp16: bool,
    strict: bool | None,
    threads: int | None,
) -> SessionRequest:
    """Merge arguments and policies (the first has the highest precedence). Raises PolicyError, DeviceUnavailable, EngineUnavailable."""
    arguments = {
        "engine": _engine(engine, backend),
        "target": None if device is None else str(DeviceId.parse(device)),
        "strict": strict,
    }
    resolved = effective_policy(arguments, *policies, engines=engine_names())
    execution = resolved.policy.execution
    named = _device(execution.target, resolved.origin_of("execution.target"))
    _check_fp16(fp16, execution.precision)
    return SessionRequest(
        policy=resolved.policy,
        device=named,
        permit=DType.FLOAT16 if fp16 else None,
        threads=thread_count(threads),
        demanded=demanded_fields(resolved, fp16),
    )


def kernels_key(kernels: KernelPolicy | None) -> str:
    """Return demands on kernels as text for keys of the store. Equal demands have equal texts."""
    return "" if kernels is None else json.dumps(kernels.to_dict(), sort_keys=True)


def demanded_fields(resolved: Resolved, fp16: bool = False) -> dict[str, Any]:
    """Return every demanded field with its value and origin as text."""
    demanded = {
        f: f"{_plain(v)} ({origin})"
        for f, v in resolved.policy.execution.set_fields().items()
        if f != "engine_order" and (origin := resolved.origin_of(f"execution.{f}")) != "built-in"
    }
    if fp16:
        demanded["fp16"] = "True (argument)"
    if any(resolved.policy.kernel.layers):
        demanded["kernel_policy"] = resolved.policy.kernel.to_dict()["kernel"]
    return demanded


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
    return lookup(name).name


def _device(target: str | None, origin: str) -> DeviceId | None:
    """Return the named device. The built-in ``auto`` means that none was named."""
    return None if target is None or origin == "built-in" else DeviceId.parse(target)


def _check_fp16(fp16: bool, precision: str | None) -> None:
    if not isinstance(fp16, bool):
        raise PolicyError("session", "fp16 must be True or False", got=repr(fp16), do="Give a bool.")
    if fp16 and precision not in (None, "model", DType.FLOAT16.value):
        raise PolicyError(
            "session",
            "fp16=True contradicts the policy's precision",
            got=f"precision={precision!r}",
            do="Drop one of the two.",
        )


def thread_count(threads: int | None, who: str = "session") -> int:
    """Return the number of CPU threads: the argument, else XPU_NUM_THREADS, else every usable core. Raises InputError for another kind of
    value, PolicyError for too many.
    """
    if threads is not None:
        count = check_count(who, "threads", threads)
    else:
        count = env.get_int("XPU_NUM_THREADS") or cpu().usable_cores
    if count > MAX_THREADS:
        do = f"Give at most {MAX_THREADS}; this machine has {cpu().usable_cores} usable cores."
        raise PolicyError(who, "threads are too many", got=str(count)[:40], do=do)
    return count


def _plain(value: Any) -> Any:
    """Return a value whose text has no classes of mappings."""
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value
