"""The facts that a measurement is worthless without: processor, versions, load, the command; and where results go."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from xpuruntime.plugins.loader import package_version
from xpuruntime.runtime.device import cpu

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # for `support`

RESULTS = Path(__file__).parent / "results"
QUIET = 0.1  # share of the processors that others may use while times that will be kept are taken


def busy(seconds: float = 2.0) -> float:
    """Share of all processors that was in use over some seconds in which this process slept."""

    def read() -> tuple[int, int]:
        ticks = [int(t) for t in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return sum(ticks), ticks[3] + ticks[4]  # idle, and waiting for a disk

    before, idle_before = read()
    time.sleep(seconds)
    after, idle_after = read()
    return 1 - (idle_after - idle_before) / max(1, after - before)


def facts(*packages: str) -> dict[str, Any]:
    """What this measurement ran on. ``busy`` is the share of the processors that others used just before it."""
    processor = cpu()
    versions = {"python": platform.python_version(), "xpuruntime": package_version("xpuruntime")}
    return {
        "cpu": processor.model,
        "level": processor.level,
        "cpus": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "versions": versions | {p: v for p in packages if (v := package_version(p))},
        "busy": round(busy(), 3),
        "command": " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def keep(name: str, result: dict[str, Any], *, timed: bool = True, beside: bool = False) -> Path:
    """Write a result where the README's table is made from. Times that were taken while other work ran are refused, unless ``beside`` says
    that they are known to be upper bounds; the README says so, too.
    """
    if timed and not beside and result["machine"]["busy"] > QUIET:
        share = result["machine"]["busy"]
        raise SystemExit(
            f"{name}: not kept, others used {share:.0%} of the processors. Run it again on a quiet machine."
        )
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return path
