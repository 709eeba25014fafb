"""The store keeps whole entries or none: through kills, full disks, damage of every kind, and several processes."""

from __future__ import annotations

import contextlib
import json
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
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.errors import FormatError, PolicyError, StoreError
from xpuruntime.store import Store, digest, write_atomic

PAYLOAD = bytes(range(256)) * 4
KEY_OF = {"model": "m.onnx", "engine": "e 1.2", "threads": 2}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", limit=1 << 30, mode="rw")


def python(program: str, *arguments: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], text=True, stdout=subprocess.PIPE, **more
    )  # type: ignore[call-overload,no-any-return]


# Keys


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_a_digest_depends_on_values_and_not_on_their_order(ingredients: dict[str, object]) -> None:
    reverse = dict(reversed(list(ingredients.items())))
    assert digest(ingredients) == digest(reverse)
    assert digest(json.loads(json.dumps(ingredients))) == digest(ingredients)
    assert digest({**ingredients, "one more key": 1}) != digest(ingredients)


def test_digests_are_those_of_every_release() -> None:
    """A changed digest would orphan every user's cache: these two are pinned."""
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert (
        digest({"b": [1, 2.5, None], "a": "ü"})
        == "703dceec79c30480a5c3da98f5873d45349c66854150b1f903de556fe4042245"
    )


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", float("nan")])
def test_only_plain_data_can_be_an_ingredient(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        digest({"a": value})


# The common path


def test_what_is_put_comes_back(store: Store) -> None:
    key = store.put("engine", KEY_OF, PAYLOAD)
    assert key == digest(KEY_OF)
    assert store.get("engine", key) == PAYLOAD
    assert store.get("other", key) is None
    assert store.get("engine", "0" * 64) is None
    assert store.get("engine", store.put("engine", {"empty": True}, b"")) == b""
    assert store.verify() == []


def test_entries_tell_what_they_were_made_from(store: Store) -> None:
    before = time.time()
    store.put("engine", KEY_OF, PAYLOAD)
    (entry,) = store.entries()
    assert (entry.kind, entry.key, entry.ingredients) == ("engine", digest(KEY_OF), KEY_OF)
    assert entry.bytes_ == entry.path.stat().st_size > len(PAYLOAD)
    assert before <= entry.made <= time.time()
    json.dumps(entry.to_json())


def test_a_second_put_replaces_the_first(store: Store) -> None:
    store.put("engine", KEY_OF, b"old")
    assert store.get("engine", store.put("engine", KEY_OF, b"new")) == b"new"
    assert len(store.entries()) == 1


def test_modes(store: Store, tmp_path: Path) -> None:
    key = store.put("engine", KEY_OF, PAYLOAD)
    read_only = Store(store.root, mode="ro")
    assert read_only.get("engine", key) == PAYLOAD
    read_only.put("engine", {"other": 1}, b"x")
    with read_only.lock(key):
        pass
    assert len(store.entries()) == 1
    off = Store(store.root, mode="off")
    assert off.get("engine", key) is None
    assert Store(tmp_path / "never", mode="off").put("engine", KEY_OF, b"x") == key
    assert not (tmp_path / "never").exists()
    with pytest.raises(PolicyError, match=r"\[store\] mode must be rw, ro or off; got 'on'"):
        Store(store.root, mode="on")


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XPU_CACHE_DIR", str(tmp_path / "here"))
    monkeypatch.setenv("XPU_CACHE_BYTES", "1MiB")
    monkeypatch.setenv("XPU_CACHE_MODE", "ro")
    assert repr(Store()) == f"Store({str(tmp_path / 'here')!r}, limit=1048576, mode='ro')"
    monkeypatch.delenv("XPU_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Store().root == tmp_path / "xdg" / "xpuruntime"
    with pytest.raises(StoreError, match="no such folder; got '~no-such-user-here/x'"):
        Store("~no-such-user-here/x")


def test_a_user_without_a_home_is_told_what_to_set() -> None:
    program = "import os, pwd; from xpuruntime.store import Store; os.setuid(54321); Store()"
    environment = {
        k: v for k, v in os.environ.items() if k not in ("HOME", "XPU_CACHE_DIR", "XDG_CACHE_HOME")
    }
    if os.getuid() != 0:
        pytest.skip("only root can become a user that has no home")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert "this user has no home folder. Set XPU_CACHE_DIR to a writable folder." in done.stderr


# Damage


def test_truncation_at_every_byte_is_an_absent_entry_that_is_cleared_away(store: Store) -> None:
    key = store.put("engine", KEY_OF, b"payload")
    path = store.path("engine", key)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert len(store.verify()) == 1, length
        assert store.get("engine", key) is None, length
        assert not path.exists()
    path.write_bytes(whole)
    assert store.get("engine", key) == b"payload"


def test_a_flipped_bit_anywhere_never_changes_what_is_read(store: Store) -> None:
    """Only the note of when an entry was made is not covered by a checksum."""
    key = store.put("engine", KEY_OF, b"payload")
    path = store.path("engine", key)
    whole = path.read_bytes()
    start = whole.index(b'"made": ')
    free = range(start, whole.index(b",", start))
    for at in range(len(whole)):
        for bit in (0, 5, 7):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            path.write_bytes(bytes(damaged))
            got = store.get("engine", key)
            assert got is None or (got == b"payload" and at in free), (at, bit)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda b: b"", "is not a store entry"),
        (lambda b: b"PK\x03\x04" + b[4:], "is not a store entry"),
        (lambda b: b[:8] + (2).to_bytes(4, "little") + b[12:], "has format version 2, this release reads 1"),
        (lambda b: b[:12] + b"\xff\xff\xff\xff" + b[16:], "header is damaged; got length 4294967295"),
        (lambda b: b[:16] + b"[" * (len(b) - 16), "header is damaged"),
        (lambda b: b.replace(b'"m.onnx"', b'"n.onnx"'), "the key is not the digest of the ingredients"),
        (lambda b: b[:-1], "is truncated; got 1023 of 1024 bytes"),
        (lambda b: b + b"more", "is truncated; got 1028 of 1024 bytes"),
        (lambda b: b[:-1] + b"\0", "does not match its checksum"),
    ],
)
def test_damage_is_named_and_the_entry_removed(
    store: Store, damage, says: str, caplog: pytest.LogCaptureFixture
) -> None:  # type: ignore[no-untyped-def]
    key = store.put("engine", KEY_OF, PAYLOAD)
    path = store.path("engine", key)
    path.write_bytes(damage(path.read_bytes()))
    (problem,) = store.verify()
    assert isinstance(problem, FormatError)
    assert says in str(problem)
    assert "Remove the file; it is built again when needed." in str(problem)
    with caplog.at_level(logging.WARNING, "xpuruntime.store"):
        assert Store(store.root, mode="ro").get("engine", key) is None
        assert path.exists(), "a read-only store removes nothing"
        assert store.get("engine", key) is None
    assert says in caplog.text
    assert not path.exists()


