"""The published schema: current, valid itself, and in agreement with the reader."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.random_programs import random_program

from xpuruntime.errors import FormatError
from xpuruntime.program.kinds import Bad, Reading
from xpuruntime.program.schema import PROGRAM, program_schema
from xpuruntime.program.segment import Segment

jsonschema = pytest.importorskip("jsonschema")
COMMITTED = Path(__file__).parents[2] / "docs" / "schema" / "program.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(program_schema())


def manifest(seed: int) -> dict[str, Any]:
    data = random_program(seed).to_bytes()
    found: dict[str, Any] = json.loads(data[64 : 64 + int.from_bytes(data[16:24], "little")])
    return found


def test_the_committed_schema_is_current() -> None:
    command = [sys.executable, "-m", "xpuruntime.program.schema"]
    made = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert COMMITTED.read_text() == made, f"run: python -m xpuruntime.program.schema > {COMMITTED.name}"


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(program_schema())


@pytest.mark.parametrize("seed", range(12))
def test_what_is_written_fits_the_schema(seed: int) -> None:
    VALIDATOR.validate(manifest(seed))


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(p for key, child in children for p in places(child, (*path, key)))]


def test_schema_and_reader_agree_on_broken_manifests() -> None:
    """A value of the wrong kind anywhere (outside plain data) is refused by both."""
    good = manifest(2)
    segments = [Segment(b"\x7fELF") for _ in good["segments"]]
    tried = 0
    for path in places(good["program"]):
        if not path or {"facts", "options", "attrs", "symbols"} & set(path) or path[-1] in ("value", "data"):
            continue
        for value in (None, -7, "\0" * 3, [[]], {"x": []}):
            broken = copy.deepcopy(good)
            node = broken["program"]
            for key in path[:-1]:
                node = node[key]
            old, node[path[-1]] = node[path[-1]], value
            if type(value) is type(old):
                continue
            if path[-1] == "chosen" and value is None:
                continue  # nothing could be had
            tried += 1
            assert not VALIDATOR.is_valid(broken), path
            with pytest.raises((Bad, FormatError)):
                PROGRAM.read(broken["program"], Reading(segments))
    assert tried > 500
