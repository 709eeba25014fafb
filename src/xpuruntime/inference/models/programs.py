"""A compiled program as the model of a session. Its targets and policy were fixed when it was compiled."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from ...program.file import MAGIC
from ...program.program import CompiledProgram, EntryPoint, WeightRef
from ...program.segment import Segment
from ...protocols import ModelSource, NodeRef
from ...runtime.execution.demands import demanded_precision
from ...storage.files import open_regular
from ...types import DType, TensorSpec, dim

DOMAIN = "xpuruntime"
"""The domain of nodes of programs: their ops have IR names."""

SUFFIX = ".npubin"

__all__ = ["DOMAIN", "SUFFIX", "buckets_of", "holds_program", "is_program", "open_program"]


def is_program(model: object) -> bool:
    """Return True for a CompiledProgram and for a path that ends in ``.npubin``.

    The content is not examined: a program runs native code, so a file counts as one only by its name.
    """
    if isinstance(model, CompiledProgram):
        return True
    return isinstance(model, str | os.PathLike) and Path(os.fspath(model)).suffix.lower() == SUFFIX


def holds_program(path: str | os.PathLike[str]) -> bool:
    """Return True for a file that is a program by its name or its first bytes. For tools that show it and never run it."""
    if is_program(path):
        return True
    try:
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False  # opening it next raises the reason


def open_program(model: CompiledProgram | str | os.PathLike[str]) -> ModelSource:
    """Return the program as a session's model. Raises FormatError."""
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
    """Return the entry points that are one function for different shapes: those with the names, dtypes and ranks of inputs and outputs
    of ``entry`` (default: the first). Raises InputError for an unknown entry point.
    """

    def kind(e: EntryPoint) -> tuple[tuple[str, DType, int], ...]:
        return tuple((s.name, s.dtype, s.rank) for s in (*e.inputs, *e.outputs))

    wanted = kind(program.entry(entry))
    return (
        (entry,) if entry else tuple(e.name for e in program.entries if kind(e) == wanted and not e.is_body)
    )


def _open_specs(each: list[tuple[TensorSpec, ...]]) -> tuple[TensorSpec, ...]:
    """Return specs over all entry points. A dim that differs between them is a symbol."""
    specs = []
    for same in zip(*each, strict=True):
        dims = [d[0] if len(set(d)) == 1 else None for d in zip(*(s.shape for s in same), strict=True)]
        name = same[0].name
        shape = tuple(dim(f"{name}_{i}") if d is None else d for i, d in enumerate(dims))
        specs.append(TensorSpec(shape, same[0].dtype, name))
    return tuple(specs)


def _nodes(entry: EntryPoint) -> tuple[NodeRef, ...]:
    """Return the model's nodes that the first alternative computes, each once."""
    nodes: dict[str, NodeRef] = {}
    for call in entry.plans[0].calls:
        alike = len(call.nodes) == len(call.ops)
        for i, name in enumerate(call.nodes):
            op = call.ops[i] if alike else call.ops[0] if call.ops else call.kernel.partition("/")[0]
            nodes.setdefault(name, NodeRef(name, op, DOMAIN))
    return tuple(nodes.values())


def _precision(program: CompiledProgram) -> DType:
    """Return the precision that it was compiled for, else the float type of most weight bytes, else of the widest input or output, else float32."""
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
    """Return the sha256 of its origin and its weights. Files that only the program's folder identifies, and programs without a digest,
    count as distinct.
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
