"""Precedence: call argument > policy argument > ``with_policy`` > environment > built-in default.

``resolve`` is pure: it merges layers to the effective policy with the origin of each field. ``effective_policy`` collects the layers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..env import VARIABLES
from ..errors import PolicyError
from .context import current_policy
from .execution_policy import ExecutionPolicy
from .fields.record import fields_of
from .files.load import PolicyLike, load_policy
from .lint import WEIGHTS_ADVICE, weights_clash
from .policy import Policy

__all__ = [
    "PolicyLayer",
    "Resolved",
    "autocast_policy",
    "builtin_policy",
    "effective_policy",
    "environment_layers",
    "resolve",
]


@dataclass(frozen=True, slots=True)
class PolicyLayer:
    """A policy and a description of its origin: ``argument``, ``policy p.yaml``, ``environment XPU_ENGINE``, ``built-in``."""

    origin: str
    policy: Policy


@dataclass(frozen=True, slots=True)
class Resolved:
    """The effective policy. ``origins`` maps each field that is set (``execution.engine``, ``kernel.matmul``,
    ``kernel.rules``, ``execution.engine_options.openvino.NUM_STREAMS``) to the origin of the layer that set it.
    """

    policy: Policy
    origins: Mapping[str, str]

    def without(self, *fields: str) -> Resolved:
        """Return a copy without these fields of the ExecutionPolicy, for callers that decide them in another way."""
        execution = replace(self.policy.execution, **dict.fromkeys(fields))
        return Resolved(Policy(kernel=self.policy.kernel, execution=execution), self.origins)

    def origin_of(self, field: str) -> str:
        """Return the origin of a field, of a mapping those of its entries; ``"unset"`` if no layer sets it."""
        if field in self.origins:
            return self.origins[field]
        entries = (origin for name, origin in self.origins.items() if name.startswith(f"{field}."))
        return " and ".join(dict.fromkeys(entries)) or "unset"


def resolve(layers: Iterable[PolicyLayer]) -> Resolved:
    """Merge layers; the first one is the highest. Raises PolicyError for demands that exclude each other."""
    effective = Policy()
    origins: dict[str, str] = {}
    for layer in reversed(tuple(layers)):
        kernel = replace(layer.policy.kernel, origin=layer.policy.kernel.origin or layer.origin)
        under = tuple(replace(u, origin=u.origin or layer.origin) for u in kernel.under)
        effective = effective.merge(
            Policy(kernel=replace(kernel, under=under), execution=layer.policy.execution)
        )
        origins |= dict.fromkeys(_set_in(layer.policy), layer.origin)
    if clash := weights_clash(effective):
        raise PolicyError("policy", clash, do=WEIGHTS_ADVICE)
    return Resolved(effective, dict(sorted(origins.items())))


def _set_in(policy: Policy) -> Iterator[str]:
    for layer in policy.kernel.layers:
        for name in fields_of(type(layer)):
            if getattr(layer, name):
                yield f"kernel.{name}"
    for name, value in policy.execution.set_fields().items():
        yield from _leaves(f"execution.{name}", value)


def _leaves(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    else:
        yield path


@functools.cache
def autocast_policy() -> Policy:
    """Return the built-in table of ``xpuruntime.pytorch.autocast``, as a policy with that field alone."""
    return load_policy(Path(__file__).parent / "builtin" / "autocast.yaml")


@functools.cache
def builtin_policy() -> Policy:
    """Return the built-in default, from the file in this package."""
    return load_policy(Path(__file__).parent / "builtin" / "default.yaml")


def environment_layers(
    environ: Mapping[str, str], load: Callable[[PolicyLike], Policy] = load_policy
) -> tuple[PolicyLayer, ...]:
    """Return the layers of XPU_ENGINE, XPU_DEVICE and the file that XPU_POLICY names, highest first. Raises PolicyError."""
    layers = []
    for variable, field in (("XPU_ENGINE", "engine"), ("XPU_DEVICE", "target")):
        if value := environ.get(variable, "").strip():
            origin = f"environment {variable}"
            try:
                policy = load(ExecutionPolicy(**{field: value}))  # type: ignore[arg-type]
            except PolicyError as error:
                do = f"{error.do} Or unset it ({VARIABLES[variable].meaning})."
                raise PolicyError(origin, error.what, got=error.got, do=do) from error
            layers.append(PolicyLayer(origin, policy))
    if value := environ.get("XPU_POLICY", "").strip():
        path = Path(value).expanduser()
        policy = load("auto" if value == "auto" else path)
        layers.append(PolicyLayer(f"environment XPU_POLICY ({path})", policy))
    return tuple(layers)


def effective_policy(
    arguments: Mapping[str, Any] | None = None,
    *policies: PolicyLike,
    environ: Mapping[str, str] | None = None,
    kernels: Iterable[str] = (),
    engines: Iterable[str] = (),
    builtin: bool = True,
) -> Resolved:
    """Return the effective policy of one call.

    arguments: ExecutionPolicy fields that are arguments of the call; None values are unset.
    given:     policy arguments of the call (``kernel_policy=``, ``exec_policy=``), highest first.
    environ:   environment variables; None reads the process's.
    kernels:   registered kernel names; ``engines``: registered engine names.
    builtin:   True to use the built-in default as the lowest layer.

    Raises PolicyError.
    """
    load = functools.partial(load_policy, kernels=tuple(kernels), engines=tuple(engines))
    direct = {k: v for k, v in (arguments or {}).items() if v is not None}
    layers = [PolicyLayer("argument", load(ExecutionPolicy(**direct)))] if direct else []
    layers += [PolicyLayer(_origin(policy), load(policy)) for policy in policies]
    layers.append(PolicyLayer("with_policy", current_policy()))
    layers += environment_layers(os.environ if environ is None else environ, load)
    if builtin:
        layers.append(PolicyLayer("built-in", builtin_policy()))
    return resolve(layers)


def _origin(policy: PolicyLike) -> str:
    if isinstance(policy, str | os.PathLike) and policy != "auto":
        return f"policy {os.fspath(policy)}"
    return "policy argument"
