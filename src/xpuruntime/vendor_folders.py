"""Where vendors' packages for Python, containers and this environment keep shared libraries: folders to hand to the core's loader."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

__all__ = ["vendor_folders"]

# Where containers and WSL mount a driver without telling the loader.
_DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")
# A toolkit that is installed but not in the loader's list.
_TOOLKIT_FOLDERS = ("/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64")


def vendor_folders() -> list[str]:
    """Folders that may hold a vendor's library, to be tried after the loader's own search.

    Those in which NVIDIA's packages for Python keep their libraries (``nvidia/*/lib`` on ``sys.path``), those where containers
    mount the driver, a CUDA toolkit's, and the environment's own ``lib``, where oneDNN's package puts its library.
    """
    spec = importlib.util.find_spec("nvidia")  # a namespace package: finding it imports nothing
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    folders = sorted(str(folder) for place in places for folder in Path(place).glob("*/lib"))
    return [*folders, *_DRIVER_FOLDERS, *_TOOLKIT_FOLDERS, str(Path(sys.prefix) / "lib")]
