"""Files as they may really be: what is saved never replaces a device, a pipe or a link, and what is read must be a plain file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from xpuruntime.errors import StoreError
from xpuruntime.storage import files
from xpuruntime.storage.files import open_regular, read_regular, write_atomic
from xpuruntime.storage.store import Store


@pytest.fixture
def umask():  # type: ignore[no-untyped-def]
    before = os.umask(0)

    def change(mask: int) -> None:
        os.umask(mask)

    yield change
    os.umask(before)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path: Path, umask, mask: int, mode: int) -> None:  # type: ignore[no-untyped-def]
    umask(mask)
    write_atomic(tmp_path / "a", b"x")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


def test_a_file_keeps_its_mode_and_the_store_keeps_its_own(tmp_path: Path, umask) -> None:  # type: ignore[no-untyped-def]
    umask(0o000)
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    path.chmod(0o600)
    write_atomic(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)
    store = Store(tmp_path / "store", mode="rw")
    entry = store.path("model", store.put("model", {"weights of": "a private model"}, b"x"))
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    for content in (b"first", b"second"):  # the first through a link to nothing
        link.unlink(missing_ok=True)
        link.symlink_to(real)
        write_atomic(link, content)
        assert link.is_symlink()
        assert real.read_bytes() == content
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_pipe_is_written_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe, content = tmp_path / "pipe", os.urandom(300_000)
    os.mkfifo(pipe)
    with pytest.raises(
        StoreError, match=r"cannot write; got .*\. Start the program that reads the pipe first\."
    ):
        write_atomic(pipe, content)
    handle = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(handle, True)
    writer = threading.Thread(target=write_atomic, args=(pipe, content[:7], content[7:]))
    writer.start()
    seen, alive = b"", True
    while alive and len(seen) < len(content):
        alive = writer.is_alive()  # a pipe holds 64 KiB: one more read after its end
        seen += os.read(handle, 1 << 16)  # empty before the writer opens the pipe
    writer.join()
    assert seen == content
    assert os.read(handle, 1) == b""
    os.close(handle)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    """A private node: nobody's /dev/null is at stake."""
    node = tmp_path / "null"
    try:
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        node.read_bytes()
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")
    write_atomic(node, b"x" * 100_000)
    link = tmp_path / "link"
    link.symlink_to(node)
    write_atomic(link, b"x")
    assert stat.S_ISCHR(node.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "null"]


def test_standard_output_by_its_name(tmp_path: Path) -> None:
    program = "import sys; from xpuruntime.storage.store import write_atomic; write_atomic(sys.argv[1], b'one', b'two')"
    for name in ("/dev/stdout", "/dev/fd/1"):
        done = subprocess.run([sys.executable, "-c", program, name], capture_output=True, check=False)
        assert (done.stdout, done.stderr) == (b"onetwo", b"")
        with (tmp_path / "out").open("wb") as file:
            file.write(b"longer than what follows")
            subprocess.run([sys.executable, "-c", program, name], stdout=file, check=True)
        assert (tmp_path / "out").read_bytes() == b"onetwo"


@pytest.mark.parametrize("what", ["folder", "loop", "below a file"])
def test_what_cannot_be_written_is_a_clear_error_and_stays(tmp_path: Path, what: str) -> None:
    path = tmp_path / "x"
    if what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path)
    else:
        path.write_bytes(b"file")
        path = path / "y"
    with pytest.raises(
        StoreError, match=r"^\[file .*\] cannot write; got .*\. Give a path that you can write\.$"
    ):
        write_atomic(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("then", [b"another's", None])
def test_a_file_that_another_process_replaces_or_removes_meanwhile_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: bool, then: bytes | None
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    facts_of = files._facts

    def facts_then_change(of: Path) -> os.stat_result | None:
        facts = facts_of(of)
        monkeypatch.setattr(files, "_facts", facts_of)
        path.rename(tmp_path / "old")
        if then is not None:
            path.write_bytes(then)
            os.link(path, tmp_path / "kept")  # shows whether the other process's file was written into
        return facts

    monkeypatch.setattr(files, "_facts", facts_then_change)
    write_atomic(path, b"new", private=private)
    assert path.read_bytes() == b"new"
    assert then is None or (tmp_path / "kept").read_bytes() == then


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_only_a_plain_file_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/zero")
    with pytest.raises(OSError, match=f"is a {kind}"):
        open_regular(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(OSError, match="is too large"):
        read_regular(path, 1 << 20)
