"""Folders in which vendors' Python packages, containers and the environment keep shared libraries, for the core's loader."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

__all__ = ["vendor_folders"]

# Containers and WSL mount the driver here, outside the loader's search path.
_DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")
# An installed CUDA toolkit, which may be missing in the loader's search path.
_TOOLKIT_FOLDERS = ("/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64")


def vendor_folders() -> list[str]:
    """Return the folders to search after the loader's own search path.

    They are the folders of NVIDIA's Python packages (``nvidia/*/lib`` on ``sys.path``), the mount points of the driver in
    containers, the CUDA toolkit, and the environment's ``lib``, where oneDNN's package installs its library.
    """
    spec = importlib.util.find_spec("nvidia")  # a namespace package: finding it imports nothing
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    folders = sorted(str(folder) for root in roots for folder in Path(root).glob("*/lib"))
    return [*folders, *_DRIVER_FOLDERS, *_TOOLKIT_FOLDERS, str(Path(sys.prefix) / "lib")]
