"""What is made of a model, kept by the model's digest: asking, building and loading follow one another, and each needs it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from ...protocols import ModelSource

__all__ = ["kept_by_digest"]

Made = TypeVar("Made")


class _Held:
    """A model that does not enter a cache's key: its digest says all."""

    def __init__(self, model: ModelSource) -> None:
        self.model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


def kept_by_digest(make: Callable[[ModelSource], Made]) -> Callable[[ModelSource], Made]:
    """A function of a model whose last two results are kept."""

    @functools.lru_cache(maxsize=2)
    def made(digest: str, held: _Held) -> Made:
        return make(held.model)

    @functools.wraps(make)
    def kept(model: ModelSource) -> Made:
        return made(model.digest, _Held(model))

    return kept
