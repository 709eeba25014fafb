"""Validators of a lock: the facts of this machine and its packages under which the locked choices hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ... import __version__
from ...engines import lookup
from ...errors import EngineUnavailable, LockChange, PluginError
from ...frontends.torch.opaque import torch_version
from ...program.lock import Lock
from ...protocols import EngineRequest, ModelSource
from ...runtime.device import cpu, cuda, libraries
from ...runtime.library_versions import reported_version
from ...targets import DeviceId
from ..selection.request import SessionRequest

__all__ = [
    "changed_validators",
    "changes_from",
    "engines_of",
    "facts_request",
    "region_validators",
    "validators_of",
]

EVALUATORS: Mapping[str, Callable[[], str]] = {
    "interpreter": lambda: f"NumPy {np.__version__}",
    "torch": torch_version,
}
"""Versions of the evaluators of regions that are no engines."""


def engines_of(lock: Lock) -> tuple[str, ...]:
    """Return the engines that a lock rests on. Borders of regions are values of our IR, so ours is one of them."""
    return lock.engines if not lock.regions else tuple(dict.fromkeys(("native", *lock.engines)))


def facts_request(request: SessionRequest) -> EngineRequest:
    """Return the request that the facts of engines are read for."""
    return EngineRequest(request.device or DeviceId("cpu"), threads=request.threads, kernels=request.kernels)


def validators_of(model: ModelSource, engines: Sequence[str], request: EngineRequest) -> dict[str, str]:
    """Return name and value of each fact: model, package, engines with everything that decides their artifacts, device and driver.

    A vendor's engine generates code for the processor itself, so the processor's model is one of its facts. For the native engine the
    instruction-set level is enough.
    """
    facts = {"model": model.digest, "xpuruntime": __version__}
    for engine in engines:
        facts |= _engine_facts(engine, request)
    return facts | _device_facts(request.device)


def _engine_facts(engine: str, request: EngineRequest) -> dict[str, str]:
    if engine in EVALUATORS:
        return {engine: EVALUATORS[engine]()}
    try:
        plugin = lookup(engine)
    except EngineUnavailable as error:  # the package of a third-party engine is gone
        return {engine: f"not available: {error.what}"}
    installed = plugin.installed()
    if not installed:
        return {engine: f"not available: {installed.reason}"}
    try:
        module = plugin.load()
        facts = {engine: str(module.version())}
    except PluginError as error:
        return {engine: f"not available: {error.what}"}
    facts |= {f"{engine}.{name}": str(value) for name, value in module.fingerprint(request).items()}
    if not plugin.chooses_kernels:
        facts["processor"] = cpu().model
    return facts


def _device_facts(device: DeviceId) -> dict[str, str]:
    """Return GPU, driver and loaded libraries of a CUDA device; empty for others."""
    if device.kind != "cuda":
        return {}
    report = cuda()
    gpu = next((d for d in report.devices if d.index == device.index), None)
    facts = {"driver": report.driver_version, "gpu": "absent" if gpu is None else gpu.name}
    loaded = ((s.name, reported_version(s)) for s in libraries())
    return facts | {f"library {name}": version for name, version in loaded if version}


def region_validators(
    model: Mapping[str, str], regions: Sequence[tuple[str, str]], request: EngineRequest
) -> dict[str, str]:
    """Return the facts of regions, as ``validators_of`` does: of each engine on its device, and of each GPU.

    model: digests of what is run. regions: engine and device of each. A fact that differs between two devices has its device in its name.
    """
    facts = {**model, "xpuruntime": __version__}
    for engine, device in dict.fromkeys((("native", "cpu"), *regions)):
        at = DeviceId.parse(device)
        at = at if at.kind == "cuda" else DeviceId("cpu")  # other devices have no facts of their own
        own = _engine_facts(engine, replace(request, device=at)) | _device_facts(at)
        for name, value in own.items():
            facts[name if facts.get(name, value) == value else f"{name} on {device}"] = value
    return facts


def changed_validators(lock: Lock, model: ModelSource, request: EngineRequest) -> tuple[LockChange, ...]:
    """Return the validators of a lock that have other values here."""
    here = {"model": model.digest}
    if lock.validators.get("model") == model.digest:  # the other facts say nothing about another model
        here = validators_of(model, engines_of(lock), request)
    return changes_from(lock, here)


def changes_from(lock: Lock, here: Mapping[str, str]) -> tuple[LockChange, ...]:
    """Return the validators of a lock that differ from the facts here. If only one fact is given, only that one is compared."""
    names = dict.fromkeys((*lock.validators, *here)) if len(here) > 1 else here
    return tuple(
        (name, lock.validators.get(name, "absent"), here.get(name, "absent"))
        for name in names
        if lock.validators.get(name) != here.get(name)
    )
