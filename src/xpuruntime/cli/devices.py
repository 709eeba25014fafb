"""``xpu devices``: the processor, the CUDA devices, the vendors' libraries, and the devices of every engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import options
from .command import CommandResult, command
from .console import join_sentences, print_line, print_table, progress

if TYPE_CHECKING:
    from ..runtime.device import CpuFacts
    from ..workbench.devices import Inventory

__all__ = ["devices"]


@command
def devices(verbose: options.Verbose = False, as_json: options.AsJson = False) -> CommandResult:
    """Show the processor, CUDA devices, vendors' libraries, and each engine's devices with the reason why one is not usable."""
    from ..workbench.devices import inventory

    with progress("looking for devices") as update:
        report = inventory(update)
    return CommandResult(report.to_json(), lambda: _show(report, verbose))


def _show(report: Inventory, verbose: bool) -> None:
    from ..workbench.devices import first_clause

    def reason(text: str, do: str) -> str:
        return join_sentences(text, do) if verbose else first_clause(text)

    _show_cpu(report.cpu)
    rows = [
        (
            f"cuda:{d.index}",
            d.name,
            d.target,
            f"{d.memory_bytes / 2**30:.0f} GiB",
            d.multiprocessors,
            d.driver_version,
        )
        for d in report.cuda.devices
    ]
    if rows:
        columns = ("device", "name", "target", "memory", "SMs", "driver")
        print_table("CUDA devices", columns, rows, right=("memory", "SMs"))
    else:
        print_line(f"CUDA devices: none. {reason(report.cuda.status.message, report.cuda.status.advice)}")
        print_line()
    libraries = [
        (x.title, x.version, x.path if verbose else "loaded")
        if x.loaded
        else (x.title, "", reason(x.status.message.removeprefix(f"{x.title}: "), x.status.advice))
        for x in report.libraries
    ]
    print_table("Libraries", ("library", "version", "path" if verbose else "status"), libraries)
    lines: list[tuple[str, str, str, str]] = []
    for engine in report.engines:
        title = f"{engine.name} {engine.version or ''}".rstrip()
        if not engine.installed:
            lines.append((title, "", "no", reason(engine.installed.reason, engine.installed.do)))
        for d in engine.devices:
            text = d.name if d.support else reason(d.support.reason, d.support.do)
            lines.append((title, str(d.device), "yes" if d.support else "no", text))
    print_table("Engines", ("engine", "device", "usable", "name or reason"), lines)
    if not verbose:
        print_line("xpu devices -v shows paths, full reasons and advice")


def _show_cpu(cpu: CpuFacts) -> None:
    caches = ", ".join(f"L{c.level} {c.type} {c.bytes // 1024} KiB" for c in cpu.caches)
    limit = f", {cpu.memory_limit_bytes / 2**30:.1f} GiB allowed" if cpu.memory_limit_bytes else ""
    cores = f"{cpu.physical_cores} physical, {cpu.logical_cores} logical, {cpu.usable_cores} usable by this process"
    rows = [
        ("model", f"{cpu.model} ({cpu.vendor})"),
        ("architecture", f"{cpu.architecture} {cpu.level}".strip()),
        ("cores", cores),
        ("memory", f"{cpu.memory_bytes / 2**30:.1f} GiB{limit}"),
        ("caches", caches),
        ("instruction sets", " ".join(cpu.flags)),
    ]
    print_table("Processor", ("property", "value"), [r for r in rows if r[1]])
