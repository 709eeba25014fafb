"""The device under test: the native engine on a device, a user's backend with its target, or a vendor's engine.

subject("cpu"), subject("cuda:0"), subject("cpu:x86-64-v3")
subject("onnxruntime", device="cuda:0")
subject(ToyBackend(), target=ToyTarget()), subject("mypackage.backend:ToyBackend", target="mypackage.target:ToyTarget")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...codegen.target import CodegenTarget
from ...compiler import compile as compile_graph
from ...compiler.resolve import resolve_target
from ...errors import DeviceUnavailable, EngineUnavailable, InputError, XpuError
from ...ir import Graph
from ...plugins import loader as plugins
from ...program.program import CompiledProgram
from ...runtime import Device
from ...runtime.backends.base import RuntimeBackend
from ...targets import DEVICE_KINDS, DeviceId

__all__ = ["DeviceUnderTest", "subject"]


@dataclass(frozen=True)
class DeviceUnderTest:
    """The engine or kernels that a suite checks. ``target``: the target of generated code, None for a vendor's engine. ``device``: a name, or a backend."""

    name: str
    engine: str
    device: Any
    target: CodegenTarget | None = None

    @property
    def is_native(self) -> bool:
        """Return True if xpuruntime compiles the programs, False for a vendor's engine."""
        return self.target is not None

    @property
    def kind(self) -> str:
        """Return ``cpu``, ``cuda``, or the backend's own kind."""
        if isinstance(self.device, str):
            return DeviceId.parse(self.device).kind
        return str(self.device.kind)

    def program(self, graph: Graph, **options: Any) -> CompiledProgram:
        """Compile a graph for the target. Raises the errors of ``compile``."""
        assert self.target is not None
        return compile_graph(graph, target=self.target, **options)

    def facts(self) -> dict[str, Any]:
        """Return engine and version, device and its name, and target."""
        facts: dict[str, Any] = {"asked": self.name, "engine": self.engine, "device": str(self.device)}
        if self.target is not None:
            facts["target"] = self.target.name
        if not isinstance(self.device, str):
            facts["device"] = f"{type(self.device).__name__} ({self.kind})"
        from ...engines import lookup

        facts["version"] = lookup(self.engine).version()
        facts["machine"] = _machine(self.kind, self.device)
        return facts


def _machine(kind: str, device: Any) -> str:
    from ...runtime import cpu, cuda

    if kind == "cuda" and isinstance(device, str):
        index = DeviceId.parse(device).index
        return next((d.name for d in cuda().devices if d.index == index), "")
    return cpu().model


def subject(where: Any = "cpu", *, target: Any = None, device: str | None = None) -> DeviceUnderTest:
    """Return the device under test that a user named.

    where:  a device (``cpu``, ``cuda``, ``cuda:1``), a native target (``cpu:x86-64-v3``, ``cuda:sm_90``), an engine, a backend, or the
            dotted name of a backend class: ``package.module:Backend``.
    target: target of a backend: a CodegenTarget, the name of a native target, or ``package.module:Target``.
    device: device of a vendor's engine. Default: ``cpu``.
    Raises InputError for an argument that does not apply, DeviceUnavailable, EngineUnavailable, BuildError.
    """
    if not isinstance(where, str):
        _reject("device", device, "the backend has its own device", "Leave it out.")
        return _ported(where, target, type(where).__name__)
    kind, _, suffix = where.partition(":")
    if kind in DEVICE_KINDS:
        _reject("device", device, f"{where} is the device", f"Leave it out, or name it instead of {where}.")
        return _native(where, target)
    if where == "native":
        return _native(device or "cpu", target)
    if suffix:
        _reject("device", device, "the backend has its own device", "Leave it out.")
        return _ported(_found(where), target, where)
    try:
        plugin = _plugin(where)
    except EngineUnavailable as error:
        raise EngineUnavailable(
            "conformance",
            "no device, engine or backend of that name",
            got=repr(where),
            do=f"Name a device (cpu, cuda:0), an engine, or package.module:Backend. {error.do}",
            decision=error.decision,
        ) from error
    if plugin.name == "native":
        return _native(device or "cpu", target)
    installed = plugin.installed()
    if not installed:
        raise EngineUnavailable(f"engine {plugin.name!r}", installed.reason, do=installed.do)
    _reject("target", target, f"{plugin.name} compiles for its own targets", "Leave it out.")
    return DeviceUnderTest(where, plugin.name, str(DeviceId.parse(device or "cpu")))


def _reject(name: str, value: Any, why: str, do: str) -> None:
    """Raise InputError for an argument that does not apply to this subject."""
    if value is not None:
        raise InputError("conformance", f"{name} does not apply: {why}", got=repr(value)[:80], do=do)


def _plugin(name: str) -> plugins.EnginePlugin:
    from ...engines import lookup

    return lookup(name)


def _native(where: str, target: Any) -> DeviceUnderTest:
    kind, _, level = where.partition(":")
    is_level = level and not level.isdecimal()
    device = str(DeviceId.parse(kind if is_level else where))
    Device(device)  # raises if the device does not exist
    if target is None:
        if kind not in ("cpu", "cuda"):
            raise DeviceUnavailable(
                f"device {device}",
                "belongs to a separate package, and its target is unknown",
                do="Name its target: --target package.module:Target.",
            )
        target = where if is_level else device  # a device name, so that its libraries can be queried
    return DeviceUnderTest(where, "native", device, _target(target))


def _ported(backend: Any, target: Any, name: str) -> DeviceUnderTest:
    instance = backend if isinstance(backend, RuntimeBackend) else _called(backend, name)
    if not isinstance(instance, RuntimeBackend):
        raise DeviceUnavailable(
            "conformance",
            "is not a backend of native programs",
            got=f"{name}: {type(instance).__name__}",
            do="Name a subclass of xpuruntime.PythonBackend, or an instance of one.",
        )
    if target is None:
        raise DeviceUnavailable(
            f"backend {name}",
            "its target is unknown",
            do="Name its target: target=ToyTarget(), or --target package.module:ToyTarget.",
        )
    return DeviceUnderTest(name, "native", instance, _target(target))


def _target(value: Any) -> CodegenTarget:
    if isinstance(value, str) and value.partition(":")[0] not in ("cpu", "cuda"):
        value = _found(value)
    if callable(value) and not isinstance(value, CodegenTarget):
        value = _called(value, value.__name__ if isinstance(value, type) else type(value).__name__)
    return resolve_target(value)


def _called(function: Any, name: str) -> Any:
    """Return what a user's class or function returns, and anything else unchanged. Raises DeviceUnavailable."""
    if not callable(function):
        return function
    try:
        return function()
    except XpuError:
        raise
    except Exception as error:  # any error of a foreign class; the message names the class
        raise DeviceUnavailable(
            "conformance",
            f"{name} cannot be called without arguments: {type(error).__name__}: {error}"[:300],
            got=repr(function)[:80],
            do="Name a class or function that needs no arguments, or give an instance.",
        ) from error


def _found(dotted: str) -> Any:
    try:
        return plugins.load_dotted(dotted)
    except XpuError:
        raise
    except Exception as error:  # any error of a foreign module; the message names the module
        raise DeviceUnavailable(
            "conformance",
            f"cannot be imported: {type(error).__name__}: {error}",
            got=repr(dotted),
            do="Name a device (cpu, cuda:0), an engine, or package.module:Backend of a package that Python finds here.",
        ) from error
