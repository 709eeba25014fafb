"""Contents of weight buffers: large ones are made by threads, in any order; the caller takes all of them in theirs."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from xpuruntime.errors import FormatError, InputError
from xpuruntime.program.program import RecipeStep, WeightTransformRecipe
from xpuruntime.runtime.weights import contents
from xpuruntime.runtime.weights.contents import contents_of
from xpuruntime.types import DType, TensorSpec

SIDES = (600, 3, 700, 601, 5, 640, 7)


class Arrays(dict[str, Any]):
    """Arrays by name, with the threads that read them."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        super().__init__(arrays)
        self.readers: set[int] = set()

    def __getitem__(self, name: str) -> Any:
        self.readers.add(threading.get_ident())
        return super().__getitem__(name)


def _turned(name: str, side: int) -> WeightTransformRecipe:
    step = RecipeStep("permute", ("%in",), {"order": [1, 0]})
    return WeightTransformRecipe(f"{name}.turned", TensorSpec((side, side), DType.FLOAT32), name, (step,))


def _case() -> tuple[list[WeightTransformRecipe], Arrays]:
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": rng.standard_normal((n, n), dtype=np.float32) for i, n in enumerate(SIDES)}
    return [_turned(f"w{i}", n) for i, n in enumerate(SIDES)], Arrays(arrays)


@pytest.mark.parametrize("ahead", [0, 3 << 20, 256 << 20])
def test_contents_come_in_the_order_of_the_recipes(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_AHEAD", ahead)
    recipes, arrays = _case()
    for i, content in enumerate(contents_of(recipes, arrays)):
        np.testing.assert_array_equal(content.view(np.float32), arrays[f"w{i}"].T.reshape(-1))
    assert i == len(SIDES) - 1
    assert arrays.readers == {threading.get_ident()}


@pytest.mark.parametrize("at", [1, 3])
def test_a_wrong_recipe_raises_where_it_is_taken(at: int) -> None:
    recipes, arrays = _case()
    recipes[at] = _turned(f"w{at}", SIDES[at] + 1)
    found = contents_of(recipes, arrays)
    for _ in range(at):
        next(found)
    with pytest.raises(FormatError, match=f"weight recipe 'w{at}.turned'"):
        next(found)


def test_a_missing_weight_is_named() -> None:
    recipes, arrays = _case()
    del arrays["w0"]
    with pytest.raises(InputError, match="needs the weight 'w0'"):
        next(contents_of(recipes, arrays))


def test_what_is_not_taken_is_dropped() -> None:
    recipes, arrays = _case()
    found = contents_of(recipes, arrays)
    next(found)
    found.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("xpu-weights")]
