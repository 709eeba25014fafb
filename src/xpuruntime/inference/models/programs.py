"""A compiled program as the model of a session: its entry points were built before, for targets and by a policy that stand in it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ...files import open_regular
from ...program.file import MAGIC
from ...program.program import CompiledProgram, EntryPoint, WeightRef
from ...program.segment import Segment
from ...protocols import ModelSource, NodeRef
from ...runtime.demands import demanded_precision
from ...types import DType, TensorSpec, dim

DOMAIN = "xpuruntime"
"""Of the nodes of programs: their ops are called as in the IR."""

SUFFIX = ".npubin"

__all__ = ["DOMAIN", "SUFFIX", "buckets_of", "holds_program", "is_program", "open_program"]


def is_program(model: object) -> bool:
    """Return True for a CompiledProgram and for a path that ends in ``.npubin``.

    The content decides nothing: a program runs native code, so a file is one only if its name says so.
    """
    if isinstance(model, CompiledProgram):
        return True
    return isinstance(model, str | os.PathLike) and Path(os.fspath(model)).suffix.lower() == SUFFIX


def holds_program(path: str | os.PathLike[str]) -> bool:
    """Return True for a file that is a program by its name or by its first bytes. For whoever shows it, and never runs it."""
    if is_program(path):
        return True
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False  # whoever opens it next says why


def open_program(model: CompiledProgram | str | os.PathLike[str]) -> ModelSource:
    """The program as a session's model. Raises FormatError."""
    program = model if isinstance(model, CompiledProgram) else CompiledProgram.load(model)
    path = None if isinstance(model, CompiledProgram) else Path(os.fspath(model))
    entries = [program.entry(name) for name in buckets_of(program)]
    return ModelSource(
        name=program.name,
        format="program",
        path=path,
        data=None,
        digest=_digest(program),
        inputs=_open_specs([e.inputs for e in entries]),
        outputs=_open_specs([e.outputs for e in entries]),
        nodes=_nodes(entries[0]),
        precision=_precision(program),
        graph=program,
    )


def buckets_of(program: CompiledProgram, entry: str = "") -> tuple[str, ...]:
    """Entry points that are one function for other shapes: those whose inputs and outputs are called as those of ``entry`` (the first)
    and have its dtypes and ranks. Raises InputError for an entry point that does not exist.
    """

    def kind(e: EntryPoint) -> tuple[tuple[str, DType, int], ...]:
        return tuple((s.name, s.dtype, s.rank) for s in (*e.inputs, *e.outputs))

    wanted = kind(program.entry(entry))
    return (entry,) if entry else tuple(e.name for e in program.entries if kind(e) == wanted)


def _open_specs(each: list[tuple[TensorSpec, ...]]) -> tuple[TensorSpec, ...]:
    """Specs over all entry points: a dim that is not the same in all of them is a symbol."""
    made = []
    for same in zip(*each, strict=True):
        dims = [d[0] if len(set(d)) == 1 else None for d in zip(*(s.shape for s in same), strict=True)]
        name = same[0].name
        shape = tuple(dim(f"{name}_{i}") if d is None else d for i, d in enumerate(dims))
        made.append(TensorSpec(shape, same[0].dtype, name))
    return tuple(made)


def _nodes(entry: EntryPoint) -> tuple[NodeRef, ...]:
    """The model's nodes that the first alternative says it computes, each once."""
    found: dict[str, NodeRef] = {}
    for call in entry.plans[0].calls:
        alike = len(call.nodes) == len(call.ops)
        for i, name in enumerate(call.nodes):
            op = call.ops[i] if alike else call.ops[0] if call.ops else call.kernel.partition("/")[0]
            found.setdefault(name, NodeRef(name, op, DOMAIN))
    return tuple(found.values())


def _precision(program: CompiledProgram) -> DType:
    """The precision that it was compiled for; else the float type of most weight bytes; else of the widest border; else float32."""
    if demanded := demanded_precision(program):
        return demanded
    sizes: dict[DType, int] = {}
    for ref in program.weights:
        if ref.spec.dtype.is_float:
            sizes[ref.spec.dtype] = sizes.get(ref.spec.dtype, 0) + (ref.spec.size_bytes or 0)
    borders = [s.dtype for s in (*program.input_specs, *program.output_specs) if s.dtype.is_float]
    return (
        max(sizes, key=sizes.__getitem__)
        if sizes
        else max(borders, key=lambda d: d.bits, default=DType.FLOAT32)
    )


def _digest(program: CompiledProgram) -> str:
    """sha256 of what it was built from and of its weights. Files that only the program's folder tells apart, and programs without a
    digest, count as themselves alone.
    """

    def weight(ref: WeightRef) -> Any:
        data = ref.data
        if isinstance(data, bytes):
            return [ref.name, hashlib.sha256(data).hexdigest()]
        if isinstance(data, Segment):
            return [ref.name, data.digest]
        return [ref.name, ref.digest, ref.file, ref.key, ref.offset, program.folder]

    parts = [program.digest or f"unnamed {id(program)}", *map(weight, program.weights)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