def test_an_entry_under_another_key_is_not_believed(store: Store) -> None:
    mine, other = store.put("engine", KEY_OF, b"mine"), store.put("engine", {"other": 1}, b"other")
    store.path("engine", other).replace(store.path("engine", mine))
    assert "belongs to another key" in str(store.verify()[0])
    assert store.get("engine", mine) is None


@given(st.binary(max_size=200))
def test_random_bytes_are_never_an_entry(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    store = Store(tmp_path_factory.getbasetemp() / "random", limit=1 << 30, mode="rw")
    path = store.path("engine", digest(KEY_OF))
    path.parent.mkdir(parents=True, exist_ok=True)
    for content in (data, b"XPUSTORE" + (1).to_bytes(4, "little") + data):
        path.write_bytes(content)
        assert store.entries() == []
        assert store.get("engine", digest(KEY_OF)) is None


def test_a_view_is_the_payload_without_a_copy_and_writing_to_it_changes_no_file(store: Store) -> None:
    payload = bytes(range(256)) * 400
    key = store.put("engine", KEY_OF, payload)
    view = store.view("engine", key)
    assert view is not None
    assert view == payload
    view[:4] = b"mine"
    assert store.get("engine", key) == payload
    store.trim(0)
    assert view[4:] == payload[4:], "the view outlives its entry"
    assert store.view("engine", key) is None


def test_a_view_of_a_damaged_entry_is_refused_like_the_entry(store: Store) -> None:
    key = store.put("engine", KEY_OF, PAYLOAD)
    path = store.path("engine", key)
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:-3] + b"???", whole + b"!", whole[: -len(PAYLOAD)]):
        path.write_bytes(broken)
        assert store.view("engine", key) is None
        assert not path.exists(), "it is removed"


