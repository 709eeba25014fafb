"""The watch over ranks: processes that are killed, that leave, that stop without a sign; and the stores by which they find each other."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from xpuruntime.errors import InputError
from xpuruntime.runtime.collectives.rank_stores import FileRankStore, TorchRankStore, rank_store
from xpuruntime.runtime.collectives.watch import RankWatch

OTHER = """
import sys, time
from xpuruntime.runtime.collectives.rank_stores import FileRankStore
from xpuruntime.runtime.collectives.watch import RankWatch
watch = RankWatch(FileRankStore(sys.argv[1]), name="g", rank=1, size=2, lost_after_s=60, on_lost=print, failed=lambda: "")
watch.announce(); watch.start(); print("here", flush=True)
sys.stdin.readline(); watch.stop()
"""


class Watched:
    """Rank 0, which watches."""

    def __init__(self, folder: Path, lost_after_s: float) -> None:
        self.reasons: list[str] = []
        self.lost = threading.Event()
        self.failure = ""
        self.watch = RankWatch(
            FileRankStore(folder), name="g", rank=0, size=2, lost_after_s=lost_after_s, on_lost=self._on_lost, failed=lambda: self.failure
        )  # fmt: skip
        self.watch.announce()
        self.watch.start()

    def _on_lost(self, reason: str) -> None:
        self.reasons.append(reason)
        self.lost.set()


def other(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def test_a_killed_process_is_seen_long_before_its_silence_counts(tmp_path: Path) -> None:
    process = other(tmp_path)
    rank = Watched(tmp_path, lost_after_s=60)
    time.sleep(0.7)
    assert not rank.reasons
    process.kill()  # not waited for: a zombie has ended, too
    assert rank.lost.wait(9)
    assert rank.reasons == [f"the process of rank 1, {process.pid}, has ended"]
    process.communicate()
    rank.watch.stop()


def test_a_rank_that_leaves_is_told_apart(tmp_path: Path) -> None:
    process = other(tmp_path)
    rank = Watched(tmp_path, lost_after_s=1.5)
    process.communicate("\n", timeout=10)
    assert rank.lost.wait(9)
    assert rank.reasons == ["rank 1 has left the group"]
    rank.watch.stop()


def test_silence_counts_after_its_time(tmp_path: Path) -> None:
    """A rank on another host, whose process nobody here can ask for."""
    FileRankStore(tmp_path).put("g/process/1", b'{"host": "elsewhere", "pid": 1, "started": "5"}')
    rank = Watched(tmp_path, lost_after_s=1.0)
    assert rank.lost.wait(9)
    assert rank.reasons == ["rank 1 gave no sign of life for 1 s"]
    rank.watch.stop()


def test_an_error_of_the_group_itself_is_passed_on(tmp_path: Path) -> None:
    rank = Watched(tmp_path, lost_after_s=60)
    rank.failure = "ncclAllReduce: unhandled system error"
    assert rank.lost.wait(9)
    assert rank.reasons == ["ncclAllReduce: unhandled system error"]
    rank.watch.stop()
    rank.watch.stop()


def test_a_store_is_a_folder_or_of_torch(tmp_path: Path) -> None:
    store = rank_store(tmp_path / "new")
    assert isinstance(store, FileRankStore)
    assert store.look("g/id") is None
    store.put("g/id", b"\0\xff")
    store.put("g/id", b"\1\0")
    assert rank_store(str(tmp_path / "new")).look("g/id") == b"\1\0"
    with pytest.raises(InputError, match="needs a store; got 5"):
        rank_store(5)


def test_torch_s_store_holds_the_same(tmp_path: Path) -> None:
    distributed: Any = pytest.importorskip("torch.distributed")
    store = rank_store(distributed.FileStore(str(tmp_path / "torch"), 1))
    assert isinstance(store, TorchRankStore)
    assert store.look("a/b") is None
    store.put("a/b", b"\0 five\xff")
    assert store.look("a/b") == b"\0 five\xff"
