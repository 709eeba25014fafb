"""Translation of a plan into the core's form: buffer names become memory slots and offsets."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ... import _core
from ...errors import BuildError, FormatError, InputError, KernelRefused
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
from .control import Bodies, control_call
from .host_kernels import enable as enable_host_kernels
from .plan_stores import plan_store

if TYPE_CHECKING:
    from ...storage.store import Store
    from ..backends.base import RuntimeBackend

__all__ = ["Bound", "bind_plan"]

_COLLECTIVES = ("collectives", "nccl")
"""Libraries whose calls exchange tensors with other ranks."""

_WRONG = "XPU_TEST_WRONG_KERNEL"
"""A variable for tests: the core corrupts the results of the kernel that it names, and needs the specs of its buffers (``fault_injection.h``)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The core's executor of a plan, the names of the weights and states that it reads, in slot order, and its loaded binaries by index."""

    executor: _core.Executor
    weights: tuple[str, ...]
    states: tuple[str, ...]
    modules: Mapping[int, _core.Module] = field(default_factory=dict)


def bind_plan(
    program: CompiledProgram,
    entry: EntryPoint,
    plan: ExecutionPlan,
    backend: RuntimeBackend,
    threads: int,
    contexts: int,
    bodies: Bodies,
    communicator: int = 0,
    arenas: _core.ArenaPool | None = None,
    store: Store | None = None,
) -> Bound:
    """Build the core's executor for a plan. Raises BuildError if code cannot be loaded, FormatError for an inconsistent plan.

    bodies: executors of branches and loops, to which the plan's are added. communicator: the core's number of the one that collectives use; 0
    without one. arenas: where runs take memory; None: from memory of their own. store: keeps plans that libraries compile; None: that of
    ``XPU_CACHE_DIR``.
    """
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
        copied_outputs = []  # kernels write these elsewhere; the core copies them to the caller's memory
        for i, name in enumerate(entry.output_buffers):
            if roots[name] == name and name not in slots:
                slots[name] = first_output + i
            else:
                copied_outputs.append((i, name))

        def location(name: str) -> tuple[int, int]:
            buffer = buffers[name]
            if buffer.kind is BufferKind.SCRATCH and buffer.root not in slots:
                return 0, buffer.offset
            return slots[buffer.root], buffer.offset

        modules: dict[int, _core.Module | None] = {}

        def loaded(index: int) -> _core.Module | None:
            if index not in modules:
                modules[index] = _module(program.binaries[index], backend)
            return modules[index]

        module = loaded(plan.binary) if plan.binary >= 0 else None
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
        controls: list[object] = []  # kept until the core has taken the calls
        for call in plan.calls:
            args = [location(n) for n in (*call.inputs, *call.outputs)]
            _add(
                core_plan,
                _prepared(call, buffers, bodies, controls, communicator),
                buffers,
                args,
                with_options=backend.stages,  # CUDA options hold launch sizes
            )
            if call.binary >= 0:
                core_plan.set_own_module(loaded(call.binary))
        for b in plan.buffers:
            if b.kind is BufferKind.SCRATCH and b.root == b.name and b.name not in slots:
                core_plan.add_arena_part(b.offset, b.size_bytes, b.first, b.last)
        for i, name in copied_outputs:
            core_plan.add_output_copy(location(name), i, buffers[name].size_bytes)
    except (KeyError, IndexError) as error:
        raise FormatError(who, "names a buffer or a binary that it does not have", got=error) from error
    if backend.stages and (kept_in := plan_store(store)) is not None:
        core_plan.keep_plans_in(kept_in)
    trust_arrays()
    io_specs = [(s.dtype.numpy, s.shape) for s in (*entry.inputs, *entry.outputs)]
    driver = backend.core(program, plan, threads)
    executor = _core.make_executor(driver, core_plan, io_specs, contexts, arenas)  # type: ignore[arg-type]
    if isinstance(executor, _core.Status) and executor.refusals:
        refused = tuple(
            (plan.calls[i].kernel, plan.calls[i].nodes, reason) for i, reason, _ in executor.refusals
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
    return Bound(executor, weights, states, {i: m for i, m in modules.items() if m is not None})


def _prepared(
    call: KernelCall,
    buffers: dict[str, BufferAllocation],
    bodies: Bodies,
    keep: list[object],
    communicator: int,
) -> KernelCall:
    """Return a call as the core takes it: control flow is a function of this process, and collectives have a communicator."""
    if call.library in _COLLECTIVES:
        if communicator == 0 and call.options.get("ranks", 1) != 1:
            problem = f"exchanges tensors with {call.options['ranks']} ranks"
            raise InputError(
                "executor", problem, got="no communicator", do="Pass communicator= to the Executor."
            )
        return replace(call, options={**call.options, "communicator": communicator})
    if call.library != "control":
        return call
    token, prepared = control_call(call, bodies, [buffers[n].size_bytes for n in call.outputs])
    keep.append(prepared)
    return replace(call, library="python", options={"control": token})


def _roots(plan: ExecutionPlan, buffers: dict[str, BufferAllocation], kind: BufferKind) -> tuple[str, ...]:
    roots = dict.fromkeys(b.root for b in plan.buffers if buffers[b.root].kind is kind)
    return tuple(roots)


def _add(
    plan: _core.Plan,
    call: KernelCall,
    buffers: dict[str, BufferAllocation],
    args: list[tuple[int, int]],
    *,
    with_options: bool,
) -> None:
    params: list[int | float] = [float(p.value) if p.type == "f64" else int(p.value) for p in call.params]
    specs: list[Any] = []
    options: dict[str, Any] = {}
    if call.library or with_options:
        options = {k: list(v) if isinstance(v, tuple) else v for k, v in call.options.items()}
    if call.library:
        if call.library == "python":
            enable_host_kernels()
        if call.library in _core.library_names():  # open it here: the core does not read the environment
            open_library(call.library)
    if call.library or _WRONG in os.environ:
        arg_specs = [buffers[n].spec for n in (*call.inputs, *call.outputs)]
        specs = [
            (s.dtype.value, [int(d) for d in s.shape if isinstance(d, int)], list(s.physical.strides))
            for s in arg_specs
        ]
    plan.add_call(
        call.kernel,
        call.symbol,
        args,
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
    """Return the nodes of a call as text for reports."""
    first, others = next(iter(call.nodes), ""), len(call.nodes) - 1
    return "" if not first else f"nodes {first} and {others} more" if others else f"node {first}"


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
