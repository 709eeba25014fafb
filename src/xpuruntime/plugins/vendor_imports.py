"""Imports of vendors' packages with their telemetry turned off: no analytics host is contacted, no identity is written to the home folder."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

__all__ = ["vendor"]

_ABSENT = object()
_IMPORTING = threading.Lock()

# Set before the import and kept, because the package may read it at any time. A value that the user set stays.
_ENVIRONMENT = {"onnxruntime": {"ORT_DISABLE_TELEMETRY": "1"}}
# Modules hidden during the import. The packages work without them.
_HIDDEN_MODULES = {"openvino": ("openvino_telemetry",)}


def vendor(name: str) -> Any:
    """Return a vendor's package, imported on first use. Raise ImportError."""
    if name in sys.modules and sys.modules[name] is not None:
        return importlib.import_module(name)  # waits if another thread is importing it
    for variable, value in _ENVIRONMENT.get(name, {}).items():
        os.environ.setdefault(variable, value)
    with _IMPORTING:
        hidden = {m: sys.modules.get(m, _ABSENT) for m in _HIDDEN_MODULES.get(name, ())}
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
        try:
            return importlib.import_module(name)
        finally:
            for module, previous in hidden.items():
                if previous is _ABSENT:
                    del sys.modules[module]
                else:
                    sys.modules[module] = previous  # type: ignore[assignment]
