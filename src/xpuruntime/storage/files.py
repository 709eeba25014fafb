"""Safe reading and writing of files whose path may name a pipe, a device, a link or another user's folder."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from ..errors import StoreError

__all__ = [
    "SETTLED_S",
    "TEMPORARY",
    "file_error",
    "file_identity",
    "open_regular",
    "read_regular",
    "store_error",
    "untrusted",
    "write_atomic",
]

TEMPORARY = ".tmp-"


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading. Raise OSError for anything else: a pipe would block, and a device may never end.

    follow: False also refuses a path that is a symbolic link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except ValueError as error:  # a NUL character in the path
        raise OSError(errno.EINVAL, str(error), repr(path)) from error
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, f"is {_KINDS.get(stat.S_IFMT(mode), 'not a regular file')}", os.fspath(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def read_regular(path: str | os.PathLike[str], max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file. Raise OSError for anything else, and for a file of more than ``max_bytes`` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            raise OSError(errno.EFBIG, f"is too large ({size} bytes, at most {max_bytes})", os.fspath(path))
        return file.read()


SETTLED_S = 2.0
"""A file that changed less than so many seconds ago may change again within the same tick of its file system's clock."""


def file_identity(path: Path) -> list[int] | None:
    """Return device, inode, size, and both times of a file in nanoseconds; None if it cannot be read.

    Any change gives it a new time of status change, which no program can reset.
    """
    try:
        s = path.stat()
    except (OSError, ValueError):
        return None
    return [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]


def untrusted(facts: os.stat_result) -> str:
    """Return the reason why a file or folder cannot be trusted like code; empty if it can.

    The owner must be this user or root, and nobody else may have write permission.
    """
    if facts.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {facts.st_uid}, and this process runs as user {os.geteuid()}"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by other users (mode {stat.S_IMODE(facts.st_mode):04o})"
    return ""


def write_atomic(path: str | os.PathLike[str], *parts: bytes | memoryview, private: bool = False) -> None:
    """Write a file atomically: a temporary file in the same folder, sync, rename. Raise StoreError.

    Links are followed. An existing device or pipe is opened and written directly. A new file gets its mode from the umask, an
    existing file keeps its mode. With ``private``, only this user can read it, and whatever has its name is replaced.
    """
    path = Path(path)
    try:
        real_path = Path(os.path.realpath(path))
        existing = _facts(path)
        if existing is not None and not private and not _replaceable(existing, path, real_path):
            _write_in_place(path, parts)
            return
        real_path.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o600 if private else 0o666 if existing is None else stat.S_IMODE(existing.st_mode) & 0o777
        _replace(real_path, parts, mode, exact=existing is not None and not private)
    except OSError as error:
        raise (store_error if private else file_error)(path, "cannot write", error) from error


def _facts(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _replaceable(existing: os.stat_result, path: Path, real_path: Path) -> bool:
    """Return True for a regular file that has a name. An open file under ``/dev/fd`` may have none.

    Only a path with links is compared with the file that it leads to: without links it is that file, and where another process
    has replaced it since, its facts differ.
    """
    if not stat.S_ISREG(existing.st_mode):
        return False
    if real_path == path.absolute():
        return True
    facts = _facts(real_path)
    return facts is not None and os.path.samestat(existing, facts)


def _write_in_place(path: Path, parts: tuple[bytes | memoryview, ...]) -> None:
    # Without O_NONBLOCK, opening a pipe without a reader blocks forever.
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(handle, "wb") as file:
        os.set_blocking(handle, True)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            file.truncate(0)
        for part in parts:
            file.write(part)


def _replace(path: Path, parts: tuple[bytes | memoryview, ...], mode: int, *, exact: bool) -> None:
    temporary = path.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            if exact:  # the umask reduced the mode above
                os.fchmod(handle, mode)
            os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def store_error(path: Path, what: str, error: OSError) -> StoreError:
    """Return the StoreError for an OSError, with advice by its errno."""
    advice = {
        errno.ENOSPC: "Free disk space, or point XPU_CACHE_DIR at another disk.",
        errno.EROFS: "Set XPU_CACHE_MODE=ro, or point XPU_CACHE_DIR at a writable folder.",
        errno.EACCES: "Set XPU_CACHE_MODE=ro, or point XPU_CACHE_DIR at a writable folder.",
    }.get(error.errno or 0, "Point XPU_CACHE_DIR at a writable folder, or set XPU_CACHE_MODE=off.")
    return StoreError(f"store {path}", what, got=error.strerror or str(error), do=advice)


def file_error(path: Path, what: str, error: OSError) -> StoreError:
    """Return the StoreError for a file that a user named, with advice by its errno."""
    advice = {
        errno.ENOSPC: "Free disk space, or write to another disk.",
        errno.ENXIO: "Start the program that reads the pipe first.",
    }.get(error.errno or 0, "Give a path that you can write.")
    return StoreError(f"file {path}", what, got=error.strerror or str(error), do=advice)
