"""Watch over the processes of a group: a rank that ends ends the group, so that the others do not wait for it.

NCCL's kernels wait on the GPU for the other ranks, and do not see that a process was killed. Each rank therefore writes a count to the store
twice a second, and reads those of the others. On one host it also asks the system for their processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from .rank_stores import RankStore

__all__ = ["RankWatch"]

_INTERVAL_S = 0.5


def _host() -> str:
    """Return a name of this host and its boot, by which two processes know that they share a process table."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def _started(pid: int) -> str | None:
    """Return when a process of this host started, in the system's own unit; None if it has ended, or the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in ("Z", "X") else fields[19]


class RankWatch:
    """A thread that watches the other ranks.

    lost_after_s: time without a sign of life after which a rank counts as ended.
    on_lost: called once with the reason.
    failed: returns the reason of an error of the group itself; empty without one.
    """

    def __init__(
        self,
        store: RankStore,
        *,
        name: str,
        rank: int,
        size: int,
        lost_after_s: float,
        on_lost: Callable[[str], object],
        failed: Callable[[], str],
    ) -> None:
        self._store, self._name, self._rank = store, name, rank
        self._others = [r for r in range(size) if r != rank]
        self._lost_after_s, self._on_lost, self._failed = lost_after_s, on_lost, failed
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"xpuruntime-rank-{rank}", daemon=True)

    def announce(self) -> None:
        """Write what the other ranks watch."""
        about = {"host": _host(), "pid": os.getpid(), "started": _started(os.getpid())}
        self._store.put(f"{self._name}/process/{self._rank}", json.dumps(about).encode())
        self._beat(0)

    def start(self) -> None:
        """Start to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and tell the others that this rank leaves."""
        if self._ending.is_set():
            return
        self._ending.set()
        with contextlib.suppress(Exception):  # the store may have ended with its rank
            self._store.put(f"{self._name}/left/{self._rank}", b"1")
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _beat(self, count: int) -> None:
        self._store.put(f"{self._name}/alive/{self._rank}", str(count).encode())

    def _run(self) -> None:
        seen: dict[int, tuple[bytes | None, float]] = {}
        count, store_failed = 0, 0.0
        while not self._ending.wait(_INTERVAL_S):
            count += 1
            reason = self._failed()
            try:
                self._beat(count)
                for other in self._others:
                    reason = reason or self._look(other, seen)
                store_failed = 0.0
            except Exception as error:  # any store: of a rank that has ended, on a disk that is full
                now = time.monotonic()
                store_failed = store_failed or now
                if now - store_failed > self._lost_after_s:
                    reason = reason or f"the store of the group failed: {type(error).__name__}: {error}"[:300]
            if reason:
                self._on_lost(reason)
                return

    def _look(self, other: int, seen: dict[int, tuple[bytes | None, float]]) -> str:
        """Return why a rank counts as ended; empty if it lives."""
        now = time.monotonic()
        value = self._store.look(f"{self._name}/alive/{other}")
        last, since = seen.get(other, (None, now))
        if value != last:
            seen[other] = value, now
            return ""
        seen[other] = last, since
        left = self._store.look(f"{self._name}/left/{other}") is not None
        if now - since > self._lost_after_s:
            verb = "has left the group" if left else f"gave no sign of life for {self._lost_after_s:g} s"
            return f"rank {other} {verb}"
        if left:
            return ""
        about = json.loads(self._store.look(f"{self._name}/process/{other}") or b"{}")
        if about.get("started") and about.get("host") == _host():
            pid = int(about["pid"])
            if _started(pid) != about["started"]:
                return f"the process of rank {other}, {pid}, has ended"
        return ""
