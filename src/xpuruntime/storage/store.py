"""The store on disk: content-addressed entries, written atomically, checksummed, size-limited, safe between processes.

    <root>/v1/<kind>/<first two digits of key>/<key>      one file per entry
    <root>/v1/locks/<key>.lock                            held by the process that builds the entry

An entry (``entry_file``) is written to a temporary file in its folder, synced, and renamed, so a reader sees a whole entry or
none. A damaged entry is logged and removed, and the entry counts as absent.

Entries hold native code, so the store must be trusted like code: folders and files must belong to this user or to root, and nobody
else may write them. A store that cannot be trusted, read or written never fails a session: one warning is logged, and the store is
not used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from .. import env
from ..arguments import folder_or_file
from ..errors import FormatError, PolicyError, StoreError
from ..printable import logger
from .entry_file import (
    MAGIC,
    REBUILD_ADVICE,
    VERSION,
    check_payload,
    digest,
    entry_parts,
    mapped,
    read_header,
)
from .files import TEMPORARY, open_regular, store_error, untrusted, write_atomic

__all__ = ["Entry", "Store", "digest", "write_atomic"]

_T = TypeVar("_T")
_ABANDONED = 3600.0  # seconds after which the writer of a temporary file must have been killed
# To list every file at each put takes longer than to write an entry, once there are thousands. A process lists them again after
# so many seconds, or when so many processes that wrote as much as it did could have filled the store.
_LIST_AGAIN = 10.0
_WRITERS = 16
_NO_FILE = (
    errno.EISDIR,
    errno.ELOOP,
    errno.EINVAL,
    errno.ENXIO,
)  # errors of opening a folder, a link, a pipe, a socket
_KEY = re.compile(r"[0-9a-f]{64}")
_log = logger("xpuruntime.store")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry on disk. ``bytes_`` is the size of the whole file; ``used`` is the time of its last use (seconds)."""

    kind: str
    key: str
    path: Path
    bytes_: int
    made: float
    used: float
    ingredients: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "kind": self.kind,
            "key": self.key,
            "path": str(self.path),
            "bytes": self.bytes_,
            "made": self.made,
            "used": self.used,
            "ingredients": dict(self.ingredients),
        }


