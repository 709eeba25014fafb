"""200 kills at random moments, while four processes build and read one cache: every later start is right.

A worker asks for one of a few entries under its lock, builds what is absent (slowly enough to be hit), checks what it gets, and says so. It is
killed in the midst and replaced; what the dead leave behind must neither block nor mislead the living.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xpuruntime.storage.store import Store, digest

KILLS, WORKERS, KEYS = 200, 4, 7

# Forked from one process that has imported everything, so that a start costs a millisecond.
NURSERY = """
import os, random, signal, sys, time
from xpuruntime.storage.store import Store, digest

def payload(i):
    return bytes([i]) * (50_000 + 1000 * i)

def work(root, seed):
    random.seed(seed)
    store = Store(root, limit=300_000, mode="rw")
    while True:
        i = random.randrange(KEYS)
        ingredients = {"i": i}
        with store.lock(digest(ingredients)):
            found = store.get("artifact", digest(ingredients))
            if found is None:
                store.put("artifact", ingredients, payload(i))
                found = store.get("artifact", digest(ingredients))
        if found is not None and found != payload(i):  # None: another worker trimmed it
            os.write(1, b"WRONG %d\\n" % i)
            os._exit(1)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        try:
            work(sys.argv[1], int(line))
        except BaseException as error:
            os.write(1, f"RAISED {error!r}\\n".encode())
            os._exit(1)
    os.write(1, b"pid %d\\n" % pid)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")
def test_200_kills_while_four_processes_build_and_read_one_cache(tmp_path: Path) -> None:
    root = tmp_path / "store"
    command = [sys.executable, "-c", f"KEYS = {KEYS}\n{NURSERY}", str(root)]
    dice = random.Random(0)
    said: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None

        def start(seed: int) -> int:
            print(seed, file=nursery.stdin, flush=True)
            while True:
                line = nursery.stdout.readline()
                if line.startswith("pid "):
                    return int(line.split()[1])
                said.append(line)
                assert line, "the nursery died"

        workers = [start(seed) for seed in range(WORKERS)]
        for kill in range(KILLS):
            time.sleep(dice.random() * 0.03)
            victim = dice.randrange(WORKERS)
            os.kill(workers[victim], signal.SIGKILL)
            workers[victim] = start(WORKERS + kill)
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        nursery.stdin.close()
        said += nursery.stdout.readlines()
    assert said == []
    store = Store(root, limit=1 << 30, mode="rw")
    assert store.verify() == []
    halves = list(root.rglob(".tmp-*"))
    for i in range(KEYS):  # a start after all that: locks are free, and what is stored there is whole
        with store.lock(digest({"i": i}), seconds=5):
            found = store.get("artifact", digest({"i": i}))
        assert found in (None, bytes([i]) * (50_000 + 1000 * i))
    for half in halves:
        os.utime(half, (time.time() - 4000,) * 2)
    store.trim()
    assert list(root.rglob(".tmp-*")) == []


def test_a_lock_has_a_limit(tmp_path: Path) -> None:
    store = Store(tmp_path, mode="rw")
    with store.lock("k"):
        began = time.monotonic()
        with (
            pytest.raises(TimeoutError, match="another process has held the lock"),
            store.lock("k", seconds=0.1),
        ):
            pass
        assert time.monotonic() - began > 0.09
    with store.lock("k", seconds=0):
        pass
