"""The devices of this machine: processor, CUDA devices, vendors' libraries, and every engine's devices with the reason of each refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..decisions import Reason, Support
from ..engines import engine_names, lookup
from ..errors import EngineUnavailable, PluginError, UnavailableError
from ..protocols import DeviceFact
from ..runtime.device import CpuFacts, CudaReport, LibraryStatus, cpu, cuda, libraries

__all__ = ["EngineReport", "Inventory", "engine_report", "first_clause", "inventory", "support_json"]

_MAX_CLAUSE = 100  # characters


def support_json(support: Support) -> dict[str, Any]:
    """Return a Support as plain data."""
    code = None if support.code is None else support.code.value
    return {"ok": support.ok, "code": code, "reason": support.reason, "do": support.do}


def first_clause(text: str) -> str:
    """Return the part of a reason before the first semicolon, at most 100 characters: paths and vendors' texts follow it."""
    clause = text.partition("; ")[0].rstrip(".")
    return clause if len(clause) <= _MAX_CLAUSE else clause[: _MAX_CLAUSE - 3].rstrip() + "..."


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One engine: whether a supported version is installed, and its devices, usable or not."""

    name: str
    title: str
    version: str | None
    installed: Support
    devices: tuple[DeviceFact, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
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
    """The content of ``xpu devices``."""

    cpu: CpuFacts
    cuda: CudaReport
    libraries: tuple[LibraryStatus, ...]
    engines: tuple[EngineReport, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "cpu": self.cpu.to_json(),
            "cuda": self.cuda.to_json(),
            "libraries": [x.to_json() for x in self.libraries],
            "engines": [e.to_json() for e in self.engines],
        }


def engine_report(name: str) -> EngineReport:
    """Return the report of one engine. A plug-in that cannot be imported is reported as not installed, with its error."""
    try:
        plugin = lookup(name)
    except UnavailableError as error:
        rejected = error.decision.rejected[0] if error.decision and error.decision.rejected else None
        # Without a decision, the error is that of a plug-in that cannot be imported.
        code = rejected.code if rejected else Reason.RUN_FAILED
        text = error.what if error.got is None else f"{error.what}: {error.got}"
        return EngineReport(name, name, None, Support.no(code, text, do=error.do))
    installed = plugin.installed()
    if not installed:
        return EngineReport(plugin.name, plugin.title, plugin.version(), installed)
    try:
        engine = plugin.load_devices()
        return EngineReport(plugin.name, plugin.title, engine.version(), installed, engine.devices())
    except Exception as error:  # The error of a plug-in is a reason. One of a built-in engine is a bug.
        from ..faults import of_plugin

        ours = EngineUnavailable | PluginError
        failure = error if isinstance(error, ours) else of_plugin(error, f"engine {name!r}")
        if failure is None:
            raise
        support = Support.no(Reason.RUN_FAILED, f"{failure.what}: {failure.got}", do=failure.do)
        return EngineReport(plugin.name, plugin.title, plugin.version(), support)


def inventory(progress: Callable[[str], None] = lambda _: None) -> Inventory:
    """Return everything found on this machine. Loads vendors' libraries; builds nothing."""
    progress("processor, CUDA devices and libraries")
    processor, cuda_report, library_reports = cpu(), cuda(), libraries()
    engines = []
    for name in engine_names():
        progress(f"engine {name}")
        engines.append(engine_report(name))
    return Inventory(processor, cuda_report, library_reports, tuple(engines))
