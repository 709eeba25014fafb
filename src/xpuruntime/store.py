"""The store on disk: content-addressed entries, written atomically, checksummed, size-limited, safe between processes.

    <root>/v1/<kind>/<first two digits of key>/<key>      one file per entry
    <root>/v1/locks/<key>.lock                            held while one process builds what others wait for

An entry (``entry_file``) is written to a temporary file beside its place, synced, and renamed, so a reader sees a whole entry or
none. A damaged entry is reported, removed and counts as absent.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import env
from .entry_file import (
    AGAIN,
    TEMPORARY,
    VERSION,
    check_payload,
    digest,
    entry_parts,
    mapped,
    read_header,
    store_error,
    write_atomic,
)
from .errors import FormatError, PolicyError, StoreError

__all__ = ["Entry", "Store", "digest", "write_atomic"]

_ABANDONED = 3600.0  # seconds after which a temporary file belongs to nobody: its writer was killed
_log = logging.getLogger("xpuruntime.store")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it lies on disk. ``bytes_`` counts the whole file; ``used`` is the time of its last use (seconds)."""

    kind: str
    key: str
    path: Path
    bytes_: int
    made: float
    used: float
    ingredients: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
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
    limit: bytes in total; the least recently used entries go first. Default ``XPU_CACHE_BYTES``.
    mode:  ``rw``, ``ro`` (never writes) or ``off`` (holds nothing). Default ``XPU_CACHE_MODE``.
    """

    def __init__(
        self, root: str | os.PathLike[str] | None = None, *, limit: int | None = None, mode: str = ""
    ) -> None:
        self.root = _expand(root) if root else env.get_path("XPU_CACHE_DIR") or _user_folder()
        self.limit = env.get_bytes("XPU_CACHE_BYTES") if limit is None else limit
        self.mode = mode or env.get("XPU_CACHE_MODE")
        if self.mode not in ("rw", "ro", "off"):
            raise PolicyError(
                "store",
                "mode must be rw, ro or off",
                got=repr(self.mode),
                do="Set XPU_CACHE_MODE to one of them.",
            )

    def __repr__(self) -> str:
        return f"Store({str(self.root)!r}, limit={self.limit}, mode={self.mode!r})"

    def path(self, kind: str, key: str) -> Path:
        """Where the entry lies or would lie."""
        return self.root / f"v{VERSION}" / kind / key[:2] / key

    def get(self, kind: str, key: str) -> bytes | None:
        """The payload, checked against its checksum; None when absent. A damaged entry is removed, with a warning."""
        found = self._checked(kind, key, lambda file: file.read())
        return None if found is None else bytes(found)

    def view(self, kind: str, key: str) -> memoryview | None:
        """As ``get``, without a copy: the payload lies in the file's own pages, mapped privately (writing changes no file).

        It stays good after the entry was trimmed or replaced.
        """
        return self._checked(kind, key, mapped)

    def _checked(self, kind: str, key: str, read: Callable[[Any], bytes | memoryview]) -> memoryview | None:
        if self.mode == "off":
            return None
        path = self.path(kind, key)
        try:
            with path.open("rb") as file:
                header = read_header(path, file.read(16), file)
                payload = memoryview(read(file))
            check_payload(path, header, payload)
            if (header["kind"], header["key"]) != (kind, key):
                raise FormatError(
                    f"store entry {path}", "belongs to another key", got=header["key"], do=AGAIN
                )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise store_error(path, "cannot read", error) from error
        except FormatError as error:
            _log.warning("%s", error)
            if self.mode == "rw":
                with contextlib.suppress(OSError):
                    path.unlink()
            return None
        if self.mode == "rw":
            with contextlib.suppress(OSError):
                os.utime(path)
        return payload

    def put(self, kind: str, ingredients: Mapping[str, Any], payload: bytes) -> str:
        """Keep a payload under the digest of its ingredients; gives the key back. Raises StoreError (full disk, no rights)."""
        key = digest(ingredients)
        if self.mode != "rw":
            return key
        write_atomic(self.path(kind, key), *entry_parts(kind, key, ingredients, payload))
        self.trim(keep=key)
        return key

    def entries(self) -> list[Entry]:
        """Every readable entry, most recently used first. Payloads are not read."""
        found = []
        for path in self._files():
            with contextlib.suppress(OSError, FormatError), path.open("rb") as file:
                header = read_header(path, file.read(16), file)
                stat = path.stat()
                found.append(
                    Entry(
                        header["kind"],
                        header["key"],
                        path,
                        stat.st_size,
                        header["made"],
                        stat.st_mtime,
                        header["ingredients"],
                    )
                )
        return sorted(found, key=lambda e: -e.used)

    def verify(self) -> list[FormatError]:
        """Read every entry wholly; one FormatError for each damaged one. Removes nothing."""
        problems = []
        for path in sorted(self._files()):
            try:
                with path.open("rb") as file:
                    header = read_header(path, file.read(16), file)
                    check_payload(path, header, file.read())
                if self.path(header["kind"], header["key"]) != path:
                    raise FormatError(
                        f"store entry {path}", "belongs to another key", got=header["key"], do=AGAIN
                    )
            except FormatError as error:
                problems.append(error)
            except FileNotFoundError:  # another process trimmed it meanwhile
                continue
            except OSError as error:
                raise store_error(path, "cannot read", error) from error
        return problems

    def _files(self) -> Iterator[Path]:
        """Every entry's file. What a writer has under way is none of them."""
        found = (self.root / f"v{VERSION}").glob("*/??/*")
        return (path for path in found if not path.name.startswith(TEMPORARY))

    def trim(self, limit: int | None = None, *, keep: str = "") -> list[Path]:
        """Remove least recently used files until the total is within the limit (0 removes all); what was removed.

        A temporary file that is an hour old was left by a killed writer: it goes in any case.
        """
        limit = self.limit if limit is None else limit
        files = []
        now = time.time()
        for path in (self.root / f"v{VERSION}").glob("*/??/*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                if not path.name.startswith(TEMPORARY):
                    files.append((stat.st_mtime, stat.st_size, path))
                elif now - stat.st_mtime > _ABANDONED:
                    path.unlink()
        total = sum(size for _, size, _ in files)
        removed = []
        for _, size, path in sorted(files):
            if total <= limit:
                break
            if path.name == keep:
                continue
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path)
            total -= size
        return removed

    @contextlib.contextmanager
    def lock(self, key: str, seconds: float | None = None) -> Iterator[None]:
        """Hold the key's lock, so that several processes build one thing once. The kernel frees it if the holder dies.

        seconds: how long to wait for it; None: as long as it takes. Raises TimeoutError.
        """
        if self.mode != "rw":
            yield
            return
        path = self.root / f"v{VERSION}" / "locks" / f"{key}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise store_error(path, "cannot lock", error) from error
        try:
            _flock(handle, seconds)
            yield
        finally:
            os.close(handle)


def _flock(handle: int, seconds: float | None) -> None:
    """Take the lock; with a limit by asking again and again, for the kernel's own wait has none."""
    if seconds is None:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise TimeoutError(f"another process holds the lock for longer than {seconds} s") from None
            time.sleep(0.02)
        else:
            return


def _expand(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:  # "~somebody" without such a user
        raise StoreError(
            "store", "no such folder", got=repr(str(path)), do="Give a path without '~'."
        ) from error


def _user_folder() -> Path:
    """The user's cache folder; a process without a home (a container's arbitrary user id) must name one."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xpuruntime"
    except RuntimeError as error:
        raise StoreError(
            "store", "this user has no home folder", do="Set XPU_CACHE_DIR to a writable folder."
        ) from error
