"""The store keeps whole entries or none: damage of every kind is named, and the entry is absent."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xpuruntime.errors import FormatError
from xpuruntime.storage.store import Store, digest

PAYLOAD = bytes(range(256)) * 4
KEY_OF = {"model": "m.onnx", "engine": "e 1.2", "threads": 2}


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
        (lambda b: b[:8] + (2).to_bytes(4, "little") + b[12:], "has format version 2; this release reads 1"),
        (lambda b: b[:12] + b"\xff\xff\xff\xff" + b[16:], "header is damaged; got length 4294967295"),
        (lambda b: b[:16] + b"[" * (len(b) - 16), "header is damaged"),
        (lambda b: b.replace(b'"m.onnx"', b'"n.onnx"'), "the key is not the digest of the ingredients"),
        (lambda b: b[:-1], "is truncated; got 1023 of 1024 bytes"),
        (lambda b: b + b"more", "is longer than its header says; got 1028 of 1024 bytes"),
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
    assert "Remove the file; it is rebuilt when needed." in str(problem)
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


def test_a_view_of_a_damaged_entry_is_refused_like_the_entry(store: Store) -> None:
    key = store.put("engine", KEY_OF, PAYLOAD)
    path = store.path("engine", key)
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:-3] + b"???", whole + b"!", whole[: -len(PAYLOAD)]):
        path.write_bytes(broken)
        assert store.view("engine", key) is None
        assert not path.exists(), "it is removed"
