"""Caches keyed by a model's digest. Support checks, building and loading follow one another and need the same values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from ...protocols import ModelSource

__all__ = ["kept_by_digest"]

Made = TypeVar("Made")


class _Held:
    """A model that compares equal to any other, so that only its digest enters the cache key."""

    def __init__(self, model: ModelSource) -> None:
        self.model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


def kept_by_digest(make: Callable[[ModelSource], Made]) -> Callable[[ModelSource], Made]:
    """Wrap a function of a model in a cache of its last two results."""

    @functools.lru_cache(maxsize=2)
    def made(digest: str, held: _Held) -> Made:
        return make(held.model)

    @functools.wraps(make)
    def kept(model: ModelSource) -> Made:
        return made(model.digest, _Held(model))

    return kept
