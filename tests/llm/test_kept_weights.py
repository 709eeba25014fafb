"""Weights in the store: mapped at a second start, never half-written, and never those of another checkpoint."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from xpuruntime.llm import Generator
from xpuruntime.storage.store import Store
from xpuruntime.storage.tensor_files import read_safetensors, write_safetensors

from .test_plan_and_receipt import opened, write_checkpoint

TEXT = [1, 2, 3, 4, 5]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("xpuruntime.llm.programs.SETTLED_S", -1.0)
    return write_checkpoint(tmp_path / "model")


def kept(model: Generator) -> bool:
    assert model.programs.loaded is not None
    return model.programs.loaded.from_store


def test_a_second_start_maps_the_weights(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with opened(folder, cache_dir=store) as first:
        want = first.generate(TEXT, max_new_tokens=12)
        assert not kept(first)
        packed = {n: b.to_numpy() for n, b in first.weights.items()}
    (entry,) = [e for e in Store(store).entries() if e.kind == "weights"]
    assert not Store(store).verify()
    with opened(folder, cache_dir=store) as second:
        assert kept(second)
        assert second.generate(TEXT, max_new_tokens=12) == want
        assert all(np.array_equal(b.to_numpy(), packed[n]) for n, b in second.weights.items())
        lines = [m.split() for m in Path("/proc/self/maps").read_text().splitlines() if str(entry.path) in m]
        spans = [tuple(int(x, 16) for x in line[0].split("-")) for line in lines]
        assert all(any(a <= b.address < e for a, e in spans) for b in second.weights.values())
        assert all(b.address % 64 == 0 for b in second.weights.values())
        decision = second.plan.decision("weights")
        assert decision is not None
        assert "mapped from the store" in decision.explain()
        next(iter(second.weights.values())).native_handle[:] = (
            0  # a private mapping: the file keeps its bytes
        )
    assert not Store(store).verify()
    with opened(folder, cache_dir=store) as third:
        assert third.generate(TEXT, max_new_tokens=12) == want


def test_weights_of_a_changed_checkpoint_are_read_again(folder: Path, tmp_path: Path) -> None:
    with opened(folder, cache_dir=tmp_path) as first:
        before = first.generate(TEXT, max_new_tokens=12)
    file = folder / "model.safetensors"
    arrays = {n: np.array(a) for n, a in read_safetensors(file).items()}
    name = "model.layers.1.mlp.down_proj.weight"
    arrays[name] = -arrays[name]
    write_safetensors(arrays, file)
    with opened(folder, cache_dir=tmp_path) as second, opened(folder, cache_dir=tmp_path / "other") as alone:
        assert not kept(second)
        after = second.generate(TEXT, max_new_tokens=12)
        assert after == alone.generate(TEXT, max_new_tokens=12)
        assert after != before
    with opened(folder, cache_dir=tmp_path) as third:
        assert kept(third)
        assert third.generate(TEXT, max_new_tokens=12) == after


def test_a_truncated_file_is_not_mapped(folder: Path, tmp_path: Path) -> None:
    with opened(folder, cache_dir=tmp_path) as first:
        want = first.generate(TEXT, max_new_tokens=12)
    (entry,) = [e for e in Store(tmp_path).entries() if e.kind == "weights"]
    with entry.path.open("r+b") as file:
        file.truncate(entry.bytes_ - 64)
    for expected in (False, True):
        with opened(folder, cache_dir=tmp_path) as again:
            assert kept(again) is expected
            assert again.generate(TEXT, max_new_tokens=12) == want


def test_files_that_just_changed_and_policies_without_a_store_keep_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xpuruntime.llm.programs.SETTLED_S", 3600.0)
    with opened(folder, cache_dir=tmp_path) as ours:
        assert not kept(ours)
    assert [e.kind for e in Store(tmp_path).entries() if e.kind == "weights"] == []
    monkeypatch.setattr("xpuruntime.llm.programs.SETTLED_S", -1.0)
    monkeypatch.setenv("XPU_CACHE_BYTES", "100 KiB")  # the weights would fill it
    with opened(folder, cache_dir=tmp_path) as ours:
        ours.generate(TEXT, max_new_tokens=2)
    assert [e.kind for e in Store(tmp_path).entries() if e.kind == "weights"] == []


KILLED = """
import os, signal, sys, threading
import xpuruntime.llm.programs as programs
from xpuruntime.llm import Generator
programs.SETTLED_S = -1.0
sync = os.fsync
def fsync(handle):
    if threading.current_thread().name == "xpuruntime-weights":
        os.kill(os.getpid(), signal.SIGKILL)
    sync(handle)
os.fsync = fsync
model = Generator(sys.argv[1], buckets=(8, 16), cache_dir=sys.argv[2])
print(list(model.generate([1, 2, 3, 4, 5], max_new_tokens=12).tokens), flush=True)
model.close()
print("not killed", flush=True)
"""


def test_a_killed_process_leaves_nothing_half_written(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder), str(store)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -9, done.stderr
    assert "not killed" not in done.stdout
    assert [e.kind for e in Store(store).entries() if e.kind == "weights"] == []
    assert not Store(store).verify()
    assert list((store / "v1" / "weights").rglob(".tmp-*"))  # what was written of it
    with opened(folder, cache_dir=store) as again:
        assert all(o.from_store for o in again.programs.opened.values())
        assert not kept(again)
        want = again.generate(TEXT, max_new_tokens=12)
    with opened(folder, cache_dir=store) as third:
        assert kept(third)
        assert third.generate(TEXT, max_new_tokens=12) == want


def test_progress_names_the_steps_of_opening(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with opened(folder, cache_dir=tmp_path, on_progress=said.append):
        pass
    assert said[0].startswith("compiling")
    shares = [int(line.split()[-1].rstrip("%")) for line in said if line.startswith("loading weights")]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[-1] > 50
