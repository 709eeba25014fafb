"""Edits of weights: a table that holds for every form of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from xpuruntime.protocols import Array

from .site import EPSILON, Form, NotApplicableError, Site, Use

__all__ = ["weight_sites"]


@dataclass(frozen=True)
class Edit:
    """A row of the table: the roles and shapes that it applies to, the change of the elements, and its description."""

    kind: str
    roles: tuple[str, ...]
    fits: Callable[[tuple[int, ...], Use], bool]
    change: Callable[[Array, Use], Array]
    text: Callable[[Use], str]


def _any(shape: tuple[int, ...], use: Use) -> bool:
    return True


def _fill(value: float) -> Callable[[Array, Use], Array]:
    return lambda array, use: np.full_like(array, value)


def _one_weight(array: Array, use: Use) -> Array:
    """Change one element: a kernel's middle one, which is never multiplied by padding, or a table's first, since every text uses row 0."""
    changed = array.copy()
    spot = tuple(0 if use.role == "table" else d // 2 for d in array.shape)
    changed[spot] += 2 * np.std(array, dtype=np.float64).astype(array.dtype)
    return changed


def _swapped(array: Array, axis: int, first: slice, second: slice) -> Array:
    changed, at = array.copy(), [slice(None)] * array.ndim
    index_a, index_b = ((*at[:axis], part, *at[axis + 1 :]) for part in (first, second))
    changed[index_a], changed[index_b] = array[index_b], array[index_a]
    return changed


def _heads(array: Array, use: Use) -> Array:
    size = array.shape[use.axis] // use.heads
    last = slice((use.heads - 1) * size, use.heads * size)
    return _swapped(array, use.axis, slice(0, size), last)


def _square(shape: tuple[int, ...], use: Use) -> bool:
    return len(shape) >= 2 and shape[0] == shape[1] > 1


def _channels(shape: tuple[int, ...], use: Use) -> bool:
    return len(shape) >= 2 and shape[use.axis] > 1


EDITS = (
    Edit("drop_bias", ("bias",), _any, _fill(0.0), lambda u: "every element is 0"),
    Edit("drop_norm_scale", ("scale",), _any, _fill(1.0), lambda u: "every element is 1"),
    Edit("drop_norm_statistic", ("mean",), _any, _fill(0.0), lambda u: "every mean is 0"),
    Edit("drop_norm_statistic", ("variance",), _any, _fill(1.0), lambda u: "every variance is 1"),
    Edit("change_weight", ("kernel", "table"), _any, _one_weight, lambda u: "one element is larger by twice their spread"),
    Edit(
        "swap_channels", ("kernel",), _channels,
        lambda a, u: _swapped(a, u.axis, slice(0, 1), slice(1, 2)), lambda u: f"channels 0 and 1 of axis {u.axis} changed places",
    ),
    Edit("transpose_square", ("kernel",), _square, lambda a, u: np.ascontiguousarray(a.swapaxes(0, 1)), lambda u: "axes 0 and 1 changed places"),
    Edit(
        "swap_heads", ("kernel",), lambda s, u: u.heads > 1, _heads,
        lambda u: f"heads 0 and {u.heads - 1} of {u.heads} changed places",
    ),
    Edit("change_epsilon", ("epsilon",), _any, _fill(EPSILON), lambda u: f"it is {EPSILON:g}"),
)  # fmt: skip


def weight_sites(form: Form) -> Iterator[Site]:
    """Yield the sites of every edit and use. A weight that is used twice in one role counts once."""
    for edit in EDITS:
        weights_done: set[str] = set()
        for use in form.uses():
            if use.role not in edit.roles or use.weight in weights_done:
                continue
            if not edit.fits(form.array(use.weight).shape, use):
                continue
            weights_done.add(use.weight)
            yield Site(
                edit.kind, use.weight, f"of {use.node}: {edit.text(use)}", partial(_apply, form, edit, use)
            )


def _apply(form: Form, edit: Edit, use: Use) -> Any:
    old = form.array(use.weight)
    new = edit.change(old, use)
    if np.array_equal(old, new):  # exporters write biases of zeros where the model has none
        raise NotApplicableError(f"{use.weight} is like that already")
    return form.with_array(use.weight, new)
