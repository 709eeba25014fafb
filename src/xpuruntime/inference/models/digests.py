"""Caches keyed by a model's digest. Support checks, building and loading follow one another and need the same values."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from collections.abc import Callable
from typing import Any, TypeVar

from ...protocols import ModelSource

__all__ = ["forget_kept", "kept_by_digest"]

Made = TypeVar("Made")


class _Held:
    """A model that compares equal to any other, so that only its digest enters the cache key."""

    def __init__(self, model: ModelSource) -> None:
        self.model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


_CACHES: list[functools._lru_cache_wrapper[Any]] = []


def forget_kept() -> None:
    """Free what is kept for models, such as their imported weights, and return the freed memory to the system where the C library can."""
    for cache in _CACHES:
        cache.cache_clear()
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc has it, others do not need it
        ctypes.CDLL(None).malloc_trim(0)


def kept_by_digest(make: Callable[[ModelSource], Made]) -> Callable[[ModelSource], Made]:
    """Wrap a function of a model in a cache of its last two results. ``forget_kept`` empties all such caches."""

    @functools.lru_cache(maxsize=2)
    def made(digest: str, held: _Held) -> Made:
        return make(held.model)

    _CACHES.append(made)

    @functools.wraps(make)
    def kept(model: ModelSource) -> Made:
        return made(model.digest, _Held(model))

    return kept
