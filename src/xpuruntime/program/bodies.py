"""Rules for control flow in programs: a call of the library ``control`` runs entry points that fit its buffers, and never itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..types import DType, TensorSpec
from .program import CompiledProgram, EntryPoint, ExecutionPlan, KernelCall

__all__ = ["MAX_DEPTH", "control_problems"]

MAX_DEPTH = 16
"""Maximum nesting of entry points that run entry points."""
_FLAG, _COUNT = (DType.BOOL, 1), (DType.INT64, 8)


def control_problems(program: CompiledProgram) -> Iterator[str]:
    """Yield each violation. Names of buffers are valid already."""
    entries = {e.name: e for e in program.entries}
    for entry in program.entries:
        for plan in entry.plans:
            for i, call in enumerate(plan.calls):
                if call.library == "control":
                    for problem in _call(entries, plan, call):
                        yield f"entry point {entry.name!r}, call {i} ({call.kernel}): {problem}"
    for entry in program.entries:
        if _depth(entries, entry.name) > MAX_DEPTH:
            yield f"entry point {entry.name!r} runs itself, or entry points more than {MAX_DEPTH} levels deep"


def _run_by(entry: EntryPoint) -> Iterator[str]:
    for call in (c for p in entry.plans for c in p.calls if c.library == "control"):
        names = call.options.get("entries")
        if isinstance(names, list | tuple):
            yield from (n for n in names if isinstance(n, str))


def _depth(entries: Mapping[str, EntryPoint], start: str) -> int:
    """Return the nesting below an entry point, level by level; above the maximum for a cycle."""
    level, depth = {start}, 0
    while level and depth <= MAX_DEPTH:
        level = {n for e in level if e in entries for n in _run_by(entries[e])}
        depth += bool(level)
    return depth


def _call(entries: Mapping[str, EntryPoint], plan: ExecutionPlan, call: KernelCall) -> Iterator[str]:
    options = call.options
    kind, names = options.get("op"), options.get("entries")
    count = {"cond": 2, "loop": 1, "fail": 0}.get(kind if isinstance(kind, str) else "")
    if count is None:
        yield f"is of the unknown kind {kind!r}"
        return
    if not isinstance(names, list | tuple) or len(names) != count or any(n not in entries for n in names):
        yield f"runs {names!r}, which is not {count} of the program's entry points"
        return
    buffers = {b.name: b.spec for b in plan.buffers}
    inputs, outputs = [buffers[n] for n in call.inputs], [buffers[n] for n in call.outputs]
    if any(not s.is_static or not s.is_dense for s in (*inputs, *outputs)):
        yield "has a buffer that is not dense and static"
        return
    if kind == "fail":
        if not isinstance(options.get("reason"), str):
            yield "has no reason"
        return
    if kind == "cond":
        if not inputs or not _is(inputs[0], *_FLAG):
            yield "has no condition"
            return
        for name in names:
            yield from _fits(entries[name], inputs[1:], outputs)
        return
    yield from _loop(entries[names[0]], call, inputs, outputs)


def _is(spec: TensorSpec, dtype: DType, size: int) -> bool:
    return spec.dtype is dtype and spec.size_bytes == size


def _loop(
    body: EntryPoint, call: KernelCall, inputs: list[TensorSpec], outputs: list[TensorSpec]
) -> Iterator[str]:
    kinds = {"limited": bool, "conditional": bool, "checked": bool, "carried": int, "trips": int}
    wrong = [k for k, kind in kinds.items() if type(call.options.get(k)) is not kind]
    if wrong:
        yield f"has no {wrong[0]!r} of its loop"
        return
    limited, conditional, checked, carried, trips = (call.options[k] for k in kinds)
    if limited and (not inputs or not _is(inputs.pop(0), *_COUNT)):
        yield "has no number of iterations"
        return
    if conditional and (not inputs or not _is(inputs.pop(0), *_FLAG)):
        yield "has no condition"
        return
    stacked = len(outputs) - 2 * carried
    if not 0 <= carried <= len(inputs) or stacked < 0 or (trips < 0 and not limited and not checked):
        yield f"carries {carried} of {len(inputs)} values, or never ends"
        return
    if stacked and (trips < 0 or checked or limited or conditional):
        yield "stacks results of a number of iterations that is not known"
        return
    rows: list[TensorSpec] = []
    for spec in outputs[carried : carried + stacked]:
        if not spec.rank or spec.shape[0] != trips:
            yield f"stacks {trips} results in {spec}"
            return
        rows.append(TensorSpec(spec.shape[1:], spec.dtype))
    sizes = zip(outputs[:carried], outputs[carried + stacked :], strict=True)
    if any((spare.size_bytes or 0) < (final.size_bytes or 0) for final, spare in sizes):
        yield "has a second buffer that is smaller than its carried value"
        return
    flag = [TensorSpec((), DType.BOOL)] if checked else []
    yield from _fits(body, [TensorSpec((), DType.INT64), *inputs], [*flag, *outputs[:carried], *rows])
    if any(_form(a) != _form(b) for a, b in zip(inputs[:carried], outputs[:carried], strict=True)):
        yield "carries a value that changes its type"


def _form(spec: TensorSpec) -> tuple[object, ...]:
    return tuple(spec.shape), spec.dtype


def _fits(entry: EntryPoint, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Iterator[str]:
    for role, own, passed in (("input", entry.inputs, inputs), ("output", entry.outputs, outputs)):
        if [_form(s) for s in own] != [_form(s) for s in passed]:
            yield f"does not have the {role}s of entry point {entry.name!r}"
