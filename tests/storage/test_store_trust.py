"""The store is trusted like code: what others could have written is not believed, and what is no entry of ours is left alone."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from xpuruntime.errors import StoreError
from xpuruntime.storage.store import Store, digest

KEY_OF = {"model": "m.onnx", "engine": "e 1.2"}
KEY = digest(KEY_OF)
ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def kept(store: Store) -> Path:
    store.put("artifact", KEY_OF, b"native code")
    return store.path("artifact", KEY)


def test_folders_and_entries_are_for_this_user_alone(store: Store, kept: Path) -> None:
    with store.lock(KEY):
        pass
    for path in (store.root, *store.root.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("place", ["entry", "root", "shard"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_is_not_believed(
    store: Store, kept: Path, place: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = {"entry": kept, "root": store.root, "shard": kept.parent}[place]
    path.chmod(path.stat().st_mode | mode)
    with caplog.at_level(logging.WARNING, "xpuruntime.store"):
        for again in (Store(store.root, mode="rw"), Store(store.root, mode="ro")):
            assert again.get("artifact", KEY) is None
            assert again.view("artifact", KEY) is None
    assert "can be written by other users (mode 0" in caplog.messages[0]
    assert kept.exists() == (place != "entry"), "a store that is not believed is not changed either"


def test_a_shared_folder_is_told_what_to_do_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cache that several users of a CI machine write, on purpose: a session runs without it and says why."""
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(0o2775)
    with caplog.at_level(logging.WARNING, "xpuruntime.store"):
        for _ in range(3):
            shared = Store(root, mode="rw")
            with shared.lock(KEY):
                assert shared.get("artifact", KEY) is None
                assert shared.put("artifact", KEY_OF, b"x") == KEY
    (said,) = caplog.messages
    for text in (
        str(root),
        "mode 2775",
        "chmod -R go-w",
        "XPU_CACHE_DIR",
        "let root fill it",
        "Continuing without the store",
    ):
        assert text in said
    assert list(root.iterdir()) == []
    with pytest.raises(StoreError, match="only you or root may write it"):
        Store(root, mode="rw").put("artifact", KEY_OF, b"x")


@ROOT
@pytest.mark.parametrize("place", ["entry", "root"])
def test_what_belongs_to_another_user_is_not_believed(
    store: Store, kept: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    os.chown(kept if place == "entry" else store.root, 54321, -1)
    assert ("54321" in store.distrust()) == (place == "root")
    assert len(store.verify()) == (place == "entry")
    with caplog.at_level(logging.WARNING, "xpuruntime.store"):
        assert store.get("artifact", KEY) is None
    assert "belongs to user 54321, and this process runs as user 0" in caplog.text


@ROOT
def test_a_store_that_root_filled_can_be_read_by_all(store: Store, kept: Path) -> None:
    for path in (store.root.parent, store.root, *store.root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    program = "import os, sys; from xpuruntime.storage.store import Store; os.setgroups([]); os.setuid(54321); print(Store(sys.argv[1], mode='ro').get('artifact', sys.argv[2]))"
    for folder in store.root.parents:
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    command = [sys.executable, "-c", program, str(store.root), KEY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("b'native code'\n", "")


def no_file(kind: str) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        whole = path.read_bytes()
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(path)
        elif kind == "link":
            path.with_name("elsewhere").write_bytes(whole)
            path.symlink_to("elsewhere")
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as s:
                os.chdir(path.parent)
                s.bind(path.name)
        elif kind == "sparse":
            path.write_bytes(whole)
            os.truncate(path, 1 << 40)

    return put


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "link", "socket", "sparse"])
def test_what_is_no_plain_file_is_an_absent_entry(
    store: Store, kept: Path, kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.root)
    no_file(kind)(kept)
    assert len(store.verify()) == 1
    assert store.entries() == []
    with caplog.at_level(logging.WARNING, "xpuruntime.store"):
        assert store.get("artifact", KEY) is None
    assert "store entry" in caplog.text
    assert not os.path.lexists(kept)
    store.put("artifact", KEY_OF, b"native code")
    assert store.get("artifact", KEY) == b"native code"


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"[" * 100_000, b'{"chosen": 3}', b"\xff\xfe"])
def test_a_record_that_cannot_be_parsed_is_removed_with_a_warning(
    store: Store, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store.put("auto", KEY_OF, payload)
    with caplog.at_level(logging.WARNING, "xpuruntime.store"):
        assert store.recall("auto", KEY, lambda text: json.loads(text)["chosen"]["name"]) is None
    assert "cannot be parsed" in caplog.text
    assert "It is rebuilt." in caplog.text
    assert store.get("auto", KEY) is None


def test_clearing_and_trimming_leave_what_is_not_theirs(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", mode="rw")
    path = store.path("artifact", store.put("artifact", KEY_OF, b"x" * 1000))
    shard = path.parent
    not_theirs = [
        shard / "notes.txt",
        shard / (path.name[:2] + "0" * 62),
        shard / ("0" * 63),
        store.root / "v1" / "README",
    ]
    for other in not_theirs:
        other.write_text("the user's own")
    outside = tmp_path / "outside"
    (outside / "kind" / "00").mkdir(parents=True)
    behind_a_link = outside / "kind" / "00" / ("0" * 64)
    behind_a_link.write_bytes(path.read_bytes())
    (store.root / "v1" / "linked").symlink_to(outside / "kind")
    assert store.trim(0) == [path]
    assert all(other.exists() for other in (*not_theirs, behind_a_link))

    (tmp_path / "second").mkdir(mode=0o700)
    (tmp_path / "second" / "v1").symlink_to(outside)
    assert Store(tmp_path / "second", mode="rw").trim(0) == []
    assert behind_a_link.exists()


def test_clearing_removes_locks_that_nobody_holds(store: Store, kept: Path) -> None:
    folder = store.root / "v1" / "locks"
    with store.lock("held"):
        with store.lock("free"):
            pass
        assert {p.name for p in folder.iterdir()} == {"held.lock", "free.lock"}
        store.trim(0)
        assert {p.name for p in folder.iterdir()} == {"held.lock"}
        with pytest.raises(TimeoutError), store.lock("held", seconds=0):
            pass
    with store.lock("free", seconds=0):
        pass


def test_clearing_closes_the_lock_files(store: Store) -> None:
    opened = Path("/proc/self/fd")
    if not opened.is_dir():
        pytest.skip("needs /proc")
    for i in range(20):
        with store.lock(f"k{i}"):
            pass
    before = len(list(opened.iterdir()))
    store.trim(0)
    assert len(list(opened.iterdir())) < before + 20


def test_a_lock_that_is_a_link_makes_no_file(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with store.lock("k"):
        pass
    lock, target = store.root / "v1" / "locks" / "k.lock", tmp_path / "target"
    lock.unlink()
    lock.symlink_to(target)
    with caplog.at_level(logging.WARNING, "xpuruntime.store"), store.lock("k"):
        pass
    assert not target.exists()
    assert "cannot lock" in caplog.text
