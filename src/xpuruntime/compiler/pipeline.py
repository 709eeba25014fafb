"""``compile``: a graph, a policy and a target become a program.

    Graph ─ specialize ─► static graph ─ passes ─► ─ layout ─► ─ lower ─► calls, memory, recipes ─ emit ─► CompiledProgram

It needs no device and no vendor engine, except that it asks this machine's libraries what they support. Weights are not read: recipes
describe how their buffers are made at load.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Protocol, TypeAlias, TypeVar

from .. import __version__
from ..arguments import check_argument, check_names
from ..codegen.cpp.toolchain import TextRefused
from ..codegen.target import CodegenTarget
from ..decisions import Decision
from ..errors import BuildError, FormatError, IrError, StrictError, XpuError
from ..faults import FaultSubject, contained, foreign, part
from ..ir import Graph, specialize, verify
from ..ir.host_waits import decided_sizes
from ..ir.shapes.bounds import bounds_of, outside, span
from ..ir.shapes.settle import settled
from ..kernels import offers
from ..kernels.user.kernel import named_digests
from ..passes import find_passes, laid_out, run_passes
from ..policies import Policy, Resolved
from ..policies.entrances import demanded, refuse
from ..policies.fields.record import dump
from ..printable import logger
from ..program.program import Binary, CompiledProgram, EntryPoint, ExecutionPlan
from ..program.told import fitted
from ..program.validate import validate
from ..progress import shown, step
from ..targets import TargetConfig
from .calls import LoweredGraph
from .control import with_entries
from .demands import Demands
from .emit import Code, emitted_part, plan_of
from .entrance import check_phase, fixed_symbols, phases_of, settled_precision, targets_of
from .locked import KernelLock
from .lower import lower
from .times import KernelTimes
from .transfers import check_graph

__all__ = ["Model", "compile"]

_log = logger("xpuruntime.compiler")

Model: TypeAlias = "Graph | Mapping[str, Any] | str | PathLike[str]"
"""A graph, its JSON form, or the path of a saved graph (``ir.save``)."""
Target: TypeAlias = "str | TargetConfig | CodegenTarget"


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


_Named = TypeVar("_Named", bound=_HasName)


def compile(  # noqa: A001  - the specification's name
    model: Model | Mapping[str, Graph],
    *,
    target: Target | Sequence[Target] | None = None,
    policy: Any = None,
    shapes: Mapping[str, int] | Sequence[Mapping[str, int]] = (),
    passes: Sequence[str] | str | int | None = None,
    phase: str | Mapping[str, str] = "inference",
    weights: Mapping[str, Any] | None = None,
    watch: Callable[[str, Graph], None] | None = None,
    times: KernelTimes | Mapping[str, Any] | str | PathLike[str] | None = None,
    lock: KernelLock | None = None,
    on_progress: Callable[[str], object] | None = None,
) -> CompiledProgram:
    """Compile a model to a program.

    model:   a graph, or several by entry-point name, which share weights and states by name.
    target:  ``cpu`` (the best instruction set of this machine), ``cuda``, ``cuda:1`` (its GPUs), ``cpu:x86-64-v3``, ``cuda:sm_90`` ..., a
             TargetConfig (sizes of the processor or GPU that it names), or a CodegenTarget. Several targets are alternatives: a machine
             runs the first one that it supports. For ``cpu`` and ``cuda``, the compiler asks this machine's libraries whether they compute
             the calls that are chosen for them; if one declines, it chooses another kernel. By default the policy's device, else ``cpu``.
    policy:  as in InferenceSession, over ``with_policy`` and the environment. An unmet demand raises (``docs/reference/policy-support.md``).
             A ``Resolved`` policy is used unchanged.
    shapes:  sizes of symbolic dims: one set, or several, each of which becomes an entry point.
    passes:  a level from 0 to 3 or its name, names of passes, or names with a minus: ``"-fuse_conv"`` is the default level without it. The
             default level is the policy's, else 3 (1 for a target without fused kernels).
    phase:   the phase that rules of a policy test, for all entry points or by name.
    weights: the model's arrays by name, if available. A pass may read one to recognize it (a table of rotary angles).
    watch:   called with the name of each pass and the graph after it.
    times:   measured kernel times (``compiler.times``), or the path of such a file. If no rule or preference names a kernel and all usable ones
             were measured, the fastest is chosen.
    lock:    the kernel of each call, which is used without any choice (``LockError`` if it cannot be), or an empty record of the choices.
    on_progress: receives a line of text for each step. Without it, a terminal shows one if compiling takes longer than 2 s.

    The same model, policy, target and compiler (and the same answers of libraries) give the same program, byte for byte.
    Raises BuildError, KernelUnavailable (with its decision), PolicyError, IrError for a symbol without a value; InternalError, with the folder
    of a reproduction, for a fault of the compiler.
    """
    if on_progress is not None:
        check_argument(
            "compile", "on_progress", on_progress, Callable, "a function", "Give a function of text."
        )
    subject = FaultSubject()
    with contained("compile", subject), shown("compiling", "", on_progress):
        return _compile(model, target, policy, shapes, passes, phase, weights, watch, times, lock, subject)


def _compile(
    model: Model | Mapping[str, Graph],
    target: Target | Sequence[Target] | None,
    policy: Any,
    shapes: Mapping[str, int] | Sequence[Mapping[str, int]],
    passes: Sequence[str] | str | int | None,
    phase: str | Mapping[str, str],
    weights: Mapping[str, Any] | None,
    watch: Callable[[str, Graph], None] | None,
    times: KernelTimes | Mapping[str, Any] | str | PathLike[str] | None,
    lock: KernelLock | None,
    subject: FaultSubject,
) -> CompiledProgram:
    """Implement ``compile``. ``subject`` records what a reproduction needs."""
    started = time.perf_counter()
    if watch is not None:
        do = "Give a function of a pass's name and the graph."
        check_argument("compile", "watch", watch, Callable, "a function", do)
    if lock is not None:
        do = "Give KernelLock(kernels), or open a lock file with InferenceSession(model, lock=...)."
        check_argument("compile", "lock", lock, KernelLock, "a KernelLock", do)
    if weights is not None:
        check_names("compile", "weights", weights, "arrays")
    for word in phase.values() if isinstance(phase, Mapping) else (phase,):
        check_phase("compile", word)
    resolved, measured = demanded("compile", {}, policy), KernelTimes.load(times)
    level = resolved.policy.execution.optimization_level
    notes: list[str] = []
    targets = targets_of(target, resolved, notes)
    subject.policy, subject.targets = resolved.policy, tuple(t.name for t in targets)
    default_level = 3 if all(t.takes_fused for t in targets) else 1
    default_level = default_level if level is None else level
    passes = list(passes) if isinstance(passes, Iterable) and not isinstance(passes, str) else passes
    steps = find_passes(default_level if passes is None else passes, default_level)
    rewrites, physical = [s.name for s in steps], any(s.physical for s in steps)
    entries, sizes = _entries(model, shapes, resolved, subject)
    for graph in entries.values():
        check_graph("compile", resolved.policy.execution.transfers, graph)
    subject.replay_args = (
        ()
        if passes is None
        else ("--passes", str(passes) if isinstance(passes, str | int) else ",".join(passes))
    )
    note_count = len(notes)
    demands, casts = settled_precision(
        "compile", entries.values(), resolved.policy, notes, pairs=all(t.kind == "cpu" for t in targets)
    )
    recorded = _recorded_demands(
        resolved, default_level if passes is None else None, fell=len(notes) > note_count
    )
    if casts and "cast_precision" not in rewrites:
        if passes is not None and not _only_leaves_out(passes):
            raise refuse(
                "compile",
                "precision",
                resolved,
                "passes= leaves out cast_precision, which changes the precision",
                "Add that pass, or drop one of the two.",
            )
        rewrites.append("cast_precision")
    if casts and resolved.policy.execution.precision == "float64" and "fuse_pointwise" not in rewrites:
        why = "elementwise nodes stay in float32 without the pass fuse_pointwise (level 3)"
        raise refuse("compile", "precision", resolved, why, "Leave optimization_level at 3.")
    if notes:
        _log.warning("compile: %s", "; ".join(notes))
    phases = dict(phases_of(phase, entries))
    by_phase = {p: Demands(demands, targets, p, weights or {}) for p in dict.fromkeys(phases.values())}
    graphs: dict[str, Graph] = {}
    bodies: dict[str, Graph] = {}
    for name, entry in entries.items():
        _take(subject, entry)
        context = by_phase[phases[name]].context()
        optimized = run_passes(entry, rewrites, context=context, watch=_watched(watch))
        inside = [r for r in rewrites if r != "expand_random"]  # a body has no states
        optimize = functools.partial(run_passes, which=inside, context=context)
        graphs[name] = with_entries(optimized, optimize, phases[name], bodies)
        phases |= dict.fromkeys(bodies.keys() - phases.keys(), phases[name])
    graphs |= bodies
    lowered: list[tuple[str, LoweredGraph]] = []
    binaries: list[Binary] = []
    plans: dict[str, list[ExecutionPlan]] = {name: [] for name in graphs}
    buffer_names: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for t in targets:
        step(f"choosing kernels for {t.name}")
        code = Code(t, len(binaries))
        for name, graph in graphs.items():
            _take(subject, entries.get(name, graph))
            laid, layouts = (
                laid_out(
                    graph,
                    t.config.channel_alignment_bytes,
                    t.any_layout,
                    t.row_major_taps,
                    t.row_major_filters,
                )
                if physical and t.takes_fused
                else (graph, {})
            )
            phase_of_entry = phases[name]
            lowering = lower(
                laid, layouts, t, demands.kernel, offers, phase=phase_of_entry, times=measured, lock=lock
            )
            if lock is not None:
                lock.note_stages(name, lowering.calls)
            plans[name].append(plan_of(lowering, code))
            buffer_names[name] = lowering.inputs, lowering.outputs
            lowered.append((name, lowering))
        with part(f"code generation for {t.name}", bug_types=(TextRefused,)):
            binaries += _assembled(code, [p for mine in plans.values() for p in mine])
    declined = [d for _, low in lowered for d in low.declined]
    if declined and demands.execution.strict:
        raise StrictError(
            "compile",
            "strict=True, and a library does not support a chosen kernel",
            got="; ".join(dict.fromkeys(declined)),
            do="Choose another kernel, or drop strict.",
        )
    first = next(iter(graphs.values()))
    names = ", ".join(t.name for t in targets)
    _log.info("compiled %s for %s in %.2f s", first.name, names, time.perf_counter() - started)
    program = CompiledProgram(
        name=first.name,
        entries=tuple(_entry(n, graphs[n], buffer_names[n], plans[n], sizes.get(n, {})) for n in graphs),
        weights=_by_name(w for _, low in lowered for w in low.known.weights),
        recipes=_by_name(r for _, low in lowered for r in low.known.recipes),
        states=_by_name(s for _, low in lowered for s in low.states),
        binaries=tuple(binaries),
        decisions=_once(
            [
                *(((), d) for a in by_phase.values() for d in a.decisions),
                *(((name,) if len(entries) > 1 else (), d) for name, low in lowered for d in low.decisions),
            ]
        ),
        digest=_digest(graphs, demands, targets, phase, measured, declined, lock),
        facts={"xpuruntime": __version__, "demands": recorded} | _aliases(graphs.values()) | _gpus(targets),
    )
    program = fitted(program)
    if all(b.data for b in binaries):  # some targets leave assembly to the caller
        with part("emit", bug_types=(FormatError,)):
            validate(program, f"program {first.name!r}", "")
    return program


def _only_leaves_out(passes: Sequence[str] | str | int) -> bool:
    """Return True for names with a minus that keep ``cast_precision``: the level decides about all other passes."""
    names = [] if isinstance(passes, str | int) else passes
    return bool(names) and all(n.startswith("-") and n != "-cast_precision" for n in names)


def _recorded_demands(resolved: Resolved, level: int | None, *, fell: bool) -> dict[str, Any]:
    """Return the demands that the program satisfies, for the executor.

    level: the level of the passes.
    fell:  whether another precision is computed than the policy names.
    """
    precision = None if fell else resolved.policy.execution.precision
    rules = [dump(r) for layer in resolved.policy.kernel.layers for r in layer.rules]
    recorded = {"optimization_level": level, "precision": precision, "rules": rules}
    if resolved.policy.kernel.demands_batch_invariance():
        recorded["batch_invariant"] = True
    if words := resolved.policy.kernel.keyword_words():
        recorded |= words._asdict()
    return {name: value for name, value in recorded.items() if value is not None and value != []}


def _assembled(code: Code, plans: Sequence[ExecutionPlan]) -> list[Binary]:
    """Return the binaries. If a compiler rejects the text, report the kernel whose function its message names."""
    try:
        if code.waiting:
            step(f"compiling the generated code, {code.waiting} binaries")
        return code.binaries()
    except TextRefused as error:
        log = str(error.got)
        for call in (c for p in plans for c in p.calls if c.symbol in log):
            with part(emitted_part(call.kernel, call.nodes), bug_types=(TextRefused,)):
                raise
        raise


def _take(subject: FaultSubject, graph: Graph) -> None:
    """Attribute later faults to this graph. If a hand-made graph is invalid itself, its verification error is raised instead."""

    def excuse() -> XpuError | None:
        try:
            verify(graph)
        except XpuError as error:
            return error
        return None

    subject.graph, subject.excuse = graph, excuse


def _watched(watch: Callable[[str, Graph], None] | None) -> Callable[[str, Graph], None] | None:
    """Wrap the user's function, so that its errors are reported as the user's."""
    if watch is None:
        return None

    def watched(name: str, graph: Graph) -> None:
        with foreign():
            watch(name, graph)

    return watched


def _aliases(graphs: Iterable[Graph]) -> dict[str, Any]:
    """Return other names under which a checkpoint may have a weight; empty if there are none."""
    names: dict[str, list[str]] = {}
    for graph in graphs:
        listed = graph.metadata.get("aliases")
        for name, others in listed.items() if isinstance(listed, Mapping) else ():
            texts = [n for n in others if isinstance(n, str)] if isinstance(others, tuple) else []
            names[name] = list(dict.fromkeys([*names.get(name, []), *texts]))
    return {"aliases": names} if names else {}


def _gpus(targets: Iterable[CodegenTarget]) -> dict[str, Any]:
    """Return the sizes of the GPUs that code is generated for, by target; empty if there are none."""
    names = ("num_sms", "smem_per_block", "max_cluster_size")
    sizes = {t.name: {n: getattr(t.config, n) for n in names} for t in targets if t.config.num_sms}
    return {"gpus": sizes} if sizes else {}


def _entries(
    model: Model | Mapping[str, Graph],
    shapes: Mapping[str, int] | Sequence[Mapping[str, int]],
    resolved: Resolved,
    subject: FaultSubject,
) -> tuple[dict[str, Graph], dict[str, dict[str, int]]]:
    """Return static graphs by entry-point name, and the sizes of their symbols."""
    if isinstance(model, Mapping) and model and all(isinstance(g, Graph) for g in model.values()):
        graphs = {str(name): g for name, g in model.items() if isinstance(g, Graph)}
    else:
        graphs = {"main": _graph(model)}
    fixed = fixed_symbols(graphs.values(), resolved)
    buckets = [{**fixed, **b} for b in _buckets(shapes)]
    static_graphs: dict[str, Graph] = {}
    sizes: dict[str, dict[str, int]] = {}
    for name, graph in graphs.items():
        for bucket in buckets:
            _take(subject, graph)
            subject.replay_args = tuple(w for k, v in bucket.items() for w in ("--shape", f"{k}={v}"))
            _check_bounds(graph, bucket)
            static = settled(specialize(graph, bucket))
            if static is not graph:
                verify(static)  # raises for contradictory sizes (two symbols that must be equal)
            live = {k: v for k, v in bucket.items() if k in graph.symbols}
            _check_static(static)
            entry = "_".join([name, *(f"{k}{v}" for k, v in live.items() if len(buckets) > 1)])
            static_graphs[entry], sizes[entry] = static, live
    return static_graphs, sizes


def _buckets(shapes: Any) -> list[Mapping[str, int]]:
    """Return the sets of sizes. Raises IrError for anything else."""
    listed = [shapes] if isinstance(shapes, Mapping) else shapes
    if isinstance(listed, Sequence) and not isinstance(listed, str | bytes):
        wrong = [b for b in listed if not isinstance(b, Mapping) or not all(map(_is_size, b.items()))]
        if not wrong:
            return list(listed) or [{}]
        shapes = wrong[0]
    raise IrError(
        "compile",
        "shapes must be sizes by symbol, or several such sets",
        got=repr(shapes),
        do="Give {'n': 3}.",
    )


def _is_size(item: tuple[Any, Any]) -> bool:
    name, size = item
    return isinstance(name, str) and isinstance(size, int) and not isinstance(size, bool)


def _graph(model: Any) -> Graph:
    if isinstance(model, Graph):
        return model
    if isinstance(model, Mapping):
        return Graph.from_json(model)
    if isinstance(model, str | PathLike):
        return Graph.load(model)
    raise BuildError(
        "compile",
        "needs a graph, its JSON form or the path of a saved graph",
        got=type(model).__name__,
        do="Make a graph with xpuruntime.load_onnx(path) or xpuruntime.extract_ir(module, inputs).",
    )


def _check_bounds(graph: Graph, shapes: Mapping[str, int]) -> None:
    bounds = bounds_of(graph)
    name = outside(bounds, shapes)
    if name:
        raise IrError(
            f"graph {graph.name!r}",
            f"{name} must be {span(bounds[name])}, the sizes that the model was exported for",
            got=shapes[name],
            do="Give a size within these bounds, or export the model with wider bounds.",
        )


def _check_static(graph: Graph) -> None:
    if decided := decided_sizes(graph):
        symbol, node = next(iter(decided.items()))
        raise IrError(
            f"graph {graph.name!r}",
            f"has a size that the values of node {node!r} decide; native programs have static shapes",
            got=symbol,
            do="Open it with InferenceSession, where NumPy computes such nodes, or use a vendor engine.",
        )
    if graph.symbols:
        raise IrError(
            f"graph {graph.name!r}",
            "has symbolic dims without a value; native programs have static shapes",
            got=", ".join(sorted(graph.symbols)),
            do=f"Give shapes={{{', '.join(f'{s!r}: ...' for s in sorted(graph.symbols))}}}, or several such sets.",
        )


def _entry(
    name: str,
    graph: Graph,
    buffer_names: tuple[tuple[str, ...], tuple[str, ...]],
    plans: Sequence[ExecutionPlan],
    sizes: Mapping[str, int],
) -> EntryPoint:
    return EntryPoint(name, graph.input_specs, graph.output_specs, *buffer_names, tuple(plans), sizes)


def _by_name(items: Iterable[_Named]) -> tuple[_Named, ...]:
    return tuple({item.name: item for item in items}.values())


def _once(decisions: Iterable[tuple[tuple[str, ...], Decision]]) -> tuple[Decision, ...]:
    """Return each decision once. Its subject begins with the entry points that it was made for, if there are several in the program."""
    made: dict[str, tuple[dict[str, None], Decision]] = {}
    for entries, decision in decisions:
        names, _ = made.setdefault(
            json.dumps(decision.to_json(), sort_keys=True, default=str), ({}, decision)
        )
        names |= dict.fromkeys(entries)
    return tuple(
        replace(d, subject=f"{', '.join(names)}: {d.subject}") if names else d for names, d in made.values()
    )


def _digest(
    graphs: Mapping[str, Graph],
    policy: Policy,
    targets: Sequence[CodegenTarget],
    phase: str | Mapping[str, str],
    times: KernelTimes,
    declined: Sequence[str],
    lock: KernelLock | None,
) -> str:
    """Return the sha256 of all inputs of the program: optimized graphs, policy, targets, measured times, declined calls, lock, this release."""
    parts = [
        __version__,
        phase if isinstance(phase, str) else dict(phase),
        {name: g.digest for name, g in graphs.items()},
        _relevant_policy(policy).to_dict(),
        [[t.name, repr(t.config)] for t in targets],
        *([times.digest] if times.calls else []),
        *([users] if (users := named_digests(policy.kernel)) else []),
        *([list(declined)] if declined else []),
        *([dict(lock.used)] if lock is not None and not lock.recording else []),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _relevant_policy(policy: Policy) -> Policy:
    """Return the policy without fields that do not affect the program (a session's self-checks)."""
    return Policy(kernel=policy.kernel, execution=replace(policy.execution, self_check=None))
