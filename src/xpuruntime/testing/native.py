"""Judging the native engine: compile a graph, run it, compare with the interpreter.

    check(graph, {"x": x})                                 all passes, this machine's best instruction set
    check(graph, feeds, passes="none", target="cpu:x86-64-v3", kernels={"conv": "naive"}, split=7)

``split`` cuts every call's tasks at random places: results may not depend on how work is spread.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from ..compiler import compile as compile_graph
from ..ir import Graph, bind, interp
from ..numerics import compare, tolerance_for
from ..policies import KernelPolicy
from ..program.program import CompiledProgram
from ..protocols import Array
from ..types import DType, TensorSpec

__all__ = ["check", "compile_native", "run_native"]

_PASSES: Mapping[str, int] = {"none": 0, "all": 3}


def compile_native(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    passes: str | int | Sequence[str] = "all",
    target: str = "cpu",
    kernels: Mapping[str, str] | None = None,
    policy: Any = None,
) -> CompiledProgram:
    """The program of a graph for the shapes of the feeds. ``kernels``: preferred kernel by op family."""
    shapes = bind(graph.input_specs, {n: np.shape(a) for n, a in feeds.items()})
    chosen = _PASSES[passes] if isinstance(passes, str) else passes
    preferences: dict[str, Any] = dict(kernels or {})
    demands = policy if policy is not None else KernelPolicy(**preferences)
    return compile_graph(
        graph, target=target, policy=demands, shapes={k: int(v) for k, v in shapes.items()}, passes=chosen
    )


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
    """Outputs by name. ``states`` as in ``interp.run``: read before, updated after. Other options as ``compile_native``."""
    program = compile_native(graph, feeds, **options)
    return _by_ctypes(program, feeds, weights or {}, states, split)


def check(
    graph: Graph,
    feeds: Mapping[str, Array],
    *,
    weights: Mapping[str, Array] | None = None,
    states: Mapping[str, Array] | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> dict[str, Array]:
    """Run natively and compare every output, and every state, with the interpreter; gives the outputs.

    tolerance: largest max|d|/max|ref|; by default 1e-5 in float32, 1e-12 in float64, that of ``numerics`` in lower precisions, and
               equality for integers. Raises AssertionError.
    """
    ours, theirs = dict(states or {}), dict(states or {})
    got = run_native(graph, feeds, weights=weights, states=ours, **options)
    want = interp.run(graph, feeds, weights=weights, states=theirs)
    pairs = [(n, got[n], want[n]) for n in want] + [(n, ours[n], theirs[n]) for n in theirs]
    for name, a, b in pairs:
        dtype = DType.of(b.dtype)
        assert a.dtype == b.dtype, f"{name}: {a.dtype}, wanted {b.dtype}"
        limit = _LIMITS.get(dtype, tolerance_for(dtype)) if tolerance is None else tolerance
        verdict = compare(name, a, b, limit)
        assert verdict.ok, (
            f"{verdict.reason} (max|d|/max|ref| {verdict.max_rel:.3g}, limit {limit:.3g})\n{graph}"
        )
    return got


_LIMITS: Mapping[DType, float] = {DType.FLOAT64: 1e-12, DType.FLOAT32: 1e-5}


def _by_ctypes(
    program: CompiledProgram,
    feeds: Mapping[str, Array],
    weights: Mapping[str, Array],
    states: MutableMapping[str, Array] | None,
    split: int | None,
) -> dict[str, Array]:
    """Interim: until the runtime's executor stands, the program's functions are called one by one."""
    import ctypes
    import itertools
    import tempfile
    from pathlib import Path

    from ..runtime.layouts import from_memory
    from ..runtime.recipes import run_recipe

    entry = program.entries[0]
    plan = entry.plans[0]
    arena = np.zeros(plan.arena_bytes + 64, np.uint8)
    arena_at = -arena.ctypes.data % 64
    own: dict[str, Any] = {}
    arrays = {
        w.name: np.frombuffer(w.data, w.spec.dtype.numpy).reshape(_static(w.spec))
        if w.data is not None
        else np.asarray(weights[w.name])
        for w in program.weights
    }
    recipes = {r.name: r for r in program.recipes}
    for s in program.states:
        if states is not None and s.name in states:
            own[s.name] = np.array(states[s.name], order="C")
        elif s.init:
            own[s.name] = np.array(run_recipe(recipes[s.init], arrays), order="C")
        else:
            own[s.name] = np.zeros(_static(s.spec), s.spec.dtype.numpy)
    for name, spec in zip(entry.input_buffers, entry.inputs, strict=True):
        own[name] = np.ascontiguousarray(feeds[spec.name], dtype=spec.dtype.numpy)
    for b in plan.buffers:
        if b.root == b.name and b.kind == "output":
            own[b.name] = np.full(max(b.size_bytes, 1), 0xCC, np.uint8)
        elif b.kind == "weight" and b.root == b.name:
            own[b.name] = np.ascontiguousarray(run_recipe(recipes[b.name], arrays))
    base = {n: a.ctypes.data for n, a in own.items()}
    at = {}
    for b in plan.buffers:
        at[b.name] = (
            (arena.ctypes.data + arena_at + b.offset) if b.kind == "scratch" else base[b.root] + b.offset
        )
    library = None
    if plan.binary >= 0:
        with tempfile.NamedTemporaryFile(suffix=".so", delete=False) as file:
            file.write(program.binaries[plan.binary].data)
        library = ctypes.CDLL(file.name)
        Path(file.name).unlink()
    rng = np.random.default_rng(split)
    for call in plan.calls:
        assert library is not None, call.kernel
        args = (ctypes.c_void_p * (len(call.inputs) + len(call.outputs)))(
            *[at[n] for n in (*call.inputs, *call.outputs)]
        )
        scratch = np.zeros(call.scratch_bytes + 128, np.uint8)
        params = np.array(
            [
                np.array(p.value, np.float64 if p.type == "f64" else np.int64).view(np.int64)
                for p in call.params
            ],
            np.int64,
        )
        cuts = [0, call.tasks]
        if split is not None:
            cuts = sorted({0, call.tasks, *rng.integers(0, call.tasks + 1, 3).tolist()})
        for begin, end in itertools.pairwise(cuts):
            getattr(library, call.symbol)(
                args, ctypes.c_void_p(params.ctypes.data), ctypes.c_int64(begin), ctypes.c_int64(end),
                ctypes.c_void_p(scratch.ctypes.data + -scratch.ctypes.data % 64),
            )  # fmt: skip
    outputs = {}
    for name, spec in zip(entry.output_buffers, entry.outputs, strict=True):
        buffer = plan.buffer(name)
        outputs[spec.name] = from_memory(own[buffer.root][: buffer.size_bytes], buffer.spec).copy()
    if states is not None:
        states.update({s.name: own[s.name] for s in program.states})
    return outputs


def _static(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(int(d) for d in spec.shape if isinstance(d, int))
