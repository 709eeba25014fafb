"""The store keeps whole entries or none: through kills, full disks and several processes."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xpuruntime.errors import StoreError
from xpuruntime.storage.store import Store, digest

PAYLOAD = bytes(range(256)) * 4
KEY_OF = {"model": "m.onnx", "engine": "e 1.2", "threads": 2}


def python(program: str, *arguments: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], text=True, stdout=subprocess.PIPE, **more
    )  # type: ignore[call-overload,no-any-return]


WRITER = """
import os, sys
from xpuruntime.storage.store import Store
assert not {"numpy", "onnx", "onnxruntime", "openvino", "torch"} & set(sys.modules)
store = Store(sys.argv[1], limit=1 << 30, mode="rw")
print("ready", flush=True)
for i in range(10**6):
    store.put("engine", {"i": i % 7}, bytes([i % 251]) * (200_000 + i))
"""


@pytest.mark.sampled(one_in=2)
def test_a_writer_killed_at_any_moment_leaves_whole_entries_or_none(store: Store) -> None:
    chance, written = random.Random(0), 0
    for _ in range(40):
        with python(WRITER, str(store.root)) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(chance.random() * 0.03)
            writer.send_signal(signal.SIGKILL)
        assert store.verify() == []
        for entry in store.entries():
            payload = store.get("engine", entry.key)
            assert payload is not None
            assert len(set(payload)) == 1, "the bytes of two writes in one entry"
            written += 1
    assert written > 40


def test_what_a_killed_writer_leaves_is_cleared_after_an_hour_and_a_live_writer_s_file_is_not(
    store: Store,
) -> None:
    key = store.put("engine", KEY_OF, PAYLOAD)
    folder = store.path("engine", key).parent
    live, dead = folder / ".tmp-live", folder / ".tmp-dead"
    for path in (live, dead):
        path.write_bytes(b"half an entry")
    os.utime(dead, (time.time() - 4000,) * 2)
    assert store.verify() == []
    assert len(store.entries()) == 1
    store.trim(0)
    assert sorted(p.name for p in folder.iterdir()) == [".tmp-live"]


def fails_to_write(program: str, *arguments: str, **more: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        **more,
    )  # type: ignore[call-overload]
    assert done.returncode == 1
    return str(done.stderr.strip().splitlines()[-1])


PUT = "import sys; from xpuruntime.storage.store import Store; Store(sys.argv[1]).put('engine', {'k': 1}, b'x' * 10**6)"


def test_a_limit_on_file_size_is_a_clear_error_and_leaves_nothing(store: Store) -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)); "
    last = fails_to_write(limited + PUT, str(store.root))
    assert "StoreError: [store " in last
    assert "cannot write; got File too large. Point XPU_CACHE_DIR" in last
    assert [p for p in store.root.rglob("*") if p.is_file()] == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 65536


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mount.stderr.strip()}")
    try:
        store = Store(disk / "store", limit=1 << 30, mode="rw")
        small = store.put("engine", {"small": 1}, b"x" * 1000)
        with pytest.raises(StoreError, match=r"cannot write; got No space left on device\. Free disk space"):
            store.put("engine", {"large": 1}, b"x" * 10**6)
        assert store.get("engine", small) == b"x" * 1000
        assert len([p for p in disk.rglob("*") if p.is_file()]) == 1
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_folder_that_cannot_be_written_is_a_clear_error(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    # Root may write anywhere, so another user tries; it changes after the imports, which it may not be able to read.
    become = "import os, xpuruntime.storage.store; os.setgroups([]); os.setgid(54321); os.setuid(54321); "
    last = fails_to_write((become if os.getuid() == 0 else "") + PUT, str(folder / "store"))
    assert "StoreError: [store " in last
    assert (
        "cannot write; got Permission denied. Set XPU_CACHE_MODE=ro, or point XPU_CACHE_DIR at a writable folder."
        in last
    )


def test_a_file_where_the_folder_should_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = Store(tmp_path / "file", mode="rw")
    with pytest.raises(StoreError, match="cannot write"):
        store.put("engine", KEY_OF, b"x")
    with caplog.at_level(logging.WARNING, "xpuruntime.store"):
        assert store.get("engine", digest(KEY_OF)) is None
        with store.lock("k"):
            pass
        store.put("engine", KEY_OF, b"x")  # it was told once; a session must run
    (said,) = caplog.messages
    assert "Not a directory. Point XPU_CACHE_DIR at a writable folder" in said
    assert said.endswith("Continuing without the store.")


COUNT = """
import sys, time
from pathlib import Path
from xpuruntime.storage.store import Store
store, counter = Store(sys.argv[1], mode="rw"), Path(sys.argv[2])
for _ in range(int(sys.argv[3])):
    with store.lock("key"):
        value = int(counter.read_text())
        time.sleep(0.0005)
        counter.write_text(str(value + 1))
"""


def test_the_lock_lets_one_process_at_a_time_in(store: Store, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    with contextlib.ExitStack() as running:
        workers = [
            running.enter_context(python(COUNT, str(store.root), str(counter), "100")) for _ in range(3)
        ]
        assert [w.wait(60) for w in workers] == [0, 0, 0]
    assert counter.read_text() == "300"


HOLD = """
import sys, time
from xpuruntime.storage.store import Store
with Store(sys.argv[1], mode="rw").lock("key"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_holder_that_is_killed_frees_its_lock(store: Store) -> None:
    with python(HOLD, str(store.root)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waiter = python(HOLD, str(store.root))
        time.sleep(0.3)
        assert waiter.poll() is None
        holder.send_signal(signal.SIGKILL)
        with waiter:
            assert waiter.stdout is not None
            assert waiter.stdout.readline() == "held\n"
            waiter.kill()


def test_two_processes_that_put_and_trim_at_once_never_fail(tmp_path: Path) -> None:
    program = """
import sys
from xpuruntime.storage.store import Store
store = Store(sys.argv[1], limit=100_000, mode="rw")
for i in range(150):
    key = store.put("engine", {"i": i % 9}, bytes([i % 9]) * 30_000)
    assert store.get("engine", key) in (None, bytes([i % 9]) * 30_000)
    store.entries(), store.verify()
"""
    with contextlib.ExitStack() as running:
        workers = [running.enter_context(python(program, str(tmp_path))) for _ in range(2)]
        assert [w.wait(60) for w in workers] == [0, 0]
