"""The digest of this package's code, for store keys of what the code makes."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from pathlib import Path

__all__ = ["code_digest"]

_SUFFIXES = (".py", ".h", ".cuh")


@functools.cache
def code_digest(*folders: str) -> str:
    """Return the sha256 of every source file in folders of the package."""
    package = resources.files("xpuruntime")
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(Path(str(package / folder)).rglob("*")):
            if file.suffix in _SUFFIXES:
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
