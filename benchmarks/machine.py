"""The facts that a measurement is worthless without: processor, versions, load, the command; and where results go."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from xpuruntime.plugins import package_version
from xpuruntime.runtime.device import cpu

RESULTS = Path(__file__).parent / "results"


def facts(*packages: str) -> dict[str, Any]:
    """What this measurement ran on. ``load`` is the machine's one-minute load before it: above 0.5, it was not quiet."""
    processor = cpu()
    versions = {"python": platform.python_version(), "xpuruntime": package_version("xpuruntime")}
    return {
        "cpu": processor.model,
        "cpus": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "versions": versions | {p: v for p in packages if (v := package_version(p))},
        "load": round(os.getloadavg()[0], 2),
        "command": " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def keep(name: str, result: dict[str, Any]) -> Path:
    """Write a result where the README's table is made from."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path
