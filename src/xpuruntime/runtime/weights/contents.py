"""The contents of a program's weight buffers, made by its recipes.

Large ones are made by threads, ahead of the caller, who copies to the device meanwhile: a transposed weight takes longer to read than a device takes
to receive it. Small ones would only wait for the interpreter's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...program.program import WeightTransformRecipe
from ...program.recipe_check import weights_of
from ..device import cpu
from ..memory.layouts import flat_bytes
from .recipes import recipe_bytes, run_recipe

__all__ = ["contents_of"]

_LARGE = 1 << 20
"""Bytes of a buffer from which a thread makes it."""
_AHEAD = 256 << 20
"""Bytes that threads may have made before the caller takes them."""

Content = NDArray[np.uint8]


def contents_of(
    recipes: Sequence[WeightTransformRecipe], arrays: Mapping[str, NDArray[Any]]
) -> Generator[Content, None, None]:
    """Yield the bytes of each recipe's buffer, in order. ``arrays`` are read by the caller's thread. Raises as ``run_recipe`` and ``arrays`` do."""
    large = deque(i for i, r in enumerate(recipes) if recipe_bytes(r) >= _LARGE)
    begun: dict[int, Future[Content]] = {}
    ahead = 0
    with ThreadPoolExecutor(cpu().usable_cores, "xpu-weights") as threads:
        try:
            for i, recipe in enumerate(recipes):
                while large and (not begun or ahead + recipe_bytes(recipes[large[0]]) <= _AHEAD):
                    at = large.popleft()
                    begun[at] = threads.submit(_content, recipes[at], _inputs(recipes[at], arrays))
                    ahead += recipe_bytes(recipes[at])
                if i in begun:
                    content = begun.pop(i).result()
                    ahead -= recipe_bytes(recipe)
                else:
                    content = _content(recipe, arrays)
                yield content
        finally:
            for future in begun.values():  # after an error, those that have not begun
                future.cancel()


def _content(recipe: WeightTransformRecipe, arrays: Mapping[str, NDArray[Any]]) -> Content:
    return flat_bytes(run_recipe(recipe, arrays))


def _inputs(recipe: WeightTransformRecipe, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Return the arrays that a recipe reads. What is wrong with a recipe is reported when it runs."""
    names: set[str] = set()
    with suppress(ValueError):
        names = weights_of(recipe)
    return {name: arrays[name] for name in sorted(names) if name in arrays}
