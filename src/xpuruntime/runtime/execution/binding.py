"""Translation of a plan into the core's form: buffer names become memory slots and offsets."""

from __future__ import annotations

import hashlib
import os
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import _core
from ...errors import BuildError, FormatError, KernelRefused
from ...program.program import (
    Binary,
    BufferAllocation,
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    KernelCall,
)
from ..device import open_library
from ..memory.arrays import trust_arrays
from .host_kernels import enable as enable_host_kernels

if TYPE_CHECKING:
    from ..backends.base import RuntimeBackend

__all__ = ["Bound", "bind_plan"]

_WRONG = "XPU_TEST_WRONG_KERNEL"
"""For tests: the core makes the calls of a kernel wrong, for which it must know their buffers (``fault_injection.h``)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """An executor of the core, and the weights and states that it reads, in slot order."""

    executor: _core.Executor
    weights: tuple[str, ...]
    states: tuple[str, ...]


def bind_plan(
    program: CompiledProgram,
    entry: EntryPoint,
    plan: ExecutionPlan,
    backend: RuntimeBackend,
    threads: int,
    contexts: int,
) -> Bound:
    """Build the core's executor for a plan. Raises BuildError if code cannot be loaded, FormatError for an inconsistent plan."""
    who = f"program {program.name!r}"
    buffers = {b.name: b for b in plan.buffers}
    try:
        roots = {n: buffers[n].root for n in (*entry.input_buffers, *entry.output_buffers)}
        weights = _roots(plan, buffers, BufferKind.WEIGHT)
        states = _roots(plan, buffers, BufferKind.STATE)
        slots: dict[str, int] = {}
        for i, name in enumerate(entry.input_buffers):
            slots.setdefault(name, 1 + i)
        first_output = 1 + len(entry.input_buffers)
        first_fixed = first_output + len(entry.output_buffers)
        for i, name in enumerate((*weights, *states)):
            slots[name] = first_fixed + i
        handed = []  # outputs that are not in the caller's memory while kernels run
        for i, name in enumerate(entry.output_buffers):
            if roots[name] == name and name not in slots:
                slots[name] = first_output + i
            else:
                handed.append((i, name))

        def place(name: str) -> tuple[int, int]:
            buffer = buffers[name]
            if buffer.kind is BufferKind.SCRATCH and buffer.root not in slots:
                return 0, buffer.offset
            return slots[buffer.root], buffer.offset

        module = _module(program.binaries[plan.binary], backend) if plan.binary >= 0 else None
        core_plan = _core.Plan(
            f"{program.name}:{entry.name}",
            plan.arena_bytes,
            len(entry.input_buffers),
            len(entry.output_buffers),
            len(weights) + len(states),
            plan.batch,
            module,
            [s.size_bytes or 0 for s in (*entry.inputs, *entry.outputs)],
        )
        for call in plan.calls:
            where = [place(n) for n in (*call.inputs, *call.outputs)]
            _add(core_plan, call, buffers, where, backend.stages)  # such a driver reads a launch's sizes
            if call.binary >= 0:
                core_plan.set_own_module(_module(program.binaries[call.binary], backend))
        for i, name in handed:
            core_plan.add_output_copy(place(name), i, buffers[name].size_bytes)
    except (KeyError, IndexError) as error:
        raise FormatError(who, "names a buffer or a binary that it does not have", got=error) from error
    trust_arrays()
    io_specs = [(s.dtype.numpy, s.shape) for s in (*entry.inputs, *entry.outputs)]
    executor = _core.make_executor(backend.core(program, plan, threads), core_plan, io_specs, contexts)  # type: ignore[arg-type]
    if isinstance(executor, _core.Status) and executor.refusals:
        refused = tuple(
            (plan.calls[at].kernel, plan.calls[at].nodes, why) for at, why, _ in executor.refusals
        )
        raise KernelRefused(
            who,
            "has calls that libraries of this machine do not support",
            got=executor.message,
            do=executor.advice,
            calls=refused,
        )
    if isinstance(executor, _core.Status):
        raise BuildError(who, "cannot be prepared", got=executor.message, do=executor.advice)
    return Bound(executor, weights, states)


def _roots(plan: ExecutionPlan, buffers: dict[str, BufferAllocation], kind: BufferKind) -> tuple[str, ...]:
    roots = dict.fromkeys(b.root for b in plan.buffers if buffers[b.root].kind is kind)
    return tuple(roots)


def _add(
    plan: _core.Plan,
    call: KernelCall,
    buffers: dict[str, BufferAllocation],
    places: list[tuple[int, int]],
    launches: bool,
) -> None:
    params: list[int | float] = [float(p.value) if p.type == "f64" else int(p.value) for p in call.params]
    specs: list[Any] = []
    options: dict[str, Any] = {}
    if call.library or launches:
        options = {k: list(v) if isinstance(v, tuple) else v for k, v in call.options.items()}
    if call.library:
        if call.library == "python":
            enable_host_kernels()
        if call.library in _core.library_names():  # the core does not read the environment that locates it
            open_library(call.library)
    if call.library or _WRONG in os.environ:
        named = [buffers[n].spec for n in (*call.inputs, *call.outputs)]
        specs = [
            (s.dtype.value, [int(d) for d in s.shape if isinstance(d, int)], list(s.physical.strides))
            for s in named
        ]
    plan.add_call(
        call.kernel,
        call.symbol,
        places,
        len(call.inputs),
        params,
        call.tasks,
        call.grain,
        call.scratch_bytes,
        call.library,
        options,
        specs,
        _nodes(call),
    )


def _nodes(call: KernelCall) -> str:
    """Return the nodes of a call as reports name them."""
    first, more = next(iter(call.nodes), ""), len(call.nodes) - 1
    return "" if not first else f"nodes {first} and {more} more" if more else f"node {first}"


_MODULES: weakref.WeakValueDictionary[str, _core.Module] = weakref.WeakValueDictionary()


def _module(binary: Binary, backend: RuntimeBackend) -> _core.Module | None:
    """Return the loaded object code. It is loaded once per process and device while in use."""
    key = f"{backend.kind} {backend.dlpack_device()} {hashlib.sha256(binary.data).hexdigest()}"
    module = _MODULES.get(key)
    if module is None:
        loaded = backend.load_code(binary)
        if isinstance(loaded, _core.Status):
            raise BuildError(
                f"object code for {binary.target}", "cannot be loaded", got=loaded.message, do=loaded.advice
            )
        if loaded is None:
            return None
        _MODULES[key] = module = loaded
    return module
