"""DeviceUnderTest: what is judged. The native engine on a device, a backend of somebody's own with its target, or a vendor's engine.

subject("cpu"), subject("cuda:0"), subject("cpu:x86-64-v3")
subject("onnxruntime", device="cuda:0")
subject(ToyBackend(), target=ToyTarget()), subject("mypackage.backend:ToyBackend", target="mypackage.target:ToyTarget")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import plugins
from ...codegen.target import CodegenTarget
from ...compiler import compile as compile_graph
from ...compiler.resolve import resolve_target
from ...errors import DeviceUnavailable, EngineUnavailable, XpuError
from ...ir import Graph
from ...program.program import CompiledProgram
from ...runtime import Device
from ...runtime.backends.base import RuntimeBackend
from ...targets import DEVICE_KINDS, DeviceId

__all__ = ["DeviceUnderTest", "subject"]


@dataclass(frozen=True)
class DeviceUnderTest:
    """``target`` is what code is generated for, None of a vendor's engine; ``device`` a device's name, or a backend."""

    name: str
    engine: str
    device: Any
    target: CodegenTarget | None = None

    @property
    def is_native(self) -> bool:
        """Whether our compiler writes its code."""
        return self.target is not None

    @property
    def kind(self) -> str:
        """``cpu``, ``cuda``, or what the backend calls itself."""
        if isinstance(self.device, str):
            return DeviceId.parse(self.device).kind
        return str(self.device.kind)

    def program(self, graph: Graph, **options: Any) -> CompiledProgram:
        """The graph compiled for it. Raises what ``compile`` raises."""
        assert self.target is not None
        return compile_graph(graph, target=self.target, **options)

    def facts(self) -> dict[str, Any]:
        """Engine and version, device and its name, target."""
        found: dict[str, Any] = {"asked": self.name, "engine": self.engine, "device": str(self.device)}
        if self.target is not None:
            found["target"] = self.target.name
        if not isinstance(self.device, str):
            found["device"] = f"{type(self.device).__name__} ({self.kind})"
        from ...engines import lookup

        found["version"] = lookup(self.engine).version()
        found["machine"] = _machine(self.kind, self.device)
        return found


def _machine(kind: str, device: Any) -> str:
    from ...runtime import cpu, cuda

    if kind == "cuda" and isinstance(device, str):
        index = DeviceId.parse(device).index
        return next((d.name for d in cuda().devices if d.index == index), "")
    return cpu().model


def subject(where: Any = "cpu", *, target: Any = None, device: str | None = None) -> DeviceUnderTest:
    """What a user named.

    where:  a device (``cpu``, ``cuda``, ``cuda:1``), a native target (``cpu:x86-64-v3``, ``cuda:sm_90``), an engine, a backend, or where one is found:
            ``package.module:Backend``. target: of a backend that brings its own: a CodegenTarget, a native target's text, or
            ``package.module:Target``. device: of a vendor's engine; ``cpu`` by default.
    Raises DeviceUnavailable, EngineUnavailable, BuildError.
    """
    if not isinstance(where, str):
        return _ported(where, target, type(where).__name__)
    kind, _, rest = where.partition(":")
    if kind in DEVICE_KINDS or where == "native":
        return _native(where, target)
    if rest:
        return _ported(_found(where), target, where)
    try:
        plugin = _plugin(where)
    except EngineUnavailable as error:
        raise EngineUnavailable(
            "conformance",
            "nothing of that name can be judged",
            got=repr(where),
            do=f"Name a device (cpu, cuda:0), an engine, or package.module:Backend. {error.do}",
            decision=error.decision,
        ) from error
    if plugin.name == "native":
        return _native(device or "cpu", target)
    installed = plugin.installed()
    if not installed:
        raise EngineUnavailable(f"engine {plugin.name!r}", installed.reason, do=installed.do)
    return DeviceUnderTest(where, plugin.name, device or "cpu")


def _plugin(name: str) -> plugins.EnginePlugin:
    from ...engines import lookup

    return lookup(name)


def _native(where: str, target: Any) -> DeviceUnderTest:
    kind, _, level = ("cpu" if where == "native" else where).partition(":")
    named = level and not level.isdecimal()
    device = str(DeviceId.parse(kind if named else where if where != "native" else "cpu"))
    Device(device)  # raises where there is none
    if target is None:
        if kind not in ("cpu", "cuda"):
            raise DeviceUnavailable(
                f"device {device}",
                "is driven by a package of its own, and nothing says what code it takes",
                do="Name its target: --target package.module:Target.",
            )
        target = where if named else device  # by its own name: its libraries are asked what they compute
    return DeviceUnderTest(where, "native", device, _target(target))


def _ported(backend: Any, target: Any, name: str) -> DeviceUnderTest:
    made = backend if isinstance(backend, RuntimeBackend) else backend()
    if not isinstance(made, RuntimeBackend):
        raise DeviceUnavailable(
            "conformance",
            "is no backend of native programs",
            got=f"{name}: {type(made).__name__}",
            do="Name a class that derives from xpuruntime.PythonBackend, or an object of one.",
        )
    if target is None:
        raise DeviceUnavailable(
            f"backend {name}",
            "nothing says what code it takes",
            do="Name its target: target=ToyTarget(), or --target package.module:ToyTarget.",
        )
    return DeviceUnderTest(name, "native", made, _target(target))


def _target(given: Any) -> CodegenTarget:
    if isinstance(given, str) and given.partition(":")[0] not in ("cpu", "cuda"):
        given = _found(given)
    if callable(given) and not isinstance(given, CodegenTarget):
        given = given()
    return resolve_target(given)


def _found(dotted: str) -> Any:
    try:
        return plugins.load_dotted(dotted)
    except XpuError:
        raise
    except Exception as error:  # another's module: whatever it raises, the reader needs to know whose it was
        raise DeviceUnavailable(
            "conformance",
            f"cannot be imported: {type(error).__name__}: {error}",
            got=repr(dotted),
            do="Name a device (cpu, cuda:0), an engine, or package.module:Backend of a package that Python finds here.",
        ) from error
