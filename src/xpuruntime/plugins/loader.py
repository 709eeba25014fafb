"""Plug-ins: dotted names that are imported only when they are chosen.

The built-in engines are listed in one static table (``xpuruntime.engines.ENGINES``). Third parties use the entry-point groups
``xpuruntime.engines`` and ``xpuruntime.backends``; each entry names an ``EnginePlugin`` (or a ``Backend`` class).
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..decisions import Reason, Support
from ..errors import EngineUnavailable
from .packages import importable

__all__ = ["EnginePlugin", "entry_points", "load_dotted", "owners", "package_version"]


@dataclass(frozen=True, slots=True)
class EnginePlugin:
    """The description of an engine in its ``plugin.py``: names and strings only.

    package:  distributions that provide the engine; any one of them is enough.
    module:   import name of the vendor's Python package.
    install:  the command that installs it.
    versions: (lowest, first unsupported) version of the vendor; both ends are tested.
    formats:  model formats it reads: ``onnx``, ``openvino-ir``, ``tensorrt-plan``.
    entry:    dotted name of a module with the functions of ``protocols.Engine``.
    compiles_in_build: True if ``build`` does the slow work; False if the artifact is empty and ``load`` compiles.
    devices:  dotted name of a module with only ``devices`` and ``version``, which imports less than ``entry``; "" for ``entry`` itself.
    chooses_kernels: True if a KernelPolicy can choose its kernels and so is part of its requests.
    cuda:     True if it has CUDA devices; others run the regions of a mix on a GPU's host. None asks its function ``devices``.
    holds_memory: False if none of its executables is a ``HoldsMemory``, so that a session with ``memory_bytes`` builds nothing. None asks
              the loaded executable.
    wide_integers: True if it computes products with an operand of more than 8 bits (16-bit activations) in integers, False if in floats. None is
              not known, so ``precision: int8`` is refused for them.
    device_options: kinds of devices by the name of a vendor option that is for them alone. A session ignores it on a device that the user
              did not name: a fallback, or the host in a mix.
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
    cuda: bool | None = None
    holds_memory: bool | None = None
    wide_integers: bool | None = None
    device_options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def installed(self) -> Support:
        """Tell if the vendor's package is installed in a supported version, without importing it."""
        if not importable(self.module):
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
                f"{self.module} {version} is installed; supported versions are >= {low} and < {high}",
                do=f"Run: {self.install}",
            )
        return Support.yes()

    def version(self) -> str | None:
        """Return the version of the vendor's distribution, or None if no distribution is installed."""
        return next((v for v in map(package_version, self.package) if v), None)

    def has_cuda(self) -> bool:
        """Tell if the engine has CUDA devices, as the plug-in says, else as ``devices`` does. Raise EngineUnavailable as ``load``."""
        if self.cuda is None and self.installed():
            return any(fact.device.kind == "cuda" for fact in self.load_devices().devices())
        return bool(self.cuda)

    def load(self) -> Any:
        """Import the engine's module (``protocols.Engine``), which may import the vendor's package. Raises EngineUnavailable if the module
        of a third party cannot be imported.
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
            do = "Repair or uninstall the package that declares the entry point."
            who = f"engine {self.name!r}"
            raise EngineUnavailable(
                who, f"its module {dotted!r} cannot be imported", got=error, do=do
            ) from error


def package_version(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None."""
    import importlib.metadata

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_key(version: str) -> tuple[int, ...]:
    """Return the numeric release part of a version as a comparable tuple: ``"2026.4.0-rc2"`` -> (2026, 4).

    Trailing zeros are dropped (PEP 440): 1.18 equals 1.18.0.
    """
    release = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(p) for p in release[0].split(".")] if release else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def load_dotted(path: str) -> Any:
    """Import the object that ``"package.module:name"`` or ``"package.module"`` names. Raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    loaded = importlib.import_module(module)
    return functools.reduce(getattr, name.split("."), loaded) if name else loaded


@functools.cache
def entry_points(group: str) -> dict[str, Callable[[], Any]]:
    """Return the loader function of each third-party plug-in of a group. The first call reads all package metadata (about 20 ms)."""
    import importlib.metadata

    return {e.name: e.load for e in importlib.metadata.entry_points(group=group)}


_GROUPS = ("xpuruntime.engines", "xpuruntime.backends", "xpuruntime.kernels")


@functools.cache
def owners() -> dict[str, str]:
    """Return the owner of each plug-in's top-level module: ``plug-in 'acme' (package acme-npu 1.2, entry point of xpuruntime.engines)`` for ``acme``."""
    import importlib.metadata

    by_module: dict[str, str] = {}
    for group in _GROUPS:
        for entry in importlib.metadata.entry_points(group=group):
            package = f"package {entry.dist.name} {entry.dist.version}" if entry.dist else "no package"
            listed = (entry.dist.read_text("top_level.txt") or "").split() if entry.dist else []
            for top in (entry.module.partition(".")[0], *listed):
                by_module.setdefault(top, f"plug-in {entry.name!r} ({package}, entry point of {group})")
    by_module.pop("xpuruntime", None)
    return by_module
