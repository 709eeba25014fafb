"""Batched compilation of many tiny programs: the suites compile hundreds of graphs of one or two nodes.

A ``Batch`` is a target that collects the functions of many programs and assembles them as one unit. A unit that does not compile is
assembled again program by program, so that one defect affects one finding. ``in_batches`` is the entry point.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import TypeVar

from ...codegen.target import CodegenTarget
from ...compiler.resolve import resolve_target
from ...errors import BuildError, KernelRefused, KernelUnavailable, XpuError
from ...program.program import Binary, CompiledProgram

__all__ = ["Batch", "batch_of", "in_batches", "why_refused"]

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Batch(CodegenTarget):
    """A target that also collects functions: ``done`` assembles them and gives each program its code."""

    functions: dict[str, str]
    parts: frozenset[str]
    functions_per_binary = 0

    def assemble(self, functions: Mapping[str, str], parts: frozenset[str]) -> Binary:
        """Return a binary without data, which ``done`` replaces. Symbols are digests of their texts, so equal functions share one."""
        self.functions |= functions
        self.parts |= parts
        source = "\n".join(functions.values())
        return Binary(self.name, "text", (), tuple(functions), b"", source, ",".join(sorted(parts)))

    def text(self) -> str:
        """Return the translation unit of all collected functions, for targets that write one."""
        source: Callable[..., str] = getattr(self, "source")  # noqa: B009  - only targets that write one unit have it
        return source(self.functions, self.parts)

    def done(self, programs: Sequence[CompiledProgram]) -> list[CompiledProgram | BuildError]:
        """Return the programs with their code, or the error of those that do not compile."""
        if not self.functions:
            return list(programs)
        try:
            binary = super().assemble(self.functions, self.parts)
        except BuildError:
            try:
                super().assemble({}, self.parts)
            except BuildError as error:  # the shared part does not compile
                return [error for _ in programs]
            return [self._alone(program) for program in programs]
        return [replace(p, binaries=(binary,)) if p.binaries else p for p in programs]

    def _alone(self, program: CompiledProgram) -> CompiledProgram | BuildError:
        if not program.binaries:
            return program
        collected = program.binaries[0]
        functions = {symbol: self.functions[symbol] for symbol in collected.symbols}
        try:
            return replace(
                program,
                binaries=(
                    super().assemble(functions, frozenset(filter(None, collected.compiler.split(",")))),
                ),
            )
        except BuildError as error:
            return error


def batch_of(target: CodegenTarget) -> Batch:
    """Return a copy of this target that collects functions."""
    kind = type(f"Batch{type(target).__name__}", (Batch, type(target)), {})
    batch: Batch = object.__new__(kind)
    batch.__dict__.update(target.__dict__)
    batch.functions, batch.parts = {}, frozenset()
    return batch


def in_batches(
    items: Iterable[_Item],
    prepare: Callable[[_Item, Batch], _Made],
    programs_of: Callable[[_Made], Sequence[CompiledProgram]],
    target: str | CodegenTarget,
    *,
    size: int,
    jobs: int = 1,
) -> Iterator[tuple[_Item, _Made, list[CompiledProgram | BuildError]]]:
    """Yield each item with its prepared result and its programs with code, in order.

    size: items whose functions are compiled together. jobs: batches compiled in parallel, while earlier ones are checked.
    """
    where, remaining = resolve_target(target), iter(items)
    waiting: deque[tuple[Sequence[_Item], Sequence[_Made], Future[list[CompiledProgram | BuildError]]]] = (
        deque()
    )
    with ThreadPoolExecutor(jobs) as pool:

        def start() -> bool:
            batch_items = list(islice(remaining, size))
            if batch_items:
                gathered = batch_of(where)
                prepared = [prepare(item, gathered) for item in batch_items]
                programs = [p for prepared_item in prepared for p in programs_of(prepared_item)]
                waiting.append((batch_items, prepared, pool.submit(gathered.done, programs)))
            return bool(batch_items)

        while len(waiting) < jobs and start():
            pass
        while waiting:
            batch_items, prepared_items, future = waiting.popleft()
            start()
            binaries = iter(future.result())
            for item, prepared_item in zip(batch_items, prepared_items, strict=True):
                yield item, prepared_item, [next(binaries) for _ in programs_of(prepared_item)]


def why_refused(error: XpuError) -> str:
    """Return the key of a refusal in tables: the op and its first kernel's reason, a library's message, or the text of any other error."""
    if isinstance(error, KernelRefused) and error.calls:
        return f"the library declines: {error.calls[0][2]}"[:120]
    if not isinstance(error, KernelUnavailable):
        return f"{type(error).__name__}: {error.what}"[:120]
    op = error.who.partition(" %")[0]
    rejected = [c.reason for c in (error.decision.rejected if error.decision else ()) if c.reason]
    if not rejected:
        return f"{op}: no kernel supports it"[:120]
    return (rejected[0] if op.startswith("node ") else f"{op}: {rejected[0]}")[:120]
