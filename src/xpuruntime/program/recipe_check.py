"""Checks of whole weight recipes: the references of their steps, and each step against the table (``recipe_table``)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..types import DType, TensorSpec
from .program import RecipeStep, WeightTransformRecipe
from .recipe_results import (
    Typed,
    fail,
)
from .recipe_table import KINDS, RECIPE_OPS

__all__ = [
    "infer_recipe",
    "largest_step",
    "recipe_bytes",
    "resolve",
    "weight_input",
    "weights_of",
]

_GROWTH = 64
"""Limit of a result's size, as a multiple of all bytes that the recipe reads and writes."""


def largest_step(read: int, bytes_written: int) -> int:
    """Return the limit of bytes of an intermediate result, from the bytes of the weights and of the resulting buffer."""
    return _GROWTH * (read + bytes_written) + (1 << 16)


# ── references and whole recipes ──


def weight_input(name: str) -> str:
    """Return a step's reference to a weight: the name, with a leading ``%`` doubled."""
    return "%" + name if name.startswith("%") else name


def resolve(reference: str, source: str) -> str | int:
    """Resolve a step's input to the name of a weight, or to the index of an earlier step. Raises ValueError."""
    if not reference.startswith("%"):
        return reference
    if reference.startswith("%%"):
        return reference[1:]
    if reference == "%in":
        return source or fail("%in in a recipe without a source")
    digits = reference[1:]
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        fail(f"no such reference: {reference[:80]!r}")
    return int(digits)


def infer_recipe(
    recipe: WeightTransformRecipe, weights: Mapping[str, TensorSpec]
) -> tuple[tuple[Typed, ...], Typed]:
    """Infer shape and dtype of each step's result, and of the last one. Raises ValueError, naming the step, if a step violates the
    table, if the result differs from the recipe's spec, or if an intermediate result is too large.
    """
    results: list[Typed] = []
    read = sum(_bytes(_static(weights[n])) for n in weights_of(recipe) if n in weights)
    limit = largest_step(read, recipe.spec.size_bytes or 0)
    for i, step in enumerate(recipe.steps):
        try:
            result = _step(recipe, step, results, weights)
            if _bytes(result) > limit:
                fail(f"creates {_bytes(result)} bytes")
        except ValueError as error:
            raise ValueError(f"step {i} ({step.op[:40]}): {error}") from error
        results.append(result)
    last = results[-1] if results else _input(recipe, "%in", results, weights)
    if last != _static(recipe.spec):
        got = TensorSpec(*last)
        raise ValueError(
            f"the steps make {got}, the buffer is {TensorSpec(recipe.spec.shape, recipe.spec.dtype)}"
        )
    return tuple(results), last


def recipe_bytes(recipe: WeightTransformRecipe) -> int:
    """Return the bytes of the recipe's buffer, padding included. Raises ValueError for a symbolic shape or strings."""
    size = recipe.spec.size_bytes
    return size if size is not None else fail(f"{recipe.spec} has no size")


def weights_of(recipe: WeightTransformRecipe) -> set[str]:
    """Return the weights that a recipe reads. Raises ValueError for an input that cannot be resolved."""
    references = {resolve(i, recipe.source) for s in recipe.steps for i in s.inputs}
    return {n for n in references if isinstance(n, str)} | ({recipe.source} if recipe.source else set())


def _static(spec: TensorSpec) -> Typed:
    if not spec.is_static or spec.dtype is DType.STRING:
        fail(f"{spec} has no size")
    return tuple(int(d) for d in spec.shape if isinstance(d, int)), spec.dtype


def _bytes(typed: Typed) -> int:
    return math.prod(typed[0]) * typed[1].numpy.itemsize


def _input(
    recipe: WeightTransformRecipe, reference: str, results: Sequence[Typed], weights: Mapping[str, TensorSpec]
) -> Typed:
    source = resolve(reference, recipe.source)
    if isinstance(source, int):
        return (
            results[source]
            if source < len(results)
            else fail(f"reads the result of step {source}, which is not before it")
        )
    return (
        _static(weights[source])
        if source in weights
        else fail(f"reads {source[:80]!r}, which is not a weight")
    )


def _step(
    recipe: WeightTransformRecipe,
    step: RecipeStep,
    results: Sequence[Typed],
    weights: Mapping[str, TensorSpec],
) -> Typed:
    row = RECIPE_OPS.get(step.op)
    if row is None:
        return fail("is not a step of this release")
    min_inputs, max_inputs = row.inputs
    if not min_inputs <= len(step.inputs) <= max_inputs:
        fail(
            f"takes {min_inputs if min_inputs == max_inputs else f'{min_inputs} to {max_inputs}'} inputs, got {len(step.inputs)}"
        )
    if set(step.attrs) != set(row.attrs):
        fail(f"takes the attributes {sorted(row.attrs)}, got {sorted(step.attrs)}")
    for name, kind in row.attrs.items():
        description, fits = KINDS[kind]
        if not fits(step.attrs[name]):
            fail(f"{name} must be {description}, got {str(step.attrs[name])[:80]!r}")
    return row.infer([_input(recipe, i, results, weights) for i in step.inputs], step.attrs)
