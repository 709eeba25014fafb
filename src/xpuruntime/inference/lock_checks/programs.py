"""Programs of a lock: compiled a second time with the recorded kernels when the lock is made, and compared when it is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ...compiler.locked import KernelLock
from ...errors import LockChange, LockError
from ...ir import Graph, specialize
from ...program.lock import Lock, LockedProgram, changes_between, locked_program
from ...program.program import CompiledProgram
from ...runtime.execution.executor import Executor

__all__ = [
    "bucket_text",
    "changes_text",
    "check_same",
    "mismatch",
    "pinned_word",
    "program_changes",
    "region_programs",
    "with_algorithms",
]

_SHOWN = 4  # changes in an error's text
_ALGORITHM = re.compile(r"cublasLtMatmul algorithm (\d+)\b")
_ENGINE = re.compile(r"cudnnBackendExecute engine (\d+)\b")

CompileRegion = Callable[[str, Graph, KernelLock], CompiledProgram]
"""Compiles the graph of a region for one set of sizes, and records its kernels or uses the recorded ones."""


# ── making ──


def region_programs(
    who: str,
    executors: Iterable[tuple[str, Mapping[str, int], Executor]],
    graph_of: Callable[[str], Graph],
    compile_region: CompileRegion,
    lock: Lock | None,
) -> Iterator[LockedProgram]:
    """Yield the record of each native region's program and each set of its sizes, compiled again with the recorded kernels.

    lock: the lock that the executors run under. Raises LockError if the second compilation differs.
    """
    for region, sizes, executor in executors:
        graph = specialize(graph_of(region), sizes)
        implementations = tuple(executor.implementations)
        record = KernelLock(None if lock is None else lock.kernels_of(region))
        check_same(who, executor, compile_region(region, graph, record), sizes, implementations)
        kernels = with_algorithms(
            record.kernels if record.recording else record.used, executor, implementations
        )
        again = compile_region(region, graph, KernelLock(kernels))
        check_same(who, executor, again, sizes, implementations)
        plan = again.entries[0].plans[0]
        yield locked_program(again, plan, sizes, implementations, kernels, region)


def check_same(
    who: str,
    executor: Executor,
    program: CompiledProgram,
    shapes: Mapping[str, int],
    implementations: tuple[str, ...],
) -> None:
    """Raise LockError if a second compilation does not give the calls of the executor's program."""
    ours = locked_program(executor.program, executor.plan, shapes, implementations, {})
    theirs = locked_program(program, program.entries[0].plans[0], shapes, implementations, {})
    pinned = replace(ours, digest=theirs.digest)  # the digest covers the lock itself
    changes = [
        c for c in changes_between(pinned, theirs) if not c[0].startswith(("kernel of", "configuration of"))
    ]
    if changes:
        name, old, new = changes[0]
        raise LockError(
            who,
            f"a second compilation for {bucket_text(shapes)} differs from the session's program",
            got=f"{name}: {old}, then {new}",
            do="Report it: compilations of equal requests must be equal.",
            changes=tuple(changes),
        )


def with_algorithms(
    kernels: Mapping[str, str], executor: Executor, implementations: tuple[str, ...]
) -> dict[str, str]:
    """Return the kernels with the algorithms that libraries chose, for those kernels that can be pinned."""
    chosen: dict[str, set[str]] = {}
    for call, implementation in zip(executor.plan.calls, implementations, strict=False):
        if call.outputs:
            word = pinned_word(call.kernel.partition("/")[2], implementation)
            chosen.setdefault(call.outputs[0].removesuffix(".out"), set()).add(word)
    result = dict(kernels)
    for key, word in kernels.items():
        words = chosen.get(key.partition(" ")[2], set())
        pinned = [w for w in words if w.partition("[")[0] == word]
        if len(pinned) == 1:
            result[key] = pinned[0]
    return result


def pinned_word(kernel: str, implementation: str) -> str:
    """Return the word that pins the algorithm which a library reports; the kernel's own word without one."""
    for name, pattern, pin in (("cublasLt", _ALGORITHM, "algorithm"), ("cudnn", _ENGINE, "engine")):
        match = pattern.match(implementation)
        if kernel == name and match is not None:
            return f"{kernel}[{pin}={match[1]}]"
    return kernel


# ── using ──


def program_changes(
    lock: Lock, executor: Executor, shapes: Mapping[str, int], region: str = ""
) -> tuple[str, tuple[LockChange, ...]]:
    """Return what is wrong with a program under a lock, and what differs from its record; nothing if it is the recorded one."""
    locked = lock.program(shapes, region)
    if locked is None:
        mine = [p for p in lock.programs if p.region == region]
        known = "; ".join(bucket_text(p.shapes) for p in mine) or "none"
        where = f" of region {region}" if region else ""
        absent: LockChange = (f"shape bucket{where}", known, bucket_text(shapes))
        return "has no program for these shapes", (absent,)
    here = locked_program(
        executor.program, executor.plan, shapes, tuple(executor.implementations), locked.kernels, region
    )
    return "names another program than the one that was made", changes_between(locked, here)


def mismatch(lock: Lock, name: str, model: str, what: str, changes: tuple[LockChange, ...]) -> LockError:
    """Return the error of a lock, by its name, that does not fit a model. It names what changed, with old and new values."""
    do = f"Write the lock again ({lock.writer}), restore what changed, or run without the lock."
    return LockError(f"lock {name}, model {model}", what, got=changes_text(changes), do=do, changes=changes)


def bucket_text(shapes: Mapping[str, int]) -> str:
    """Return the sizes of a shape bucket in one line."""
    return ", ".join(f"{k}={v}" for k, v in sorted(shapes.items())) or "fixed shapes"


def changes_text(changes: tuple[LockChange, ...]) -> str:
    """Return what changed, with the value in the lock and the value here."""
    texts = [f"{name}: {old} in the lock, {new} here" for name, old, new in changes[:_SHOWN]]
    more = f"; and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return "; ".join(texts) + more
