"""Validation of programs from any source: names resolve, values are inside their buffers, live buffers do not overlap.

The data of a valid program cannot make the executor read or write outside its buffers. The kernels' code is not checked: it is trusted
like a shared library.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath, PureWindowsPath

from ..errors import FormatError
from ..types import TensorSpec
from .bodies import control_problems
from .kinds import MAX_SIZE
from .overlaps import lives, share
from .program import (
    Binary,
    BufferAllocation,
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    GoldenSample,
    KernelCall,
    WeightRef,
)
from .recipe_check import infer_recipe

__all__ = ["problems", "validate"]

_ALIGN = 64
_PARAMS = {"i64": int, "f64": float}
_FORMATS = ("", "safetensors", "raw")


def validate(program: CompiledProgram, who: str, do: str) -> None:
    """Raise FormatError with the first problem."""
    for problem in problems(program):
        raise FormatError(who, f"is not a valid program: {problem}", do=do)


def problems(program: CompiledProgram) -> Iterator[str]:
    """Yield each violation of the rules; nothing for a valid program."""
    if not program.entries:
        yield "it has no entry point"
    yield from _twice("entry point", (e.name for e in program.entries))
    yield from _twice("weight", (w.name for w in program.weights))
    yield from _twice("buffer", [*(r.name for r in program.recipes), *(s.name for s in program.states)])
    for weight in program.weights:
        yield from _in(f"weight {weight.name!r}", _weight(weight))
    yield from _recipes(program)
    yield from _states(program)
    for i, sample in enumerate(program.golden):
        yield from _in(f"golden sample {i}", _golden(program, sample))
    for i, binary in enumerate(program.binaries):
        yield from _in(f"binary {i} ({binary.target})", _binary(binary))
    broken = False
    fixed = {BufferKind.WEIGHT: {r.name: r.spec for r in program.recipes}}
    fixed[BufferKind.STATE] = {s.name: s.spec for s in program.states}
    for entry in program.entries:
        yield from _in(f"entry point {entry.name!r}", _entry(entry))
        for i, plan in enumerate(entry.plans):
            for problem in _plan(program, entry, plan, fixed):
                broken = True
                yield f"entry point {entry.name!r}, plan {i} ({plan.target}): {problem}"
    if not broken:  # these checks rely on resolved names
        yield from control_problems(program)


def _in(location: str, messages: Iterable[str]) -> Iterator[str]:
    return (f"{location}: {problem}" for problem in messages)


def _twice(noun: str, names: Iterable[str]) -> Iterator[str]:
    names_so_far: set[str] = set()
    for name in names:
        if name in names_so_far:
            yield f"duplicate {noun} {name!r}"
        names_so_far.add(name)


# ── parts that entry points share ──


def _weight(weight: WeightRef) -> Iterator[str]:
    if not weight.spec.is_static or weight.spec.layout is not None or weight.spec.size_bytes is None:
        yield f"has no dense, static spec: {weight.spec}"
    elif weight.data is not None and len(weight.data) != weight.spec.size_bytes:
        yield f"has {len(weight.data)} bytes, but {weight.spec} needs {weight.spec.size_bytes}"
    if weight.format not in _FORMATS or bool(weight.file) != bool(weight.format):
        yield f"has the format {weight.format!r} for the file {weight.file!r}"
    if weight.file and not _is_inside(weight.file):
        yield f"names a file outside the program's folder: {weight.file[:80]!r}"
    if weight.digest and (len(weight.digest) != 64 or not set(weight.digest) <= set("0123456789abcdef")):
        yield f"has no sha256: {weight.digest[:80]!r}"
    if not 0 <= weight.offset <= MAX_SIZE:
        yield f"has the invalid offset {weight.offset}"


def _golden(program: CompiledProgram, sample: GoldenSample) -> Iterator[str]:
    """Check that a sample has one embedded array for each input and output of its entry point, of its spec."""
    entry = next((e for e in program.entries if e.name == sample.entry), None)
    if entry is None:
        yield f"is of the entry point {sample.entry[:80]!r}, which does not exist"
        return
    for noun, arrays, specs in (
        ("input", sample.inputs, entry.inputs),
        ("output", sample.outputs, entry.outputs),
    ):
        if [a.name for a in arrays] != [s.name for s in specs]:
            yield f"does not have the {noun}s of {entry.name!r}"
            continue
        for array, spec in zip(arrays, specs, strict=True):
            if array.data is None or array.file:
                yield f"{noun} {array.name!r}: is not embedded"
            if array.spec.shape != spec.shape or array.spec.dtype is not spec.dtype:
                yield f"{noun} {array.name!r}: is {array.spec}, but the entry point has {spec}"
            yield from _in(f"{noun} {array.name!r}", _weight(array))


def _is_inside(file: str) -> bool:
    """Return True if a path stays inside its folder on every operating system."""
    posix, windows = PurePosixPath(file), PureWindowsPath(file)
    escapes = posix.is_absolute() or windows.drive or windows.root or ".." in (*posix.parts, *windows.parts)
    return not escapes and "\0" not in file


def _recipes(program: CompiledProgram) -> Iterator[str]:
    weights = {w.name: w.spec for w in program.weights}
    for recipe in program.recipes:
        try:
            infer_recipe(recipe, weights)
        except ValueError as error:
            yield f"recipe {recipe.name!r}: {error}"


def _states(program: CompiledProgram) -> Iterator[str]:
    specs = {r.name: r.spec for r in program.recipes}
    for state in program.states:
        if state.spec.size_bytes is None:
            yield f"state {state.name!r}: has no size: {state.spec}"
        if state.init and (state.init not in specs or not _alike(specs[state.init], state.spec)):
            yield f"state {state.name!r}: is initialized from {state.init!r}, but no recipe creates it as {state.spec}"


def _alike(a: TensorSpec, b: TensorSpec) -> bool:
    same_type = (a.shape, a.dtype) == (b.shape, b.dtype) and a.is_static
    return same_type and a.physical == b.physical


def _binary(binary: Binary) -> Iterator[str]:
    yield from _twice("symbol", binary.symbols)
    if not binary.data:
        yield "is empty"
    if binary.format.startswith("elf-") and not binary.data.startswith(b"\x7fELF"):
        yield f"is not an ELF object, but its format is {binary.format}"


# ── one entry point ──


def _entry(entry: EntryPoint) -> Iterator[str]:
    for role, specs, names in (
        ("input", entry.inputs, entry.input_buffers),
        ("output", entry.outputs, entry.output_buffers),
    ):
        yield from _twice(role, (s.name for s in specs))
        yield from _twice(f"{role} buffer", names)
        if len(specs) != len(names):
            yield f"has {len(specs)} {role}s and {len(names)} {role} buffers"
        for spec in specs:
            if not spec.name or spec.layout is not None or spec.size_bytes is None:
                yield f"{role} {spec.name!r} is not named, static and dense: {spec}"
    if not entry.plans:
        yield "has no plan"


def _plan(
    program: CompiledProgram,
    entry: EntryPoint,
    plan: ExecutionPlan,
    fixed: Mapping[BufferKind, Mapping[str, TensorSpec]],
) -> Iterator[str]:
    yield from _twice("buffer", (b.name for b in plan.buffers))
    buffers = {b.name: b for b in plan.buffers}
    if not -1 <= plan.binary < len(program.binaries):
        yield f"names binary {plan.binary} of {len(program.binaries)}"
        return
    if not 1 <= plan.batch < 2**31 or not 0 <= plan.arena_bytes <= MAX_SIZE:
        yield f"has a batch of {plan.batch} calls and an arena of {plan.arena_bytes} bytes"
    broken = list(itertools.chain.from_iterable(_buffer(b, buffers, plan) for b in plan.buffers))
    broken += _io_and_fixed(entry, buffers, fixed)
    symbols = {i: frozenset(b.symbols) for i, b in enumerate(program.binaries)}
    for i, call in enumerate(plan.calls):
        plan_symbols = symbols.get(plan.binary_of(call), frozenset())
        broken += _in(f"call {i} ({call.kernel})", _call(call, buffers, plan_symbols, len(program.binaries)))
    yield from broken
    if not broken:  # the checks below rely on resolved names
        yield from lives(entry, plan, buffers)


def _buffer(
    b: BufferAllocation, buffers: Mapping[str, BufferAllocation], plan: ExecutionPlan
) -> Iterator[str]:
    who, root = f"buffer {b.name!r}", buffers.get(b.root)
    if root is None or root.root != root.name:
        yield f"{who} is in {b.root!r}, which is not a buffer with its own memory"
        return
    if b.size_bytes != b.spec.size_bytes:
        yield f"{who} has {b.size_bytes} bytes, but {b.spec} needs {b.spec.size_bytes}"
    if b.kind is not root.kind:
        yield f"{who} is {b.kind}, but it is in {root.name!r}, which is {root.kind}"
    begin = root.offset if root.kind is BufferKind.SCRATCH else 0
    # A value inside another one may be strided, so it ends at its own last element.
    reach = b.size_bytes if b is root else b.spec.extent_bytes
    if b.offset < begin or b.offset + reach > begin + root.size_bytes:
        yield f"{who} at {b.offset} with an extent of {reach} bytes is outside {root.name!r} ({begin} + {root.size_bytes})"
    if (
        b is root
        and b.kind is BufferKind.SCRATCH
        and (b.offset < 0 or b.offset % _ALIGN or b.offset + b.size_bytes > plan.arena_bytes)
    ):
        yield f"{who} at {b.offset} with {b.size_bytes} bytes is outside the arena of {plan.arena_bytes} bytes"
    if b is root and b.kind is not BufferKind.SCRATCH and b.offset:
        yield f"{who} has its own memory, so its offset must be 0, not {b.offset}"
    if (b.offset - begin) * 8 % max(b.spec.dtype.bits, 8):
        yield f"{who} is at {b.offset - begin}, which is not a multiple of its dtype's size"
    if not -1 <= b.first <= b.last <= len(plan.calls):
        yield f"{who} lives from call {b.first} to {b.last} of {len(plan.calls)}"


def _io_and_fixed(
    entry: EntryPoint,
    buffers: Mapping[str, BufferAllocation],
    fixed: Mapping[BufferKind, Mapping[str, TensorSpec]],
) -> Iterator[str]:
    """Check that inputs and outputs match the entry point, and weights and states the program."""
    # An output buffer may alias an input or a state.
    output_kinds = {BufferKind.OUTPUT, BufferKind.INPUT, BufferKind.STATE}
    for role, specs, names, kinds in (
        ("input", entry.inputs, entry.input_buffers, {BufferKind.INPUT}),
        ("output", entry.outputs, entry.output_buffers, output_kinds),
    ):
        for spec, name in zip(specs, names, strict=False):
            b = buffers.get(name)
            if (
                b is None
                or b.kind not in kinds
                or not b.spec.is_dense
                or (b.spec.shape, b.spec.dtype) != (spec.shape, spec.dtype)
            ):
                yield f"{role} {spec.name!r} has no dense buffer {name!r} of {spec.dtype.value}{list(spec.shape)}"
            elif b.kind is BufferKind.INPUT and role == "input" and b.root != name:
                yield f"{role} {spec.name!r} does not have its own memory"
    roots = [b for b in buffers.values() if b.root == b.name]
    io_buffers = {BufferKind.INPUT: set(entry.input_buffers), BufferKind.OUTPUT: set(entry.output_buffers)}
    for b in roots:
        if b.name not in io_buffers.get(b.kind, fixed.get(b.kind, {b.name})):
            yield f"buffer {b.name!r} is {b.kind}, but the {'entry point' if b.kind in io_buffers else 'program'} has none of that name"
        elif b.kind in fixed and not _alike(b.spec, fixed[b.kind][b.name]):
            yield f"buffer {b.name!r} is {b.spec} here and {fixed[b.kind][b.name]} in the program"


def _call(
    call: KernelCall, buffers: Mapping[str, BufferAllocation], symbols: frozenset[str], binaries: int
) -> Iterator[str]:
    unknown = [n for n in (*call.inputs, *call.outputs) if n not in buffers]
    if unknown:
        yield f"uses {unknown[0]!r}, which is not a buffer"
        return
    if not -1 <= call.binary < binaries or (call.library and call.binary >= 0):
        yield f"names binary {call.binary} of {binaries}"
    if not call.library and call.symbol not in symbols:
        yield f"calls {call.symbol!r}, which its binary does not have"
    if call.tasks < 1 or call.grain < 1 or not 0 <= call.scratch_bytes <= MAX_SIZE:
        yield f"has {call.tasks} tasks in grains of {call.grain} with {call.scratch_bytes} bytes of scratch"
    for p in call.params:
        if type(p.value) is not _PARAMS.get(p.type) or (p.type == "i64" and not -(2**63) <= p.value < 2**63):
            yield f"has a parameter {p.name!r} of type {p.type!r} and value {p.value!r}"
    for name in call.outputs:
        if buffers[name].kind in (BufferKind.INPUT, BufferKind.WEIGHT):
            yield f"writes {name!r}, which is {buffers[name].kind}"
    for first, second in itertools.combinations((buffers[n] for n in call.outputs), 2):
        root = buffers.get(first.root)  # _buffer reports a missing root
        if root is not None and first.root == second.root and share(first, second, root):
            yield f"writes two overlapping results in {first.root!r}"
