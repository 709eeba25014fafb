"""Check the native engine: compile a graph, run it, and compare with the interpreter.

    check(graph, {"x": x})                                 all passes, this machine's best instruction set
    check(graph, feeds, passes="none", target="cpu:x86-64-v3", kernels={"conv": "naive"}, split=7)

``split`` splits every call, even a small one, between that many threads, since results must not depend on the split.
If a device was named (``device_under_test``), tests for any CPU run on it instead.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import SkipTest

import numpy as np

from xpuruntime.codegen.target import CodegenTarget
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.errors import KernelUnavailable
from xpuruntime.ir import Graph, bind, interp
from xpuruntime.kernels.catalogue import kernels as catalogue
from xpuruntime.numerics import compare, tolerance_for
from xpuruntime.policies import KernelPolicy
from xpuruntime.program.program import CompiledProgram
from xpuruntime.program.validate import validate
from xpuruntime.protocols import Array
from xpuruntime.runtime import Executor
from xpuruntime.testing.conformance.native_batch import why_refused
from xpuruntime.types import DType

from .device_under_test import device_of, named, target_of

__all__ = ["check", "compile_native", "run_native"]

_PASSES: Mapping[str, int] = {"none": 0, "all": 3}


def compile_native(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    passes: str | int | Sequence[str] = "all",
    target: str | CodegenTarget = "cpu",
    kernels: Mapping[str, str] | None = None,
    policy: Any = None,
) -> CompiledProgram:
    """Compile a graph for the shapes of the feeds and validate the program. ``kernels``: preferred kernel by op family."""
    shapes = bind(graph.input_specs, {n: np.shape(a) for n, a in feeds.items()})
    pass_names = _PASSES[passes] if isinstance(passes, str) else passes
    preferences: dict[str, Any] = dict(kernels or {})
    demands = policy if policy is not None else KernelPolicy(**preferences)
    sizes = {k: int(v) for k, v in shapes.items()}
    _skip_if_missing(kernels)
    try:
        program = compile_graph(
            graph, target=target_of(target), policy=demands, shapes=sizes, passes=pass_names
        )
    except KernelUnavailable as error:
        if named() is None:
            raise
        raise SkipTest(f"the device has no kernel: {why_refused(error)}") from error
    validate(program, f"program {program.name!r}", "The compiler broke a rule of programs.")
    return program


def _skip_if_missing(kernels: Mapping[str, str] | None) -> None:
    """Skip a test of a kernel that the named device does not have. Raises SkipTest."""
    device = named()
    if device is None or device.target is None:
        return
    names = {k.name.partition("/")[2] for k in catalogue(device.target.kind)}
    for name in (kernels or {}).values():
        if name not in names:
            raise SkipTest(f"{device.name} has no kernel {name}")


def run_native(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    weights: Mapping[str, Array] | None = None,
    states: MutableMapping[str, Array] | None = None,
    threads: int = 1,
    split: int | None = None,
    **options: Any,
) -> dict[str, Array]:
    """Return outputs by name. ``states`` are read before the run and updated after it, as in ``interp.run``. Other options: ``compile_native``."""
    program = compile_native(graph, feeds, **options)
    if split is not None:
        program, threads = _spread(program), split
    executor = Executor(program, device_of(program), threads=threads)
    try:
        executor.bind(dict(weights or {}))
        for name in executor.states:
            if states is not None and name in states:
                executor.states.write(name, states[name])
        outputs = executor.run_arrays([np.asarray(feeds[s.name], order="C") for s in program.input_specs])
        if states is not None:
            states.update({name: executor.states[name].to_numpy() for name in executor.states})
        return dict(zip([s.name for s in program.output_specs], outputs, strict=True))
    finally:
        executor.close()


def check(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    weights: Mapping[str, Array] | None = None,
    states: Mapping[str, Array] | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> dict[str, Array]:
    """Run natively, compare every output and state with the interpreter, and return the outputs.

    tolerance: largest max|d|/max|ref|. The default is 1e-5 for float32, 1e-12 for float64, the tolerance of ``numerics`` for lower
               precisions, and equality for integers. Raises AssertionError.
    """
    actual_states, expected_states = dict(states or {}), dict(states or {})
    outputs = run_native(graph, feeds, weights=weights, states=actual_states, **options)
    expected = interp.run(graph, feeds, weights=weights, states=expected_states)
    pairs = [(n, outputs[n], expected[n]) for n in expected] + [
        (n, actual_states[n], expected_states[n]) for n in expected_states
    ]
    for name, a, b in pairs:
        dtype = DType.of(b.dtype)
        assert a.dtype == b.dtype, f"{name}: {a.dtype}, expected {b.dtype}"
        limit = _LIMITS.get(dtype, tolerance_for(dtype)) if tolerance is None else tolerance
        verdict = compare(name, a, b, limit)
        assert verdict.ok, (
            f"{verdict.reason} (max|d|/max|ref| {verdict.max_rel:.3g}, limit {limit:.3g})\n{graph}"
        )
    return outputs


_LIMITS: Mapping[DType, float] = {DType.FLOAT64: 1e-12, DType.FLOAT32: 1e-5}


def _spread(program: CompiledProgram) -> CompiledProgram:
    """Return the program with every call large enough to be split between threads."""
    entries = tuple(
        replace(
            e, plans=tuple(replace(p, calls=tuple(replace(c, grain=1) for c in p.calls)) for p in e.plans)
        )
        for e in program.entries
    )
    return replace(program, entries=entries)
