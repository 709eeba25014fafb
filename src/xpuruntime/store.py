"""The store on disk: content-addressed entries, written atomically, checksummed, size-limited, safe between processes.

    <root>/v1/<kind>/<first two digits of key>/<key>      one file per entry
    <root>/v1/locks/<key>.lock                            held while one process builds what others wait for

An entry is ``magic | header length | header JSON | payload``; the header holds the payload's length and sha256, the
whole ingredients of the key, and the time it was made. It is written to a temporary file beside its place, synced, and
renamed, so a reader sees a whole entry or none. A damaged entry is reported, removed and counts as absent.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import env
from .errors import FormatError, PolicyError, StoreError

__all__ = ["Entry", "Store", "digest", "write_atomic"]

_MAGIC = b"XPUSTORE"
_VERSION = 1
_AGAIN = "Remove the file; it is built again when needed."
_ABANDONED = 3600.0  # seconds after which a temporary file belongs to nobody: its writer was killed
_TEMPORARY = ".tmp-"
_log = logging.getLogger("xpuruntime.store")


def digest(ingredients: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of a key's ingredients (plain data only; TypeError for anything else)."""
    text = json.dumps(ingredients, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write a whole file or nothing: temporary file beside it, sync, rename. Raises StoreError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        raise _store_error(path, "cannot write", error) from error


def _store_error(path: Path, what: str, error: OSError) -> StoreError:
    advice = {
        errno.ENOSPC: "Free disk space, or point XPU_CACHE_DIR at another disk.",
        errno.EROFS: "Set XPU_CACHE_MODE=ro, or point XPU_CACHE_DIR at a writable folder.",
        errno.EACCES: "Set XPU_CACHE_MODE=ro, or point XPU_CACHE_DIR at a writable folder.",
    }.get(error.errno or 0, "Point XPU_CACHE_DIR at a writable folder, or set XPU_CACHE_MODE=off.")
    return StoreError(f"store {path}", what, got=error.strerror or str(error), do=advice)


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
        return self.root / f"v{_VERSION}" / kind / key[:2] / key

    def get(self, kind: str, key: str) -> bytes | None:
        """The payload, checked against its checksum; None when absent. A damaged entry is removed, with a warning."""
        found = self._checked(kind, key, lambda file: file.read())
        return None if found is None else bytes(found)

    def view(self, kind: str, key: str) -> memoryview | None:
        """As ``get``, without a copy: the payload lies in the file's own pages, mapped privately (writing changes no file).

        It stays good after the entry was trimmed or replaced.
        """
        return self._checked(kind, key, _mapped)

    def _checked(self, kind: str, key: str, read: Callable[[Any], bytes | memoryview]) -> memoryview | None:
        if self.mode == "off":
            return None
        path = self.path(kind, key)
        try:
            with path.open("rb") as file:
                header = _read_header(path, file.read(16), file)
                payload = memoryview(read(file))
            _check_payload(path, header, payload)
            if (header["kind"], header["key"]) != (kind, key):
                raise FormatError(
                    f"store entry {path}", "belongs to another key", got=header["key"], do=_AGAIN
                )
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _store_error(path, "cannot read", error) from error
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
        header = {
            "kind": kind,
            "key": key,
            "bytes": len(payload),
            "sha256": hashlib.sha256(payload).hexdigest(),
            "made": time.time(),
            "ingredients": dict(ingredients),
        }
        text = json.dumps(header, sort_keys=True).encode()
        head = _MAGIC + _VERSION.to_bytes(4, "little") + len(text).to_bytes(4, "little")
        write_atomic(self.path(kind, key), head, text, payload)
        self.trim(keep=key)
        return key

    def entries(self) -> list[Entry]:
        """Every readable entry, most recently used first. Payloads are not read."""
        found = []
        for path in self._files():
            with contextlib.suppress(OSError, FormatError), path.open("rb") as file:
                header = _read_header(path, file.read(16), file)
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
                    header = _read_header(path, file.read(16), file)
                    _check_payload(path, header, file.read())
                if self.path(header["kind"], header["key"]) != path:
                    raise FormatError(
                        f"store entry {path}", "belongs to another key", got=header["key"], do=_AGAIN
                    )
            except FormatError as error:
                problems.append(error)
            except FileNotFoundError:  # another process trimmed it meanwhile
                continue
            except OSError as error:
                raise _store_error(path, "cannot read", error) from error
        return problems

    def _files(self) -> Iterator[Path]:
        """Every entry's file. What a writer has under way is none of them."""
        found = (self.root / f"v{_VERSION}").glob("*/??/*")
        return (path for path in found if not path.name.startswith(_TEMPORARY))

    def trim(self, limit: int | None = None, *, keep: str = "") -> list[Path]:
        """Remove least recently used files until the total is within the limit (0 removes all); what was removed.

        A temporary file that is an hour old was left by a killed writer: it goes in any case.
        """
        limit = self.limit if limit is None else limit
        files = []
        now = time.time()
        for path in (self.root / f"v{_VERSION}").glob("*/??/*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                if not path.name.startswith(_TEMPORARY):
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
        path = self.root / f"v{_VERSION}" / "locks" / f"{key}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _store_error(path, "cannot lock", error) from error
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


def _read_header(path: Path, head: bytes, file: Any) -> dict[str, Any]:
    who = f"store entry {path}"
    if len(head) != 16 or head[:8] != _MAGIC:
        raise FormatError(who, "is not a store entry", got=head[:8], do=_AGAIN)
    version, length = int.from_bytes(head[8:12], "little"), int.from_bytes(head[12:16], "little")
    if version != _VERSION:
        raise FormatError(who, f"has format version {version}, this release reads {_VERSION}", do=_AGAIN)
    if length > 1 << 24:
        raise FormatError(who, "header is damaged", got=f"length {length}", do=_AGAIN)
    try:
        header = json.loads(file.read(length))
        wanted = {"kind": str, "key": str, "bytes": int, "sha256": str, "made": float, "ingredients": dict}
        if not all(isinstance(header[k], t) for k, t in wanted.items()):
            raise TypeError("a field has the wrong type")
        if digest(header["ingredients"]) != header["key"]:
            raise ValueError("the key is not the digest of the ingredients")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(who, "header is damaged", got=error, do=_AGAIN) from error
    return dict(header)


def _mapped(file: Any) -> memoryview:
    """What follows the file's place, as its own pages. Writable to whoever gets it, for some libraries take no other memory."""
    here = file.tell()
    if os.fstat(file.fileno()).st_size <= here:
        return memoryview(b"")
    return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))[here:]


def _check_payload(path: Path, header: Mapping[str, Any], payload: bytes | memoryview) -> None:
    if len(payload) != header["bytes"]:
        raise FormatError(
            f"store entry {path}", "is truncated", got=f"{len(payload)} of {header['bytes']} bytes", do=_AGAIN
        )
    if hashlib.sha256(payload).hexdigest() != header["sha256"]:
        raise FormatError(f"store entry {path}", "does not match its checksum", do=_AGAIN)