class Store:
    """A folder of entries.

    root:  the folder; default ``XPU_CACHE_DIR`` or ``~/.cache/xpuruntime``.
    limit: maximum total bytes; the least recently used entries are removed first. Default ``XPU_CACHE_BYTES``.
    mode:  ``rw``, ``ro`` (read-only) or ``off`` (always empty). Default ``XPU_CACHE_MODE``.
    """

    def __init__(
        self, root: str | os.PathLike[str] | None = None, *, limit: int | None = None, mode: str = ""
    ) -> None:
        if root is None or (isinstance(root, str) and not root):
            self.root = env.get_path("XPU_CACHE_DIR") or _user_folder()
        else:
            self.root = _expand(root)
        self.limit = env.get_bytes("XPU_CACHE_BYTES") if limit is None else limit
        self.mode = mode or env.get("XPU_CACHE_MODE")
        self._disabled = False  # set after a warning; from then on nothing is written
        if self.mode not in ("rw", "ro", "off"):
            raise PolicyError(
                "store",
                "mode must be rw, ro or off",
                got=repr(self.mode),
                do="Set XPU_CACHE_MODE to one of them.",
            )

    @classmethod
    def unless_off(cls, caching: bool | None, root: str | os.PathLike[str] | None = None) -> Store:
        """Return the store of a folder, or one that keeps nothing if a policy's ``caching`` is False."""
        return cls(root, mode="off" if caching is False else "")

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r}, limit={self.limit}, mode={self.mode!r})"

    def path(self, kind: str, key: str) -> Path:
        """Return the path of the entry's file, which may not exist."""
        return self.root / f"v{VERSION}" / kind / key[:2] / key

    def get(self, kind: str, key: str) -> bytes | None:
        """Return the payload after verifying its checksum; None if absent. A damaged entry is removed with a warning."""
        payload = self._checked(kind, key, lambda file: file.read())
        return None if payload is None else bytes(payload)

    def view(self, kind: str, key: str, *, check: bool = True) -> memoryview | None:
        """Return the payload as ``get``, without a copy: the file's pages are mapped privately, so writing does not change the file.

        It stays valid after the entry is trimmed or replaced.
        check: False checks the header and the size, and not the payload's checksum, so that nothing is read before it is used. For large
               data that is as trusted as the files that it was made from; ``verify`` checks every entry.
        """
        return self._checked(kind, key, mapped, check)

    def recall(self, kind: str, key: str, parse: Callable[[bytes], _T]) -> _T | None:
        """Return ``parse(payload)``; None if absent. An entry that cannot be parsed is removed with a warning."""
        payload = self.get(kind, key)
        if payload is None:
            return None
        try:
            return parse(payload)
        except Exception as error:  # the checksum is right, so another release or a bug wrote it
            self.forget(kind, key, f"cannot be parsed; got {type(error).__name__}: {error}")
            return None

    def forget(self, kind: str, key: str, why: str) -> None:
        """Remove an unusable entry, with a warning that says why."""
        path = self.path(kind, key)
        _log.warning("store entry %s %s. It is rebuilt.", path, why)
        self._remove(path)

    def _remove(self, path: Path) -> None:
        if self.mode == "rw":
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(path.lstat().st_mode):
                    path.rmdir()
                else:
                    path.unlink()

    def _checked(
        self, kind: str, key: str, read: Callable[[BinaryIO], bytes | memoryview], check: bool = True
    ) -> memoryview | None:
        if self.mode == "off":
            return None
        path = self.path(kind, key)
        try:
            self._require_trusted_path(path)
            with open_regular(path, follow=False) as file:
                if reason := untrusted(os.fstat(file.fileno())):
                    raise FormatError(f"store entry {path}", reason, do=REBUILD_ADVICE)
                header = read_header(path, file.read(16), file)
                payload = memoryview(read(file))
            if check:
                check_payload(path, header, payload)
            if (header["kind"], header["key"]) != (kind, key):
                raise FormatError(
                    f"store entry {path}", "belongs to another key", got=header["key"], do=REBUILD_ADVICE
                )
        except FileNotFoundError:
            return None
        except StoreError as error:
            self._report(error)
            return None
        except FormatError as error:
            _log.warning("%s", error)
            self._remove(path)
            return None
        except MemoryError as error:
            _log.warning("%s", _no_entry(path, error))
            return None
        except OSError as error:
            if error.errno in _NO_FILE:
                _log.warning("%s", _no_entry(path, error))
                self._remove(path)
            else:
                self._report(store_error(path, "cannot read", error))
            return None
        if self.mode == "rw":
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)
        return payload

    def _folders(self, path: Path) -> list[Path]:
        """Return the root and all folders from it to a file."""
        return [f for f in reversed(path.parents) if f.is_relative_to(self.root)]

    def _require_trusted_path(self, path: Path) -> None:
        """Raise StoreError if another user could have written the file, OSError if its folders do not exist."""
        for folder in self._folders(path):
            self._require_trusted(folder)

    def _require_trusted(self, folder: Path) -> None:
        if reason := untrusted(folder.stat()):
            raise StoreError(
                f"store {self.root}",
                f"is not used: {'its folder' if folder == self.root else folder} {reason}",
                do="It holds native code, so only you or root may write it: run `chmod -R go-w` on it, or set XPU_CACHE_DIR to a folder of "
                "your own. To share a store between users, let root fill it and all others only read it.",
            )

    def _report(self, error: StoreError) -> None:
        """Warn once per process and store that the store is unusable. Nothing is written to it any more."""
        self._disabled = True
        with _REPORTING:
            warned = self.root in _REPORTED
            _REPORTED.add(self.root)
        _log.log(logging.DEBUG if warned else logging.WARNING, "%s Continuing without the store.", error)

    def put(self, kind: str, ingredients: Mapping[str, Any], *payload: bytes | memoryview) -> str:
        """Store a payload, in one part or several, under the digest of its ingredients and return the key. Raise StoreError (disk full, no permission).

        A store that was reported as unusable stores nothing.
        """
        key = digest(ingredients)
        if self.mode != "rw" or self._disabled:
            return key
        path = self.path(kind, key)
        self._prepare(path)
        parts = entry_parts(kind, key, ingredients, *payload)
        write_atomic(path, *parts, private=True)
        if not self._has_room_for(sum(map(len, parts))):
            self.trim(keep=key)
        return key

    def _has_room_for(self, bytes_: int) -> bool:
        """Count bytes that were written. Return True if the store is within its limit, as far as the last listing of all files shows."""
        with _LISTING:
            listed = _LISTED.get(self.root.absolute())
            if listed is None:
                return False
            listed.written += bytes_
            fresh = time.monotonic() - listed.time < _LIST_AGAIN
            return fresh and listed.written * _WRITERS <= self.limit - listed.total

    def _prepare(self, path: Path) -> None:
        """Create the folders of a file, private to this user. Raise StoreError."""
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for folder in self._folders(path):
                with contextlib.suppress(FileExistsError):
                    folder.mkdir(0o700)
                self._require_trusted(folder)
        except OSError as error:
            raise store_error(path, "cannot write", error) from error

    def entries(self) -> list[Entry]:
        """List every readable entry, most recently used first, without reading payloads."""
        entries = []
        for path in self._files():
            with contextlib.suppress(OSError, FormatError), open_regular(path, follow=False) as file:
                header = read_header(path, file.read(16), file)
                facts = os.fstat(file.fileno())
                entries.append(
                    Entry(
                        header["kind"],
                        header["key"],
                        path,
                        facts.st_size,
                        header["made"],
                        facts.st_mtime,
                        header["ingredients"],
                    )
                )
        return sorted(entries, key=lambda e: -e.used)

    def verify(self) -> list[FormatError]:
        """Read every entry fully. Return a FormatError for each one that is damaged or not trusted, and remove nothing."""
        problems = []
        for path in sorted(self._files()):
            try:
                with open_regular(path, follow=False) as file:
                    if reason := untrusted(os.fstat(file.fileno())):
                        raise FormatError(f"store entry {path}", reason, do=REBUILD_ADVICE)
                    header = read_header(path, file.read(16), file)
                    check_payload(path, header, file.read())
                if self.path(header["kind"], header["key"]) != path:
                    raise FormatError(
                        f"store entry {path}", "belongs to another key", got=header["key"], do=REBUILD_ADVICE
                    )
            except FormatError as error:
                problems.append(error)
            except FileNotFoundError:  # another process has trimmed it
                continue
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise store_error(path, "cannot read", error) from error
                problems.append(_no_entry(path, error))
        return problems

    def distrust(self) -> str:
        """Return the reason why the store cannot be trusted; empty if it can, or if it does not exist."""
        try:
            self._require_trusted_path(self.root / f"v{VERSION}" / "entry")
        except FileNotFoundError:
            return ""
        except (OSError, StoreError) as error:
            return str(error)
        return ""

    def _files(self) -> Iterator[Path]:
        """Return the files that are named like entries. Temporary files and links are left out."""
        for name, path in self._below():
            if _KEY.fullmatch(name) and name[:2] == path.parent.name:
                yield path

    def _below(self) -> Iterator[tuple[str, Path]]:
        """Return all files at the depth of entries, without following links below the root."""

        def folders(folder: Path) -> Iterator[Path]:
            with contextlib.suppress(OSError), os.scandir(folder) as children:
                yield from [folder / e.name for e in children if e.is_dir(follow_symlinks=False)]

        version = self.root / f"v{VERSION}"
        if version.is_symlink():
            return
        for shard in [s for kind in folders(version) for s in folders(kind) if len(s.name) == 2]:
            with contextlib.suppress(OSError), os.scandir(shard) as children:
                yield from [(e.name, shard / e.name) for e in children]

    def trim(self, limit: int | None = None, *, keep: str = "") -> list[Path]:
        """Remove least recently used entries until the total is within the limit, and return what was removed.

        A limit of 0 removes all entries, and lock files that nobody holds. Files that no store wrote stay. Temporary files older than
        an hour are always removed: their writer was killed.
        """
        limit = self.limit if limit is None else limit
        files = []
        now = time.time()
        for name, path in self._below():
            with contextlib.suppress(OSError):
                facts = path.lstat()
                if name.startswith(TEMPORARY):
                    if stat.S_ISREG(facts.st_mode) and now - facts.st_mtime > _ABANDONED:
                        path.unlink()
                elif _KEY.fullmatch(name) and name[:2] == path.parent.name and stat.S_ISREG(facts.st_mode):
                    files.append((facts.st_mtime, facts.st_size, path))
        total = sum(size for _, size, _ in files)
        removed = []
        for _, size, path in sorted(files):
            if total <= limit:
                break
            if path.name == keep or not _is_entry(path):
                continue
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path)
            total -= size
        with _LISTING:
            _LISTED[self.root.absolute()] = _Listed(total, time.monotonic())
        if limit == 0:
            self._remove_locks()
        return removed

    def _remove_locks(self) -> None:
        folder = self.root / f"v{VERSION}" / "locks"
        if folder.is_symlink():
            return
        for path in folder.glob("*.lock"):
            with contextlib.suppress(OSError):
                handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by a process that builds
                    path.unlink()
                finally:
                    os.close(handle)

    @contextlib.contextmanager
    def lock(self, key: str, seconds: float | None = None) -> Iterator[None]:
        """Hold the key's lock, so that only one of several processes builds the entry. The kernel frees the lock if the holder dies.

        seconds: how long to wait for the lock; None waits forever. Raise TimeoutError. If no lock file can be created, no entry can be
        stored either: the block runs without a lock, after a warning.
        """
        if self.mode != "rw" or self._disabled:
            yield
            return
        path = self.root / f"v{VERSION}" / "locks" / f"{key}.lock"
        end = None if seconds is None else time.monotonic() + seconds
        try:
            self._prepare(path)
            handle = _locked(path, end, seconds)
        except TimeoutError:
            raise
        except (StoreError, OSError) as error:
            self._report(error if isinstance(error, StoreError) else store_error(path, "cannot lock", error))
            yield
            return
        try:
            yield
        finally:
            os.close(handle)