# Kills

WRITER = """
import os, sys
from xpuruntime.store import Store
assert not {"numpy", "onnx", "onnxruntime", "openvino", "torch"} & set(sys.modules)
store = Store(sys.argv[1], limit=1 << 30, mode="rw")
print("ready", flush=True)
for i in range(10**6):
    store.put("engine", {"i": i % 7}, bytes([i % 251]) * (200_000 + i))
"""


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


# The disk


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


PUT = (
    "import sys; from xpuruntime.store import Store; Store(sys.argv[1]).put('engine', {'k': 1}, b'x' * 10**6)"
)


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
    become = "import os, xpuruntime.store; os.setgroups([]); os.setgid(54321); os.setuid(54321); "
    last = fails_to_write((become if os.getuid() == 0 else "") + PUT, str(folder / "store"))
    assert "StoreError: [store " in last
    assert (
        "cannot write; got Permission denied. Set XPU_CACHE_MODE=ro, or point XPU_CACHE_DIR at a writable folder."
        in last
    )


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    store = Store(tmp_path / "file", mode="rw")
    with pytest.raises(StoreError, match="cannot write"):
        store.put("engine", KEY_OF, b"x")
    with pytest.raises(StoreError, match="cannot lock"), store.lock("k"):
        pass
    with pytest.raises(StoreError, match="cannot read"):
        store.get("engine", digest(KEY_OF))


def test_write_atomic_replaces_the_whole_file_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"one", b"two")
    assert path.read_bytes() == b"onetwo"
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(TypeError):
        write_atomic(path, b"three", "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"onetwo"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


# Size


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=1 << 30, mode="rw")
    keys = [store.put("engine", {"i": i}, b"x" * 10_000) for i in range(5)]
    for age, key in enumerate(keys):
        os.utime(store.path("engine", key), (1000.0 + age,) * 2)
    assert store.get("engine", keys[0]) is not None  # used now, so the newest
    removed = store.trim(31_500)
    assert [p.name for p in removed] == [keys[1], keys[2]]
    assert [e.key for e in store.entries()] == [keys[0], keys[4], keys[3]]
    assert len(store.trim(0)) == 3
    assert store.entries() == []


def test_a_put_keeps_the_total_within_the_limit_and_never_removes_what_it_wrote(tmp_path: Path) -> None:
    store = Store(tmp_path, limit=50_000, mode="rw")
    for i in range(12):
        key = store.put("engine", {"i": i}, b"x" * 20_000)
        assert store.get("engine", key) is not None
        assert sum(e.bytes_ for e in store.entries()) <= 50_000
    large = store.put("engine", {"large": 1}, b"x" * 60_000)
    assert [e.key for e in store.entries()] == [large]


# Several processes

COUNT = """
import sys, time
from pathlib import Path
from xpuruntime.store import Store
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
from xpuruntime.store import Store
with Store(sys.argv[1], mode="rw").lock("key"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_holder_that_is_killed_frees_its_lock(store: Store) -> None:
    with python(HOLD, str(store.root)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        started = time.monotonic()
        waiter = python(HOLD, str(store.root))
        time.sleep(0.3)
        assert waiter.poll() is None
        holder.send_signal(signal.SIGKILL)
        with waiter:
            assert waiter.stdout is not None
            assert waiter.stdout.readline() == "held\n"
            assert time.monotonic() - started < 30
            waiter.kill()


def test_two_processes_that_put_and_trim_at_once_never_fail(tmp_path: Path) -> None:
    program = """
import sys
from xpuruntime.store import Store
store = Store(sys.argv[1], limit=100_000, mode="rw")
for i in range(150):
    key = store.put("engine", {"i": i % 9}, bytes([i % 9]) * 30_000)
    assert store.get("engine", key) in (None, bytes([i % 9]) * 30_000)
    store.entries(), store.verify()
"""
    with contextlib.ExitStack() as running:
        workers = [running.enter_context(python(program, str(tmp_path))) for _ in range(2)]
        assert [w.wait(60) for w in workers] == [0, 0]
