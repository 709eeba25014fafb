"""``xpu devices``: the processor, CUDA devices, and every engine's devices with support or the vendor's reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import options
from .answer import Answer, verb
from .console import progress, say, sentences, table

if TYPE_CHECKING:
    from ..runtime.device import CpuFacts
    from ..workbench.devices import Inventory

__all__ = ["devices"]


@verb
def devices(as_json: options.AsJson = False) -> Answer:
    """Show the processor, CUDA devices, and each engine's devices with the reason where one cannot be used."""
    from ..workbench.devices import inventory

    with progress("looking at devices") as now:
        found = inventory(now)
    return Answer(found.to_json(), lambda: _show(found))


def _show(found: Inventory) -> None:
    _show_cpu(found.cpu)
    rows = [
        (
            f"cuda:{d.index}",
            d.name,
            d.target,
            f"{d.memory_bytes / 2**30:.0f} GiB",
            d.multiprocessors,
            d.driver_version,
        )
        for d in found.cuda.devices
    ]
    if rows:
        table(
            "CUDA devices",
            ("device", "name", "target", "memory", "SMs", "driver"),
            rows,
            right=("memory", "SMs"),
        )
    else:
        say(f"CUDA devices: none. {sentences(found.cuda.status.message, found.cuda.status.advice)}")
        say()
    lines: list[tuple[str, str, str, str]] = []
    for engine in found.engines:
        title = f"{engine.name} {engine.version or ''}".rstrip()
        if not engine.installed:
            lines.append((title, "", "no", sentences(engine.installed.reason, engine.installed.do)))
        for d in engine.devices:
            why = d.name if d.support else sentences(d.support.reason, d.support.do)
            lines.append((title, str(d.device), "yes" if d.support else "no", why))
    table("Engines", ("engine", "device", "usable", "name, or why not"), lines)


def _show_cpu(cpu: CpuFacts) -> None:
    caches = ", ".join(f"L{c.level} {c.type} {c.bytes // 1024} KiB" for c in cpu.caches)
    limit = f", {cpu.memory_limit_bytes / 2**30:.1f} GiB allowed" if cpu.memory_limit_bytes else ""
    rows = [
        ("model", f"{cpu.model} ({cpu.vendor})"),
        ("architecture", f"{cpu.architecture} {cpu.level}".strip()),
        (
            "cores",
            f"{cpu.physical_cores} physical, {cpu.logical_cores} logical, {cpu.usable_cores} usable here",
        ),
        ("memory", f"{cpu.memory_bytes / 2**30:.1f} GiB{limit}"),
        ("caches", caches),
        ("instruction sets", " ".join(cpu.flags)),
    ]
    table("Processor", ("fact", "value"), [r for r in rows if r[1]])