@dataclass(slots=True)
class _Listed:
    """Total bytes of a store when this process last listed all its files, at a monotonic time, and what this process wrote since."""

    total: int
    time: float
    written: int = 0


_LISTED: dict[Path, _Listed] = {}
_LISTING = threading.Lock()
_REPORTED: set[Path] = set()
_REPORTING = threading.Lock()


def _is_entry(path: Path) -> bool:
    """Return True for a file that starts with the magic of an entry."""
    try:
        with open_regular(path, follow=False) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _no_entry(path: Path, error: BaseException) -> FormatError:
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return FormatError(f"store entry {path}", "cannot be read", got=message, do=REBUILD_ADVICE)


def _locked(path: Path, end: float | None, seconds: float | None) -> int:
    """Return the open file that holds the lock. Raise TimeoutError, OSError."""
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(path, flags, 0o600)
        try:
            _flock(handle, end, seconds)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.lstat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the file was removed while this process waited


def _flock(handle: int, end: float | None, seconds: float | None) -> None:
    """Take the lock. With a time limit, poll, since flock itself has none."""
    if end is None:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise TimeoutError(f"another process has held the lock for more than {seconds} s") from None
            time.sleep(0.02)
        else:
            return


def _expand(path: str | os.PathLike[str]) -> Path:
    try:
        return folder_or_file("store", "the folder", path).expanduser()
    except RuntimeError as error:  # "~name" of a user that does not exist
        raise StoreError(
            "store", "no such folder", got=repr(str(path)), do="Give a path without '~'."
        ) from error


def _user_folder() -> Path:
    """Return the user's cache folder. Raises if the user has no home, as an arbitrary user id in a container."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xpuruntime"
    except RuntimeError as error:
        raise StoreError(
            "store", "this user has no home folder", do="Set XPU_CACHE_DIR to a writable folder."
        ) from error
