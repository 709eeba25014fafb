"""Code that the GPU scripts share: arguments, independent parts, rows of the table of checks, and facts about the machine.

    PARTS = {"speed": speed, "memory": memory}              # name -> function(report, args); its result is written under the name

    if __name__ == "__main__":
        sys.exit(run_parts(__doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",)))

Every script then takes ``--out FILE.json``, ``--dry-run`` (prints the parts, uses no device) and names of parts. The file is written after each part,
so that an interrupted run keeps its results. ``tests/gpu/stages.py`` runs all scripts. This module imports only the standard library, PyTorch in
``queued_us``, and the package in ``name_of_device``.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Report", "arguments", "machine", "name_of_device", "queued_us", "run_parts", "write"]

_ROOT = Path(__file__).resolve().parents[2]
Part = Callable[["Report", argparse.Namespace], Any]


def machine(gpu: str, *packages: str) -> dict[str, Any]:
    """Return the facts that files under benchmarks/results record. Packages that are not installed are omitted."""
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
        "command": " ".join(["python", *sys.argv]).replace(f"{_ROOT}/", ""),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def name_of_device() -> str:
    """Return the first GPU's name; without one, the processor's."""
    from xpuruntime.runtime.device import cpu, cuda

    return next((d.name for d in cuda().devices), f"none, on {cpu().model}")


def _own() -> str:
    lines = (_ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    return next(x.split('"')[1] for x in lines if x.startswith("version = "))


class Report:
    """Results of a run: ``failures`` (texts of failed checks) and ``checks`` (figures with their limits)."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.checks: list[dict[str, Any]] = []

    def check(self, ok: Any, what: str) -> bool:
        """Record a failure without raising, so that one run reports every failure."""
        print("  ok  " if ok else "  FAIL", what, flush=True)
        if not ok:
            self.failures.append(what)
        return bool(ok)

    def bound(
        self, what: str, figure: Any, *, at_most: float | None = None, at_least: float | None = None, unit: str = "", required: bool = True
    ) -> bool:  # fmt: skip
        """Compare a figure with its limit. Without a limit, ``figure`` is the outcome itself.

        required: a missed limit fails the run. Otherwise it is only reported, for targets that are not reached yet.
        """
        if at_most is not None or at_least is not None:
            number = math.nan if figure is None else float(figure)
            holds = (at_most is None or number <= at_most) and (at_least is None or number >= at_least)
        else:
            holds = bool(figure)
        limit = (
            f"at most {at_most:g}"
            if at_most is not None
            else f"at least {at_least:g}"
            if at_least is not None
            else "yes"
        )
        row = {
            "check": what,
            "figure": figure,
            "limit": limit,
            "unit": unit,
            "holds": holds,
            "required": required,
        }
        self.checks.append(row)
        figure_text = f"{figure:.4g}" if isinstance(figure, float) else str(figure)
        print(
            "  ok  " if holds else "  FAIL" if required else "  not yet",
            f"{what}: {figure_text} {unit} ({limit})",
            flush=True,
        )
        if required and not holds:
            self.failures.append(f"{what}: {figure_text} {unit}, {limit} was asked")
        return holds


def arguments(doc: str | None, parts: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return a parser with the options that every script has."""
    parser = argparse.ArgumentParser(description=str(doc).split("\n", 1)[0])
    if parts:
        parser.add_argument(
            "parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; all without one"
        )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where the result is written")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and touch no device")
    return parser


def called_us(
    work: Callable[[], Any], times: int, first: int = 20, settle: Callable[[], Any] = lambda: None
) -> float:
    """Return the median microseconds of a call by the host's clock, after ``first`` warm-up calls.

    settle: waits for the device after each call, outside the time. Without it a full queue makes calls wait for the device.
    """
    times_s = []
    for i in range(first + times):
        start = time.perf_counter()
        work()
        if i >= first:
            times_s.append(time.perf_counter() - start)
        settle()
    return statistics.median(times_s) * 1e6


def called_together_us(
    works: Mapping[str, Callable[[], Any]],
    times: int,
    first: int = 20,
    settle: Callable[[], Any] = lambda: None,
) -> dict[str, float]:
    """Return the microseconds of each call like ``called_us``, measured in turns, so that a machine that slows down slows all of them.

    Every other turn goes backwards, so that no call always follows the same one. A call is faster after itself than after another, so its time is
    the mean of two medians, one for each direction: the median of both together would lie anywhere between them.
    """
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in works}
    order = list(works.items())
    for i in range(first + times):
        backwards = i % 2
        for name, work in reversed(order) if backwards else order:
            start = time.perf_counter()
            work()
            if i >= first:
                seconds[name][backwards].append(time.perf_counter() - start)
            settle()
    return {name: statistics.mean(map(statistics.median, each)) * 1e6 for name, each in seconds.items()}


def queued_us(work: Callable[[], Any], each: int = 20, rounds: int = 9) -> float:
    """Return the median microseconds of one of ``each`` calls queued back to back on PyTorch's stream, after five warm-up calls."""
    import torch

    for _ in range(5):
        work()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(each):
            work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / each * 1e3)
    return statistics.median(times)


def write(path: Path | None, document: Mapping[str, Any]) -> None:
    """Write a JSON document. Do nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8")


def run_parts(
    doc: str | None,
    parts: Mapping[str, Part],
    *,
    gpu: Callable[[], str],
    packages: Sequence[str] = (),
    argv: Sequence[str] | None = None,
    parser: argparse.ArgumentParser | None = None,
    before: Callable[[argparse.Namespace], None] | None = None,
) -> int:
    """Run the requested parts in order. A part that raises is a failure, and the next one still runs. Return 1 if anything failed.

    If native code ends the process, the Python stack of each thread is printed; in child processes, too.

    argv:   the command line. Default: ``sys.argv``.
    parser: ``arguments(doc, parts)`` with more options.
    before: called once, before the first part.
    """
    args = (parser or arguments(doc, tuple(parts))).parse_args(argv)
    unknown = [p for p in args.parts if p not in parts]
    if unknown:
        raise SystemExit(f"no part {', '.join(unknown)}: there are {', '.join(parts)}")
    chosen = list(args.parts or parts)
    if args.dry_run:
        for name in chosen:
            print(f"  {name}: {str(parts[name].__doc__ or name).splitlines()[0]}")
        return 0
    if not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__)
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    if before is not None:
        before(args)
    report, seconds = Report(), dict[str, float]()
    results: dict[str, Any] = {"machine": machine(gpu(), *packages)}
    for name in chosen:
        print(f"-- {name}", flush=True)
        started = time.perf_counter()
        try:
            results[name] = parts[name](report, args)
        except Exception as error:
            traceback.print_exc()
            results[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
            report.check(False, f"{name}: {type(error).__name__}: {str(error)[:500]}")
        seconds[name] = round(time.perf_counter() - started, 1)
        print(f"   {seconds[name]} s", flush=True)
        write(args.out, results | {"checks": report.checks, "failures": report.failures, "seconds": seconds})
    print(f"{len(report.failures)} failures")
    return 1 if report.failures else 0
