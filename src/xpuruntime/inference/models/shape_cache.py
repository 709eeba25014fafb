"""Stored artifacts of one candidate for further sets of shapes, built when a session first receives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ...errors import BuildTimeout, StoreError
from ...printable import logger
from ...storage.store import Store, digest
from ..tuning.ledger import note_measured, remeasure_reason

__all__ = ["KeptShapes"]

_log = logger("xpuruntime.session")


class KeptShapes:
    """Artifacts by shapes. ``ingredients``: the artifact key without the shapes."""

    def __init__(self, store: Store, ingredients: Mapping[str, Any]) -> None:
        self._store, self._ingredients = store, dict(ingredients)

    @contextmanager
    def building(self, shapes: Mapping[str, int], who: str, seconds: float | None = None) -> Iterator[None]:
        """Hold the lock of these shapes, so that only one process builds them. Raises BuildTimeout after ``seconds`` of waiting."""
        try:
            with self._store.lock(digest(self._all(shapes)), seconds):
                yield
        except BuildTimeout:
            raise
        except TimeoutError as error:
            do = "Allow more time; it is taken from the store when the other process is done."
            raise BuildTimeout(who, "waited longer than compile_timeout_s", got=error, do=do) from error

    def get(self, shapes: Mapping[str, int]) -> bytes | None:
        """Return the stored bytes after checking their checksum, or None."""
        return self._store.get("artifact", digest(self._all(shapes)))

    def put(self, shapes: Mapping[str, int], blob: bytes) -> None:
        """Store an artifact. A full disk must not stop a run whose program is built."""
        try:
            self._store.put("artifact", self._all(shapes), blob)
        except StoreError as error:
            _log.warning("%s The model runs; the next start builds these shapes again.", error)
        note_measured(self._store, self._all(shapes))

    def remeasure_reason(self, shapes: Mapping[str, int]) -> str:
        """Return why the kernels of an absent artifact are measured although they were before; empty for a first measurement."""
        return remeasure_reason(self._store, self._all(shapes))

    def _all(self, shapes: Mapping[str, int]) -> dict[str, Any]:
        return self._ingredients | {"shapes": {name: int(size) for name, size in sorted(shapes.items())}}
