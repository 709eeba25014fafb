"""The manifest of the program file as a table of records. Reader, writer and JSON Schema are derived from it.

``python -m xpuruntime.program.schema`` prints the schema; the committed copy is ``docs/schema/program.schema.json``. ``validate``
checks what a schema cannot express: that names resolve, and that live buffers do not overlap.
"""

from __future__ import annotations

import json
from typing import Any

from ..decisions import Candidate, Decision, Reason
from .data_kinds import BINARY, BLOB, NUMBER, PLAIN, SPEC
from .kinds import FLAG, MAX_SIZE, TEXT, Bad, Kind, choice, integer, listed, mapping, optional, record, text
from .program import (
    Binary,
    BufferAllocation,
    BufferKind,
    CompiledProgram,
    EntryPoint,
    ExecutionPlan,
    GoldenSample,
    KernelCall,
    KernelParam,
    RecipeStep,
    StateRef,
    WeightRef,
    WeightTransformRecipe,
)

__all__ = ["FORMAT", "MAJOR", "MINOR", "PROGRAM", "program_schema"]

FORMAT = "xpuruntime.program"
MAJOR, MINOR = 1, 2

_NAME = text(1)
_SIZE = integer(0, MAX_SIZE)
_COUNT = integer(0, 2**62)
_CALL_INDEX = integer(-1, 2**31 - 1)

_SOURCE_TEXT = Kind(
    lambda value, context: _decoded(BINARY.read(value, context)),
    lambda value, writing: writing.add(value.encode()),
    {**BINARY.schema, "description": "index of a segment of UTF-8 text"},
)
_PARAM = record(KernelParam, name=_NAME, type=_NAME, value=NUMBER)
_CALL = record(
    KernelCall,
    kernel=_NAME,
    symbol=_NAME,
    inputs=listed(_NAME, max_items=1 << 14),
    outputs=listed(_NAME, max_items=1 << 14),
    params=listed(_PARAM, max_items=1 << 12),
    tasks=integer(1, 2**62),
    grain=integer(1, 2**62),
    scratch_bytes=_SIZE,
    library=TEXT,
    options=mapping(PLAIN),
    nodes=listed(TEXT),
    ops=listed(TEXT),
    flops=_COUNT,
    bytes=_COUNT,
    binary=integer(-1, 1 << 16),
)
_BUFFER = record(
    BufferAllocation,
    name=_NAME,
    kind=choice(BufferKind),
    spec=SPEC,
    size_bytes=_SIZE,
    root=_NAME,
    offset=_SIZE,
    first=_CALL_INDEX,
    last=_CALL_INDEX,
)
_PLAN = record(
    ExecutionPlan,
    target=_NAME,
    binary=integer(-1, 1 << 16),
    calls=listed(_CALL),
    buffers=listed(_BUFFER),
    arena_bytes=_SIZE,
    batch=integer(1, 2**31 - 1),
)
_ENTRY = record(
    EntryPoint,
    name=_NAME,
    inputs=listed(SPEC),
    outputs=listed(SPEC),
    input_buffers=listed(_NAME),
    output_buffers=listed(_NAME),
    plans=listed(_PLAN, 1, 1 << 10),
    symbols=mapping(_SIZE),
)
_WEIGHT = record(
    WeightRef,
    name=_NAME,
    spec=SPEC,
    file=TEXT,
    format=TEXT,
    key=TEXT,
    offset=_SIZE,
    digest=TEXT,
    data=optional(BLOB),
)
_STEP = record(RecipeStep, op=_NAME, inputs=listed(_NAME, max_items=1 << 12), attrs=mapping(PLAIN))
_RECIPE = record(
    WeightTransformRecipe, name=_NAME, spec=SPEC, source=TEXT, steps=listed(_STEP, max_items=1 << 16)
)
_STATE = record(StateRef, name=_NAME, spec=SPEC, init=TEXT)
_BINARY = record(
    Binary,
    target=_NAME,
    format=_NAME,
    requires=listed(_NAME, max_items=1 << 10),
    symbols=listed(_NAME),
    data=BINARY,
    source=_SOURCE_TEXT,
    compiler=TEXT,
)
_CANDIDATE = record(Candidate, name=TEXT, code=choice(Reason), reason=TEXT, do=TEXT, facts=mapping(PLAIN))
_DECISION = record(
    Decision, question=TEXT, subject=TEXT, chosen=optional(_CANDIDATE), rejected=listed(_CANDIDATE)
)

_GOLDEN = record(
    GoldenSample,
    entry=_NAME,
    inputs=listed(_WEIGHT, max_items=1 << 12),
    outputs=listed(_WEIGHT, 1, 1 << 12),
    target=_NAME,
    exact=FLAG,
)

PROGRAM: Kind = record(
    CompiledProgram,
    name=TEXT,
    entries=listed(_ENTRY, 1, 1 << 12),
    weights=listed(_WEIGHT),
    recipes=listed(_RECIPE),
    states=listed(_STATE),
    binaries=listed(_BINARY, max_items=1 << 10),
    decisions=listed(_DECISION),
    digest=TEXT,
    facts=mapping(PLAIN),
    golden=listed(_GOLDEN, max_items=1 << 10),
)
"""A whole program without its segments."""


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Bad("is not UTF-8 text") from error


def program_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the manifest."""
    segment = {
        "type": "object",
        "description": "Locations of bytes in the file: at multiples of 64, in the order of this list, with zeros between",
        "required": ["offset", "bytes", "sha256"],
        "properties": {
            "offset": _SIZE.schema,
            "bytes": _SIZE.schema,
            "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        },
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:xpuruntime:program:{MAJOR}",
        "title": "xpuruntime program manifest",
        "description": f"The JSON part of a .npubin file, version {MAJOR}.{MINOR}.",
        "type": "object",
        "required": ["format", "segments", "program"],
        "properties": {
            "format": {"const": FORMAT},
            "segments": {"type": "array", "items": segment},
            "program": PROGRAM.schema,
        },
        "additionalProperties": False,
    }


if __name__ == "__main__":
    print(json.dumps(program_schema(), indent=2))
