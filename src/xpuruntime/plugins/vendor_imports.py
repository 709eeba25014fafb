"""Imports of vendors' packages with their telemetry turned off: no analytics host is contacted, no identity is written to the home folder."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

from ..errors import PluginError

__all__ = ["vendor"]

_ABSENT = object()
_IMPORTING = threading.Lock()

# Set before the import and kept, because the package may read it at any time. A value that the user set stays.
_ENVIRONMENT = {"onnxruntime": {"ORT_DISABLE_TELEMETRY": "1"}}
# Modules hidden during the import. The packages work without them.
_HIDDEN_MODULES = {"openvino": ("openvino_telemetry",)}
# Names of a package that are imported from a module on first use. OpenVINO's converter takes almost half of the time of the whole import.
_DEFERRED = {"openvino": {"convert_model": "openvino.tools.ovc"}}


def vendor(name: str) -> Any:
    """Return a vendor's package, imported on first use. Raise ImportError if it is not installed, PluginError if it is broken."""
    if name in sys.modules and sys.modules[name] is not None:
        return importlib.import_module(name)  # waits if another thread is importing it
    for variable, value in _ENVIRONMENT.get(name, {}).items():
        os.environ.setdefault(variable, value)
    deferred = _DEFERRED.get(name, {})
    package = _import_without(name, (*_HIDDEN_MODULES.get(name, ()), *deferred.values()))
    _defer(package, {n: module for n, module in deferred.items() if n not in vars(package)})
    return package


def _distributions(package: str) -> list[str]:
    """Return the installed distributions that provide an import name, such as ``onnxruntime-gpu``; the name itself without any."""
    import importlib.metadata

    providers = importlib.metadata.packages_distributions().get(package, ())
    return sorted(set(providers)) or [package.replace("_", "-")]


def _broken(name: str, error: Exception) -> PluginError:
    """Return the error of a package that is installed and whose import fails."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    package = name.partition(".")[0]
    installed = _distributions(package)
    do = f"Reinstall it: pip install --force-reinstall {installed[0]}"
    if len(installed) > 1:  # each wrote over the files of the others
        do = f"Several packages provide it: {', '.join(installed)}. Uninstall them all, and install one."
    return PluginError(
        f"package {package}", "the package is installed but cannot be imported", got=text, do=do
    )


def _import_without(name: str, modules: Collection[str]) -> ModuleType:
    """Import a module while other modules are hidden."""
    with _IMPORTING:
        hidden = {m: sys.modules.get(m, _ABSENT) for m in modules}
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name == name:
                raise
            raise _broken(name, error) from error
        except Exception as error:  # ImportError, OSError of a library, or an error of the package's own code
            raise _broken(name, error) from error
        finally:
            for module, previous in hidden.items():
                if previous is _ABSENT:
                    del sys.modules[module]
                else:
                    sys.modules[module] = previous  # type: ignore[assignment]


def _defer(package: ModuleType, deferred: Mapping[str, str]) -> None:
    """Let the first use of a name import its module (PEP 562). Without the module, the package has no such name."""
    if not deferred:
        return
    own = package.__dict__.get("__getattr__")

    def module_getattr(name: str) -> Any:
        if name in deferred:
            try:
                value = getattr(_import_without(deferred[name], _HIDDEN_MODULES[package.__name__]), name)
            except (ImportError, PluginError) as error:
                raise AttributeError(f"module {package.__name__!r} has no {name!r}: {error}") from error
            setattr(package, name, value)
            return value
        if own is not None:
            return own(name)
        raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")

    package.__dict__["__getattr__"] = module_getattr
