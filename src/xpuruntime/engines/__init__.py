"""Engines: vendor runtimes and the native one. Each executes whole models, or regions of them. Importing this package imports no vendor.

``lookup("onnxrt")`` returns the ``EnginePlugin`` of a name or alias. Built-in engines are listed in ``ENGINES``; other packages add theirs
by the entry-point group ``xpuruntime.engines``.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from ..errors import EngineUnavailable
from ..plugins.loader import EnginePlugin, entry_points, load_dotted

if (
    TYPE_CHECKING
):  # never run: mypy checks that the modules of built-in engines have the functions of the protocols
    from ..inference.native import engine as native
    from ..protocols import Engine, HasKernelOptions, StoppableLoad
    from .onnxruntime import engine as onnxruntime
    from .openvino import engine as openvino
    from .qnn import engine as qnn
    from .tensorrt import engine as tensorrt

    _MODULES: tuple[Engine, Engine, Engine, Engine, Engine] = (onnxruntime, openvino, tensorrt, qnn, native)
    _WITH_KERNEL_OPTIONS: tuple[HasKernelOptions, HasKernelOptions, HasKernelOptions] = (
        onnxruntime,
        openvino,
        tensorrt,
    )
    _STOPPABLE: StoppableLoad = onnxruntime

__all__ = ["ENGINES", "engine_names", "lookup"]

ENGINES: dict[str, str] = {
    "onnxruntime": "xpuruntime.engines.onnxruntime.plugin:PLUGIN",
    "openvino": "xpuruntime.engines.openvino.plugin:PLUGIN",
    "tensorrt": "xpuruntime.engines.tensorrt.plugin:PLUGIN",
    "qnn": "xpuruntime.engines.qnn.plugin:PLUGIN",
    "native": "xpuruntime.engines.native.plugin:PLUGIN",
}
"""Name of each built-in engine -> dotted name of its plug-in, in the default order of preference."""


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines: built-in ones in their order, then third-party ones by name."""
    return (*ENGINES, *sorted(set(entry_points("xpuruntime.engines")) - set(ENGINES)))


def lookup(name: str) -> EnginePlugin:
    """Return the plug-in of an engine by its name, or by an alias of a built-in engine, in upper or lower case.

    Raises EngineUnavailable for an unknown name, with the most similar known one, and for a third-party plug-in that cannot be imported.
    """
    key = name.strip().lower()
    if key in ENGINES:
        return _built_in(key)
    for plugin in map(_built_in, ENGINES):
        if key in plugin.aliases:
            return plugin
    third_party = {entry.lower(): entry for entry in entry_points("xpuruntime.engines")}
    if key in third_party:
        return _third_party(third_party[key])
    names = [*engine_names(), *(a for e in map(_built_in, ENGINES) for a in e.aliases)]
    near = difflib.get_close_matches(key, names, n=1)
    raise EngineUnavailable(
        "engine",
        "no engine of that name",
        got=repr(name),
        do=(f"Did you mean {near[0]!r}? " if near else "") + f"Engines are {', '.join(engine_names())}.",
    )


def _built_in(name: str) -> EnginePlugin:
    plugin: EnginePlugin = load_dotted(ENGINES[name])
    return plugin


def _third_party(name: str) -> EnginePlugin:
    try:
        plugin = entry_points("xpuruntime.engines")[name]()
    except Exception as error:  # third-party code may raise anything; the message names the package
        raise EngineUnavailable(
            f"engine {name!r}",
            "its plugin cannot be imported",
            got=f"{type(error).__name__}: {error}",
            do="Repair or uninstall the package that declares the entry point.",
        ) from error
    if not isinstance(plugin, EnginePlugin):
        raise EngineUnavailable(
            f"engine {name!r}",
            "its entry point must name an xpuruntime.plugins.EnginePlugin",
            got=type(plugin).__name__,
            do="Repair or uninstall the package that declares the entry point.",
        )
    return plugin
