"""Stores by which the processes of a group find each other: small values by name, written by one rank and read by others."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ...errors import InputError

__all__ = ["FileRankStore", "RankStore", "TorchRankStore", "rank_store"]


@runtime_checkable
class RankStore(Protocol):
    """A store of a group: ``put`` writes a value, ``look`` returns it, or None before it is written. Neither waits."""

    def put(self, key: str, value: bytes) -> None:
        """Write a value, or replace it."""
        ...

    def look(self, key: str) -> bytes | None:
        """Return a value, or None if it has not been written."""
        ...


class FileRankStore:
    """A folder that all ranks see. Each group needs a folder of its own, which ``join`` makes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, value: bytes) -> None:
        """Write a file and rename it, so that no rank reads half of it."""
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=".rank-")
        with os.fdopen(handle, "wb") as file:
            file.write(value)
        Path(name).replace(self._path(key))

    def look(self, key: str) -> bytes | None:
        """Return the content of a file, or None."""
        with contextlib.suppress(FileNotFoundError):
            return self._path(key).read_bytes()
        return None

    def _path(self, key: str) -> Path:
        return self.folder / key.replace("/", "-")

    def __repr__(self) -> str:
        return f"FileRankStore({str(self.folder)!r})"


@runtime_checkable
class TorchLikeStore(Protocol):
    """The methods of PyTorch's stores that a group needs."""

    def set(self, key: str, value: bytes) -> object:
        """Write a value."""
        ...

    def get(self, key: str) -> bytes:
        """Return a value."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have been written."""
        ...


class TorchRankStore:
    """PyTorch's store, such as ``torch.distributed.TCPStore``."""

    def __init__(self, store: TorchLikeStore) -> None:
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        """Write a value."""
        self._store.set(f"xpuruntime/{key}", value)

    def look(self, key: str) -> bytes | None:
        """Return a value, or None."""
        name = f"xpuruntime/{key}"
        return bytes(self._store.get(name)) if self._store.check([name]) else None

    def __repr__(self) -> str:
        return f"TorchRankStore({type(self._store).__name__})"


def rank_store(store: Any) -> RankStore:
    """Return a store of either kind: a folder, PyTorch's store, or one with ``put`` and ``look``. Raises InputError."""
    if isinstance(store, str | os.PathLike):
        return FileRankStore(store)
    if isinstance(store, RankStore):
        return store
    if isinstance(store, TorchLikeStore):
        return TorchRankStore(store)
    do = "Give a folder that all ranks see, or a store of torch.distributed."
    raise InputError("communicator", "needs a store", got=repr(store)[:80], do=do)
