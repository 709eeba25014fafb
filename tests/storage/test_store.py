"""The store: keys, what is put and comes back, modes, views, size."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.errors import PolicyError, StoreError
from xpuruntime.storage.store import Store, digest, write_atomic

PAYLOAD = bytes(range(256)) * 4
KEY_OF = {"model": "m.onnx", "engine": "e 1.2", "threads": 2}


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
    with Store(tmp_path / "never", mode="off").lock(key):
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
    program = "import os, pwd; from xpuruntime.storage.store import Store; os.setuid(54321); Store()"
    environment = {
        k: v for k, v in os.environ.items() if k not in ("HOME", "XPU_CACHE_DIR", "XDG_CACHE_HOME")
    }
    if os.getuid() != 0:
        pytest.skip("only root can become a user that has no home")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert "this user has no home folder. Set XPU_CACHE_DIR to a writable folder." in done.stderr


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


def test_write_atomic_replaces_the_whole_file_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomic(path, b"one", b"two")
    assert path.read_bytes() == b"onetwo"
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(TypeError):
        write_atomic(path, b"three", "text")  # type: ignore[arg-type]
    assert path.read_bytes() == b"onetwo"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


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


def test_a_store_with_room_is_not_listed_at_every_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trim, trimmed = Store.trim, []
    monkeypatch.setattr(Store, "trim", lambda store, **more: trimmed.append(more) or trim(store, **more))
    keys = [Store(tmp_path, limit=1 << 30, mode="rw").put("engine", {"i": i}, b"x" * 100) for i in range(20)]
    assert trimmed == [{"keep": keys[0]}]
    monkeypatch.setattr("xpuruntime.storage.store._LIST_AGAIN", 0)
    last = Store(tmp_path, limit=1 << 30, mode="rw").put("engine", {"i": 20}, b"x" * 100)
    assert trimmed[1:] == [{"keep": last}]


def test_entries_of_other_processes_count_towards_the_limit(tmp_path: Path) -> None:
    """They appear after this process listed the store, and a small part of the room may be written before it does so again."""
    store = Store(tmp_path / "store", limit=100_000, mode="rw")
    store.put("engine", {"i": -1}, b"x" * 1000)
    other = Store(tmp_path / "other", limit=100_000, mode="rw")
    for i in range(9):
        other.put("engine", {"i": i}, b"x" * 10_000)
    shutil.copytree(other.root, store.root, dirs_exist_ok=True)
    for i in range(100, 107):
        store.put("engine", {"i": i}, b"x" * 1000)
    assert len(store.entries()) < 1 + 9 + 7
    assert sum(e.bytes_ for e in store.entries()) <= 100_000
