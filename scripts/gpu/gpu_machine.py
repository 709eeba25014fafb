"""What a measurement on a GPU ran on: device, versions, command, day. Needs nothing but what the script that asks has loaded."""

from __future__ import annotations

import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["machine"]


def machine(gpu: str, *packages: str) -> dict[str, Any]:
    """As the files under benchmarks/results have it; packages that are not installed are left out."""
    versions = {"python": platform.python_version()}
    for package in ("xpuruntime", *packages):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package == "xpuruntime":  # used from the source tree
                versions[package] = _own()
    return {
        "gpu": gpu,
        "versions": versions,
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _own() -> str:
    lines = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    return next(x.split('"')[1] for x in lines if x.startswith("version = "))
