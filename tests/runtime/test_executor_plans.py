"""Which of a program's alternatives this machine runs, and code that cannot be loaded."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from xpuruntime.errors import BuildError, FormatError, UnavailableError
from xpuruntime.program.program import CompiledProgram
from xpuruntime.runtime import Executor

sys.path.insert(0, str(Path(__file__).parent))
from handmade import binary, call, chain

sys.path.pop(0)


def with_plans(*requires: tuple[str, ...]) -> CompiledProgram:
    program = chain()
    entry = program.entries[0]
    plans = tuple(
        dataclasses.replace(entry.plans[0], target=f"cpu:level{i}", binary=i) for i in range(len(requires))
    )
    return dataclasses.replace(
        program,
        entries=(dataclasses.replace(entry, plans=plans),),
        binaries=tuple(binary(*r) for r in requires),
    )


def test_the_first_alternative_that_this_machine_runs() -> None:
    executor = Executor(with_plans(("avx9999",), ("lib:nothing>=3",), (), ()))
    assert executor.plan.target == "cpu:level2"
    assert executor.decision.explain().splitlines() == [
        "alternative for chain:main: cpu:level2 (default: the first alternative that this machine runs)",
        "  not cpu:level0 (device_refused): this machine lacks avx9999",
        "  not cpu:level1 (device_refused): this machine lacks lib:nothing>=3",
        "  not cpu:level3 (lower_preference): an earlier alternative runs on this machine",
    ]


def test_no_alternative_is_an_error_with_every_reason() -> None:
    with pytest.raises(UnavailableError, match="cpu:level0: this machine lacks avx9999, sse77") as caught:
        Executor(with_plans(("avx9999", "sse77")))
    assert caught.value.decision is not None
    program = chain()
    entry = program.entries[0]
    foreign = dataclasses.replace(entry.plans[0], target="cuda:sm_90")
    with pytest.raises(UnavailableError, match="cuda:sm_90: compiled for cuda; the device is cpu"):
        Executor(dataclasses.replace(program, entries=(dataclasses.replace(entry, plans=(foreign,)),)))


def test_code_that_cannot_be_loaded() -> None:
    program = chain()
    bad = dataclasses.replace(program.binaries[0], data=b"no ELF at all")
    with pytest.raises(BuildError, match="object code is not a 64-bit ELF shared object"):
        Executor(dataclasses.replace(program, binaries=(bad,)))
    entry = program.entries[0]
    plan = dataclasses.replace(entry.plans[0], calls=(call("absent", "x", "y", 1),))
    with pytest.raises(BuildError, match="the program's object code has no absent"):
        Executor(dataclasses.replace(program, entries=(dataclasses.replace(entry, plans=(plan,)),)))
    plan = dataclasses.replace(entry.plans[0], calls=(call("add", "x nowhere", "y", 1),))
    with pytest.raises(FormatError, match="names a buffer or a binary that it does not have; got 'nowhere'"):
        Executor(dataclasses.replace(program, entries=(dataclasses.replace(entry, plans=(plan,)),)))
