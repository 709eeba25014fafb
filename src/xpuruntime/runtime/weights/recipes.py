"""Weight recipes, which run once when weights are loaded: one NumPy function per op of ``program.recipe_table``.

Each step rounds once to its dtype. For ``add sub mul div reciprocal sqrt`` float32 is wide enough: its 24 bits make the second rounding to float16
or bfloat16 harmless (Figueroa, "When is double rounding innocuous?", 1995). ``rsqrt exp log cos sin tanh sum matmul`` and the scales are computed in
float64. Data movement (reshape, permute, slice, expand, flip) returns views, so a weight that is only permuted is read once, when its
buffer is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...casts import to
from ...errors import FormatError, InputError
from ...program.program import WeightTransformRecipe
from ...program.recipe_check import infer_recipe, recipe_bytes, resolve
from ...storage.blocks import GroupForm, block_groups, block_values
from ...types import DType, TensorSpec
from ..memory.layouts import to_memory
from .int4 import int4_groups
from .parts import over_rows

__all__ = ["recipe_bytes", "run_recipe"]

Array: TypeAlias = NDArray[Any]
Step: TypeAlias = "Callable[[Sequence[Array], Mapping[str, Any]], Array]"


def run_recipe(recipe: WeightTransformRecipe, weights: Mapping[str, Array]) -> Array:
    """Run a recipe and return the content of its buffer in memory layout, with padding and packing.

    The result has the spec's dtype and the shape ``layouts.memory_shape(spec)``; sub-byte types are packed bytes. In row-major order it
    has ``recipe_bytes(recipe)`` bytes. It may be a read-only or strided view of a weight, so copy it into the buffer.
    Raises InputError for a missing weight, FormatError for steps that violate the table or do not fit the weights.
    """
    who = f"weight recipe {recipe.name!r}"
    try:
        reads = [[resolve(i, recipe.source) for i in step.inputs] for step in recipe.steps] or [
            [recipe.source]
        ]
        names = {n for step in reads for n in step if isinstance(n, str)}
        arrays = {n: _weight(who, n, weights) for n in sorted(names)}
        infer_recipe(recipe, {n: TensorSpec(tuple(a.shape), DType.of(a.dtype)) for n, a in arrays.items()})
    except ValueError as error:
        do = "The weights belong to another model, or the program was not made by this release's compiler."
        raise FormatError(who, str(error), do=do) from error
    values: dict[str | int, Array] = {name: array for name, array in arrays.items()}  # noqa: C416 (wider keys)
    last_use = {n: i for i, step in enumerate(reads) for n in step}
    with np.errstate(all="ignore"):
        for i, step in enumerate(recipe.steps):
            values[i] = STEPS[step.op]([values[n] for n in reads[i]], step.attrs)
            for n in {n for n in reads[i] if last_use[n] == i}:
                del values[n]
    return to_memory(values[len(recipe.steps) - 1 if recipe.steps else recipe.source], recipe.spec)


def _weight(who: str, name: str, weights: Mapping[str, Array]) -> Array:
    if name not in weights:
        raise InputError(
            who, f"needs the weight {name!r}", do="Pass it by that name, or give the weights' file."
        )
    return np.asarray(weights[name])


# ── functions of the steps ──


def _rounded(function: Callable[..., Any], wide: type[np.floating[Any]]) -> Step:
    """Wrap a function so that narrow floats are computed in a wider type and rounded once; integers and complex numbers are computed as
    they are.
    """

    def step(xs: Sequence[Array], _: Mapping[str, Any]) -> Array:
        dtype = DType.of(xs[0].dtype)
        if dtype.is_integer and dtype.bits < 8:
            return to(np.asarray(function(*(x.astype(np.int64) for x in xs))), dtype)
        if not dtype.is_float or dtype.bits >= 8 * np.dtype(wide).itemsize:
            return np.asarray(function(*xs))
        return to(np.asarray(function(*(x.astype(wide) for x in xs))), dtype)

    return step


def _pad(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    x, begin, end = xs[0], a["begin"], a["end"]
    if not any((*begin, *end)):
        return x
    shape = tuple(b + s + e for b, s, e in zip(begin, x.shape, end, strict=True))
    padded = np.zeros_like(x, shape=shape)  # with the memory layout of x
    padded[tuple(slice(b, b + s) for b, s in zip(begin, x.shape, strict=True))] = x
    return padded


def _slice(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    part: Array = xs[0][(*[slice(None)] * a["dim"], slice(a["begin"], a["end"]))]
    return part


def _sum(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    x, dtype = xs[0], DType.of(xs[0].dtype)
    if dtype.is_complex:
        return np.asarray(x.sum(a["dim"], np.complex128, keepdims=a["keepdim"])).astype(x.dtype)
    wide = np.float64 if dtype.is_float else np.uint64 if dtype is DType.UINT64 else np.int64
    return to(np.asarray(x.astype(wide).sum(a["dim"], keepdims=a["keepdim"])), dtype)


def _from_start(index: Array, size: int) -> NDArray[np.int64]:
    """Return the indices with negative ones counted from the end. Raises InputError for an index out of range."""
    indices = index.astype(np.int64)
    if indices.size and not (-size <= indices.min() and indices.max() < size):
        raise InputError(
            "weight recipe",
            f"reads an index outside 0 to {size - 1}",
            got=f"{indices.min()} to {indices.max()}",
            do="Check the weights: the file and the program do not fit.",
        )
    return np.where(indices < 0, indices + size, indices)


def _take(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    return np.take(xs[0], _from_start(xs[1], xs[0].shape[a["dim"]]), axis=a["dim"])


def _gather(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    x, dim = xs[0], a["dim"]
    indices = _from_start(xs[1], x.shape[dim])
    part = x[tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(indices.shape))]
    return np.take_along_axis(part, indices, dim)


def _scale(x: Array, dim: int | None, largest_code: float) -> Array:
    """Return max|x| over the largest code in float32, over all dims except ``dim``, with reduced dims of size 1; 1 where it is 0, so that zeros stay zeros."""
    reduced_dims = tuple(d for d in range(x.ndim) if d != dim)
    if dim == 0 and x.ndim > 1 and x.size:
        rows = x.reshape(len(x), -1)
        largest = np.empty((len(x), *(1 for _ in reduced_dims)), np.float64)

        def part(at: slice) -> None:
            largest[at] = np.abs(rows[at].astype(np.float64)).max(1).reshape(-1, *(1 for _ in reduced_dims))

        over_rows(len(rows), rows.shape[1], part)
    else:
        largest = np.max(np.abs(x.astype(np.float64)), axis=reduced_dims, keepdims=True, initial=0.0)
    scale = np.asarray((largest / largest_code).astype(np.float32))
    return np.where(scale == 0, np.float32(1), scale)


def _scale_int8(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    return _scale(xs[0], a["dim"], 127.0).reshape(-1 if a["dim"] is not None else ())


def _quantize_int8(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    x, scale = xs[0], _scale(xs[0], a["dim"], 127.0).astype(np.float64)
    codes = np.empty(x.shape, np.int8)

    def part(at: slice) -> None:
        own = scale[at] if scale.ndim and len(scale) > 1 else scale
        quotient = x[at].astype(np.float64)
        quotient /= own
        codes[at] = np.clip(np.rint(quotient, out=quotient), -127, 127, out=quotient)

    if x.ndim:
        over_rows(len(x), x.size // max(1, len(x)), part)
    else:
        codes[...] = np.clip(np.rint(x.astype(np.float64) / scale), -127, 127)
    return codes


_FP8_MAX = 448.0
"""The largest number of float8_e4m3fn."""


def _finite_scale(x: Array, dim: int | None) -> NDArray[np.float32]:
    """Return ``_scale`` for float8_e4m3fn, NaN where a value is not finite: the results of such a channel are NaN."""
    scale = _scale(x, dim, _FP8_MAX)
    return np.where(np.isfinite(scale), scale, np.float32(np.nan))


def _scale_fp8(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    return _finite_scale(xs[0], a["dim"]).reshape(-1 if a["dim"] is not None else ())


def _quantize_fp8(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    x, scale = xs[0], _finite_scale(xs[0], a["dim"])
    rows = x if x.ndim else x.reshape(1)
    own_scales = scale.ndim and len(scale) > 1
    codes = np.empty(rows.shape, DType.FLOAT8_E4M3FN.numpy)

    def part(at: slice) -> None:
        quotient = np.asarray(rows[at].astype(np.float32) / (scale[at] if own_scales else scale))
        np.clip(quotient, -_FP8_MAX, _FP8_MAX, out=quotient)
        quotient[np.isnan(quotient)] = 0
        codes[at] = quotient.astype(codes.dtype)

    over_rows(len(rows), rows.size // max(1, len(rows)), part)
    return codes.reshape(x.shape)


def _over_blocks(raw: Array, function: Callable[[Array], Array]) -> Array:
    """Apply a function to rows of blocks."""
    rows = raw.reshape(-1, raw.shape[-1])
    if not len(rows):
        return function(raw)
    first = function(rows[:1])
    result = np.empty((len(rows), *first.shape[1:]), first.dtype)

    def part(at: slice) -> None:
        result[at] = function(rows[at])

    over_rows(len(rows), rows.shape[1], part)
    return result.reshape(*raw.shape[:-1], *first.shape[1:])


def _groups_of_blocks(xs: Sequence[Array], a: Mapping[str, Any]) -> Array:
    form = GroupForm(a["bits"], a["group"], a["numbers"])
    try:
        return _over_blocks(xs[0], lambda rows: block_groups(rows, a["blocks"], form))
    except ValueError as error:
        do = "The file is damaged; weights: model reads it as it is."
        raise FormatError(
            "weight recipe", "cannot keep blocks as they are stored", got=error, do=do
        ) from error


def _arange(_: Sequence[Array], a: Mapping[str, Any]) -> Array:
    dtype, steps = DType(a["dtype"]), np.arange(a["count"])
    return to(np.asarray(a["start"] + a["step"] * steps), dtype)


def _constant(_: Sequence[Array], a: Mapping[str, Any]) -> Array:
    dtype = DType(a["dtype"])
    value = a["value"]
    scalar = np.array(value, np.complex128 if dtype.is_complex else np.float64 if dtype.is_float else None)
    if dtype.is_integer:
        scalar = np.array(value, np.uint64 if dtype is DType.UINT64 else np.int64)
    return np.broadcast_to(to(scalar, dtype), tuple(a["shape"]))


STEPS: Mapping[str, Step] = {
    "cast": lambda xs, a: to(xs[0], DType(a["dtype"])),
    "reshape": lambda xs, a: xs[0].reshape(a["shape"]),
    "permute": lambda xs, a: xs[0].transpose(a["order"]),
    "pad": _pad,
    "slice": _slice,
    "concat": lambda xs, a: np.concatenate(xs, a["dim"]),
    "stack": lambda xs, a: np.stack(xs, a["dim"]),
    "add": _rounded(np.add, np.float32),
    "sub": _rounded(np.subtract, np.float32),
    "mul": _rounded(np.multiply, np.float32),
    "div": _rounded(np.divide, np.float32),
    "maximum": _rounded(np.maximum, np.float32),
    "neg": _rounded(np.negative, np.float32),
    "sqrt": _rounded(np.sqrt, np.float32),
    "rsqrt": _rounded(lambda x: 1.0 / np.sqrt(x), np.float64),
    "reciprocal": _rounded(np.reciprocal, np.float32),
    "exp": _rounded(np.exp, np.float64),
    "cos": _rounded(np.cos, np.float64),
    "sin": _rounded(np.sin, np.float64),
    "log": _rounded(np.log, np.float64),
    "tanh": _rounded(np.tanh, np.float64),
    "matmul": _rounded(np.matmul, np.float64),
    "amax": lambda xs, a: np.max(xs[0], axis=a["dim"], keepdims=a["keepdim"]),
    "sum": _sum,
    "expand": lambda xs, a: np.broadcast_to(xs[0], tuple(a["shape"])),
    "flip": lambda xs, a: np.flip(xs[0], a["dims"]),
    "take": _take,
    "gather": _gather,
    "where": lambda xs, a: np.where(xs[0], xs[1], xs[2]),
    "scale_int8": _scale_int8,
    "quantize_int8": _quantize_int8,
    "scale_fp8": _scale_fp8,
    "quantize_fp8": _quantize_fp8,
    "groups_int4": lambda xs, a: int4_groups(xs[0], a["group"]),
    "dequantize_blocks": lambda xs, a: _over_blocks(xs[0], lambda rows: block_values(rows, a["blocks"])),
    "groups_of_blocks": _groups_of_blocks,
    "arange": _arange,
    "constant": _constant,
}
"""Op -> its function. The table has checked shapes, dtypes and attributes before it is called."""
