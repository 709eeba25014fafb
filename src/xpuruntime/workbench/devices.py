"""What this machine has: processor, CUDA devices, and every engine's devices with the vendor's reason where one says no."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..decisions import Reason, Support
from ..engines import engine_names, lookup
from ..errors import EngineUnavailable, UnavailableError
from ..faults import of_plugin
from ..protocols import DeviceFact, Engine
from ..runtime.device import CpuFacts, CudaReport, LibraryStatus, cpu, cuda, libraries

__all__ = ["EngineReport", "Inventory", "engine_report", "inventory", "support_json"]


def support_json(support: Support) -> dict[str, Any]:
    """A Support as plain data."""
    code = None if support.code is None else support.code.value
    return {"ok": support.ok, "code": code, "reason": support.reason, "do": support.do}


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One engine: whether it is installed in a supported version, and its devices, usable or not."""

    name: str
    title: str
    version: str | None
    installed: Support
    devices: tuple[DeviceFact, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "title": self.title,
            "version": self.version,
            "installed": support_json(self.installed),
            "devices": [
                {
                    "device": str(d.device),
                    "name": d.name,
                    "support": support_json(d.support),
                    "facts": dict(d.facts),
                }
                for d in self.devices
            ],
        }


@dataclass(frozen=True, slots=True)
class Inventory:
    """Everything that ``xpu devices`` shows."""

    cpu: CpuFacts
    cuda: CudaReport
    libraries: tuple[LibraryStatus, ...]
    engines: tuple[EngineReport, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "cpu": self.cpu.to_json(),
            "cuda": self.cuda.to_json(),
            "libraries": [x.to_json() for x in self.libraries],
            "engines": [e.to_json() for e in self.engines],
        }


def engine_report(name: str) -> EngineReport:
    """What one engine says of itself and its devices. A third party's plugin that cannot be imported is a reason, too."""
    try:
        plugin = lookup(name)
    except UnavailableError as error:
        rejected = error.decision.rejected[0] if error.decision and error.decision.rejected else None
        code = (
            rejected.code if rejected else Reason.RUN_FAILED
        )  # without a decision it is a plugin that cannot be imported
        text = error.what if error.got is None else f"{error.what}: {error.got}"
        return EngineReport(name, name, None, Support.no(code, text, do=error.do))
    installed = plugin.installed()
    if not installed:
        return EngineReport(plugin.name, plugin.title, plugin.version(), installed)
    try:
        engine: Engine = plugin.load()
        return EngineReport(plugin.name, plugin.title, engine.version(), installed, engine.devices())
    except Exception as error:  # a plug-in that fails is a reason; an engine of ours is not expected to
        failed = error if isinstance(error, EngineUnavailable) else of_plugin(error, f"engine {name!r}")
        if failed is None:
            raise
        support = Support.no(Reason.RUN_FAILED, f"{failed.what}: {failed.got}", do=failed.do)
        return EngineReport(plugin.name, plugin.title, plugin.version(), support)


def inventory(progress: Callable[[str], None] = lambda _: None) -> Inventory:
    """Look at everything. Opens vendors' libraries, builds nothing."""
    progress("processor and CUDA devices")
    facts, report, found = cpu(), cuda(), libraries()
    engines = []
    for name in engine_names():
        progress(f"engine {name}")
        engines.append(engine_report(name))
    return Inventory(facts, report, found, tuple(engines))
