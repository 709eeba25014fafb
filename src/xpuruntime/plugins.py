"""Plugins: dotted strings that are imported when chosen, never before.

Our own engines stand in one static table (``xpuruntime.engines.ENGINES``); third parties come in through the
entry-point groups ``xpuruntime.engines`` and ``xpuruntime.backends``, each entry naming an ``EnginePlugin``
(or a ``Backend`` class).
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .decisions import Reason, Support
from .errors import EngineUnavailable

__all__ = ["EnginePlugin", "entry_points", "load_dotted", "owners", "package_version"]


@dataclass(frozen=True, slots=True)
class EnginePlugin:
    """What an engine's ``plugin.py`` says: names and strings only.

    package:  distribution names that can provide the engine, any one of them.
    module:   import name of the vendor's Python package.
    install:  the line that installs it.
    versions: (lowest, first unsupported) version of the vendor; both ends are tested.
    formats:  model formats it reads: ``onnx``, ``openvino-ir``.
    entry:    dotted string of a module that has the functions of ``protocols.Engine``.
    compiles_in_build: ``build`` is what takes long; False where an artifact is empty and loading compiles.
    devices:  dotted string of a module with ``devices`` and ``version`` alone, which imports less than ``entry``; "": ``entry`` itself.
    chooses_kernels: its kernels are ours to choose, so a KernelPolicy enters its requests; a vendor's are the vendor's.
    """

    name: str
    title: str
    aliases: tuple[str, ...]
    package: tuple[str, ...]
    module: str
    install: str
    versions: tuple[str, str]
    formats: tuple[str, ...]
    entry: str
    chooses_kernels: bool = False
    compiles_in_build: bool = True
    devices: str = ""

    def installed(self) -> Support:
        """Whether the vendor's package is there in a supported version; imports nothing."""
        if not _importable(self.module):
            return Support.no(
                Reason.NOT_INSTALLED,
                f"the Python package {self.module!r} is not installed",
                do=f"Run: {self.install}",
            )
        version = self.version()
        low, high = self.versions
        if version is not None and not version_key(low) <= version_key(version) < version_key(high):
            return Support.no(
                Reason.VERSION_UNSUPPORTED,
                f"{self.module} {version} is installed; supported are versions from {low} up to, not including, {high}",
                do=f"Run: {self.install}",
            )
        return Support.yes()

    def version(self) -> str | None:
        """Version of the vendor's distribution, or None when no distribution records one."""
        return next((v for v in map(package_version, self.package) if v), None)

    def load(self) -> Any:
        """The engine's module (``protocols.Engine``). Imports it, and so may import the vendor. Raises EngineUnavailable where another
        package's names no module.
        """
        return self._load(self.entry)

    def load_devices(self) -> Any:
        """Return a module with the functions ``devices`` and ``version`` of the engine. Raise EngineUnavailable as ``load``."""
        return self._load(self.devices or self.entry)

    def _load(self, dotted: str) -> Any:
        try:
            return load_dotted(dotted)
        except (ImportError, AttributeError) as error:
            if dotted.partition(".")[0] == __package__:
                raise
            do = "Repair or uninstall the package that brings the entry point."
            who = f"engine {self.name!r}"
            raise EngineUnavailable(
                who, f"its module {dotted!r} cannot be imported", got=error, do=do
            ) from error


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (
        ModuleNotFoundError,
        ValueError,
    ):  # a parent package is missing, or a module without a spec stands there
        return False


def package_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_key(version: str) -> tuple[int, ...]:
    """The numeric release part of a version as a comparable tuple: ``"2026.4.0-rc2"`` -> (2026, 4).

    Zeros at the end say nothing (PEP 440): 1.18 is 1.18.0.
    """
    release = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(p) for p in release[0].split(".")] if release else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def load_dotted(path: str) -> Any:
    """``"package.module:name"`` or ``"package.module"`` -> the object. Raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    loaded = importlib.import_module(module)
    return functools.reduce(getattr, name.split("."), loaded) if name else loaded


@functools.cache
def entry_points(group: str) -> dict[str, Callable[[], Any]]:
    """Third-party plugins of a group: name -> function that loads it. Reading the metadata takes about 20 ms once."""
    return {e.name: e.load for e in importlib.metadata.entry_points(group=group)}


_GROUPS = ("xpuruntime.engines", "xpuruntime.backends", "xpuruntime.kernels")


@functools.cache
def owners() -> dict[str, str]:
    """Whose a module is: the top name of each plug-in's modules -> ``plug-in 'acme' (package acme-npu 1.2, entry point of xpuruntime.engines)``."""
    found: dict[str, str] = {}
    for group in _GROUPS:
        for entry in importlib.metadata.entry_points(group=group):
            package = f"package {entry.dist.name} {entry.dist.version}" if entry.dist else "no package"
            listed = (entry.dist.read_text("top_level.txt") or "").split() if entry.dist else []
            for top in (entry.module.partition(".")[0], *listed):
                found.setdefault(top, f"plug-in {entry.name!r} ({package}, entry point of {group})")
    found.pop("xpuruntime", None)
    return found
