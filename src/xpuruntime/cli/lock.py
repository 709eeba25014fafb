"""``xpu lock``: write every choice for a model to a file, so that later runs measure nothing and choose nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .command import CommandResult, command
from .console import print_line, print_note, progress

if TYPE_CHECKING:
    from ..program.lock import Lock
    from ..workbench.locks import LockResult

__all__ = ["lock", "show_lock"]


@command
def lock(
    model: options.Model,
    engine: options.EngineFlags,
    session: options.SessionFlags,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.lock", help="File of the lock.")],
    shape: options.Shape = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZE,...", help="Sizes of all symbolic dimensions of one shape bucket. Repeatable."
        ),
    ] = None,
    on_mismatch: Annotated[
        str,
        typer.Option(
            "--on-mismatch",
            metavar="error|policy",
            help="If something that the lock pins has changed: fail, or warn and run under the policy without the lock.",
        ),
    ] = "error",
    measure_cost: Annotated[
        float,
        typer.Option(
            "--measure-cost",
            metavar="SECONDS",
            min=0,
            help="Measure for this long what the policy's demand for deterministic kernels costs.",
        ),
    ] = 0.0,
    as_json: options.AsJson = False,
) -> CommandResult:
    """Pin every choice for a model under a policy: engine, device, precision, threads, and the kernel of every call with its code."""
    from ..workbench.locks import make_lock

    if shape and bucket:
        raise typer.BadParameter("--shape and --bucket exclude each other")
    if on_mismatch not in ("error", "policy"):
        raise typer.BadParameter(f"must be error or policy; got {on_mismatch!r}", param_hint="--on-mismatch")
    sizes = options.parse_sizes(shape)
    buckets = [options.parse_sizes(b.split(","), "--bucket") for b in bucket or ()] or (
        [sizes] if sizes else []
    )
    with progress(f"locking {model}"):
        result = make_lock(
            model,
            options.session_options(session, engine=engine),
            buckets,
            on_mismatch=on_mismatch,
            cost_seconds=measure_cost,
        )
    result.lock.save(output)
    print_note(f"wrote {output}")
    document = {
        "file": str(output),
        "lock": result.lock.to_json(),
        "deterministic": None if result.cost is None else result.cost.to_json(),
    }
    return CommandResult(document, lambda: _show(result))


def _show(result: LockResult) -> None:
    show_lock(result.lock)
    if result.cost is not None:
        print_line(str(result.cost))


def show_lock(lock: Lock) -> None:
    """Print what a lock pins: engines, regions, kernels by shape bucket, and validators."""
    engines, devices = (" + ".join(names) for names in (lock.engines, lock.devices))
    where = f"{engines} on {devices}" if engines and devices else "no engine"
    print_line(f"{lock.model['name']} on {where}, {lock.threads} threads: plan {lock.plan[:12]}")
    for region in lock.regions:
        count = f"{len(region.nodes)} step{'s' if len(region.nodes) != 1 else ''}"
        unread = "" if region.outputs else ", which nothing reads"
        engine = f"{region.engine} {region.version}".strip()
        print_line(f"  {region.id}: {engine} on {region.device}, {count}{unread}")
    for program in lock.programs:
        sizes = ", ".join(f"{k}={v}" for k, v in program.shapes.items()) or "fixed shapes"
        kernels = ", ".join(f"{n} {k}" for k, n in Counter(c.kernel for c in program.calls).most_common())
        of_region = f"{program.region}, " if program.region else ""
        print_line(f"  {of_region}{sizes} on {program.target}: {kernels or 'no kernel'}")
    for name, value in lock.validators.items():
        print_line(f"  {name}: {value}")
