"""Validators of a lock: the facts of this machine and its packages under which the locked choices hold."""

from __future__ import annotations

from ... import __version__
from ...engines import lookup
from ...errors import EngineUnavailable, LockChange
from ...program.lock import Lock
from ...protocols import EngineRequest, ModelSource
from ...runtime.device import cpu, cuda, libraries
from ...targets import DeviceId

__all__ = ["changed_validators", "validators_of"]


def validators_of(model: ModelSource, engine: str, request: EngineRequest) -> dict[str, str]:
    """Return name and value of each fact: model, package, engine with everything that decides its artifacts, device and driver.

    A vendor's engine generates code for the processor itself, so the processor's model is one of its facts. For the native engine the
    instruction-set level is enough.
    """
    facts = {"model": model.digest, "xpuruntime": __version__}
    try:
        plugin = lookup(engine)
    except EngineUnavailable as error:  # the package of a third-party engine is gone
        return facts | {engine: f"not available: {error.what}"}
    installed = plugin.installed()
    if not installed:
        return facts | {engine: f"not available: {installed.reason}"}
    module = plugin.load()
    facts |= {engine: str(module.version())}
    facts |= {f"{engine}.{name}": str(value) for name, value in module.fingerprint(request).items()}
    if not plugin.chooses_kernels:
        facts["processor"] = cpu().model
    return facts | _device_facts(request.device)


def _device_facts(device: DeviceId) -> dict[str, str]:
    """Return GPU, driver and loaded libraries of a CUDA device; empty for others."""
    if device.kind != "cuda":
        return {}
    report = cuda()
    gpu = next((d for d in report.devices if d.index == device.index), None)
    facts = {"driver": report.driver_version, "gpu": "absent" if gpu is None else gpu.name}
    return facts | {f"library {s.name}": s.version for s in libraries() if s.version}


def changed_validators(
    lock: Lock, model: ModelSource, engine: str, request: EngineRequest
) -> tuple[LockChange, ...]:
    """Return the validators of a lock that have other values here."""
    here = {"model": model.digest}
    if lock.validators.get("model") == model.digest:  # the other facts say nothing about another model
        here = validators_of(model, engine, request)
    names = dict.fromkeys((*lock.validators, *here)) if len(here) > 1 else here
    return tuple(
        (name, lock.validators.get(name, "absent"), here.get(name, "absent"))
        for name in names
        if lock.validators.get(name) != here.get(name)
    )
