"""The fuzz targets on what once crashed them, and twenty seconds of fuzzing as ``make fuzz`` does it for ten."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from support import fuzz_targets

from xpuruntime.errors import FormatError

CRASHERS = Path(__file__).with_name("crashers")


@pytest.mark.parametrize("path", sorted(CRASHERS.glob("*/*")), ids=lambda p: f"{p.parent.name}-{p.name[:12]}")
def test_what_once_crashed_is_an_error_of_ours(path: Path) -> None:
    fuzz_targets.run(path.parent.name, path.read_bytes())


@pytest.mark.parametrize("target", fuzz_targets.TARGETS)
def test_seeds_are_valid(target: str) -> None:
    """A target that refused its seeds would fuzz nothing."""
    found = fuzz_targets.seeds(target)
    assert len(found) >= 2
    for data in found[:-2] if target == "policy" else found:
        fuzz_targets.TARGETS[target](data)


def test_the_script_fuzzes_every_target(repository: Path) -> None:
    assert runpy.run_path(str(repository / "scripts" / "fuzz.py"))["TARGETS"] == tuple(fuzz_targets.TARGETS)


def test_a_crash_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> None:
        raise KeyError(data)

    monkeypatch.setattr(fuzz_targets, "TARGETS", {"onnx": broken})
    with pytest.raises(KeyError):
        fuzz_targets.run("onnx", b"x")


@pytest.mark.parametrize("target", fuzz_targets.MUTATORS)
def test_mutations_depend_on_their_seed_alone(target: str) -> None:
    data, mutate = fuzz_targets.seeds(target)[0], fuzz_targets.MUTATORS[target]
    assert mutate(data, 7) == mutate(data, 7)
    assert len({mutate(data, seed) for seed in range(40)}) > 20


def test_mutated_programs_reach_every_stage_of_the_reader() -> None:
    """Some pass, some break the schema, some break a rule: digests keep none from it."""
    outcomes, pool = set(), fuzz_targets.seeds("program")
    for seed in range(300):
        data = fuzz_targets.MUTATORS["program"](pool[seed % 3], seed)
        try:
            fuzz_targets.TARGETS["program"](data)
            outcomes.add("passes")
        except FormatError as error:
            outcomes.add(
                "schema"
                if "must be" in error.what
                else "rule"
                if "is not a valid program" in error.what
                else error.what
            )
    assert {"passes", "schema", "rule"} <= outcomes
    assert not any("checksum" in o for o in outcomes)


@pytest.mark.sampled(one_in=3)
@pytest.mark.slow
@pytest.mark.timeout(900)  # all targets
def test_a_short_fuzzing_finds_nothing(
    repository: Path, part: Callable[[Sequence[str], int], list[str]]
) -> None:
    """All targets for ten seconds each; in the gate a drawn one for four seconds."""
    targets = part(list(fuzz_targets.TARGETS), 1)
    seconds = "10" if len(targets) == len(fuzz_targets.TARGETS) else "4"
    for target in targets:  # a process each, so that a slow machine ends none of them
        script = str(repository / "scripts" / "fuzz.py")
        command = [sys.executable, script, "--target", target, "--seconds", seconds]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{target}: ok" in done.stdout
