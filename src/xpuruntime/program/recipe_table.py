"""The steps that weight recipes may take: names, attributes, and the shape and dtype of each result.

A closed table. The compiler writes recipes with it, the reader of programs checks them against it, and ``runtime.recipes`` has one
NumPy function for each row. A step rounds once to its dtype, as the interpreter does; who wants a fold in float64 says so by casts.

What a step may read: the name of a weight (a leading ``%`` doubled), ``%in`` (the recipe's source), or ``%N`` (the result of step N).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from ..types import DType, TensorSpec
from .program import RecipeStep, WeightTransformRecipe

__all__ = [
    "RECIPE_OPS",
    "RecipeOp",
    "infer_recipe",
    "recipe_bytes",
    "rename_inputs",
    "resolve",
    "weight_input",
    "weights_of",
]

Shape: TypeAlias = tuple[int, ...]
Typed: TypeAlias = tuple[Shape, DType]
Infer: TypeAlias = Callable[[Sequence[Typed], Mapping[str, Any]], Typed]

_GROWTH = 64
"""How often larger a result may be than all that the recipe reads and makes together."""


@dataclass(frozen=True, slots=True)
class RecipeOp:
    """One row.

    inputs: least and most number of inputs. ``attrs``: name to kind, all required.
    infer:  shape and dtype of the result. Raises ValueError with the reason.
    """

    name: str
    inputs: tuple[int, int]
    attrs: Mapping[str, str]
    infer: Infer
    doc: str


# ── kinds of attributes ──


def _is_int(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48


def _sizes(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) <= 64 and all(_is_size(v) for v in value)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and value in DType._value2member_map_ and value != "string"


KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "size": ("an integer from 0 on", _is_size),
    "sizes": ("a list of integers from 0 on", _sizes),
    "flag": ("true or false", lambda v: type(v) is bool),
    "dtype": ("the name of a dtype", _is_dtype),
    "dim": ("a dim from 0 on, or null", lambda v: v is None or _is_size(v)),
    "number": ("a number", lambda v: type(v) in (bool, float) or _is_int(v)),
}


# ── results ──


def _fail(text: str) -> NoReturn:
    raise ValueError(text)


def _dim(shape: Shape, dim: int) -> int:
    return dim if dim < len(shape) else _fail(f"dim {dim} of {list(shape)}")


def _cast(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    return xs[0][0], DType(a["dtype"])


def _reshape(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape = tuple(a["shape"])
    if math.prod(shape) != math.prod(xs[0][0]):
        _fail(f"{list(xs[0][0])} has another number of elements than {list(shape)}")
    return shape, xs[0][1]


def _permute(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, order = xs[0][0], a["order"]
    if sorted(order) != list(range(len(shape))):
        _fail(f"order {list(order)} does not name each dim of {list(shape)} once")
    return tuple(shape[d] for d in order), xs[0][1]


def _pad(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, begin, end = xs[0][0], a["begin"], a["end"]
    if not len(begin) == len(end) == len(shape):
        _fail(f"needs begin and end for each dim of {list(shape)}, got {len(begin)} and {len(end)}")
    return tuple(b + s + e for b, s, e in zip(begin, shape, end, strict=True)), xs[0][1]


def _slice(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, dim = xs[0][0], _dim(xs[0][0], a["dim"])
    if not a["begin"] <= a["end"] <= shape[dim]:
        _fail(f"{a['begin']}:{a['end']} of dim {dim} of {list(shape)}")
    return (*shape[:dim], a["end"] - a["begin"], *shape[dim + 1 :]), xs[0][1]


def _concat(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    dim, dtype = _dim(xs[0][0], a["dim"]), _one_dtype(xs)
    rests = {(*s[:dim], *s[dim + 1 :]) for s, _ in xs}
    if len({len(s) for s, _ in xs} | rests) != 2:
        _fail(f"{_shapes(xs)} do not fit along dim {dim}")
    shape = xs[0][0]
    return (*shape[:dim], sum(s[dim] for s, _ in xs), *shape[dim + 1 :]), dtype


def _stack(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, dtype = xs[0][0], _one_dtype(xs)
    if len({s for s, _ in xs}) != 1 or a["dim"] > len(shape):
        _fail(f"{_shapes(xs)} do not stack at dim {a['dim']}")
    return (*shape[: a["dim"]], len(xs), *shape[a["dim"] :]), dtype


def _shapes(xs: Sequence[Typed]) -> str:
    return ", ".join(str(list(s)) for s, _ in xs)


def _one_dtype(xs: Sequence[Typed]) -> DType:
    if len({d for _, d in xs}) != 1:
        _fail(f"inputs have several dtypes: {', '.join(d.value for _, d in xs)}")
    return xs[0][1]


def _broadcast(xs: Sequence[Typed], _: Mapping[str, Any]) -> Typed:
    (a, dtype), (b, _dtype) = xs
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(p != q and 1 not in (p, q) for p, q in zip(left, right, strict=True)):
        _fail(f"{_shapes(xs)} do not broadcast")
    if dtype is DType.BOOL:
        _fail("bool has no arithmetic")
    return tuple(q if p == 1 else p for p, q in zip(left, right, strict=True)), _one_dtype(xs)


def _floats(infer: Infer) -> Infer:
    def checked(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
        shape, dtype = infer(xs, a)
        return (shape, dtype) if dtype.is_float else _fail(f"is for floats, got {dtype.value}")

    return checked


def _same(xs: Sequence[Typed], _: Mapping[str, Any]) -> Typed:
    return xs[0] if xs[0][1] is not DType.BOOL else _fail("bool has no arithmetic")


def _real(infer: Infer) -> Infer:
    def checked(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
        shape, dtype = infer(xs, a)
        return _fail(f"has no meaning for {dtype.value}") if dtype.is_complex else (shape, dtype)

    return checked


def _sum(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, dtype = _same(xs, a)
    _dim(shape, a["dim"])
    kept = (1,) if a["keepdim"] else ()
    return (*shape[: a["dim"]], *kept, *shape[a["dim"] + 1 :]), dtype


def _expand(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, wanted = xs[0][0], tuple(a["shape"])
    tail = wanted[len(wanted) - len(shape) :]
    if len(wanted) < len(shape) or any(s not in (1, w) for s, w in zip(shape, tail, strict=True)):
        _fail(f"{list(shape)} does not expand to {list(wanted)}")
    return wanted, xs[0][1]


def _flip(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    if len(set(a["dims"])) != len(a["dims"]):
        _fail(f"names a dim twice: {list(a['dims'])}")
    for d in a["dims"]:
        _dim(xs[0][0], d)
    return xs[0]


def _quantized(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    if a["dim"] is not None:
        _dim(xs[0][0], a["dim"])
    return _floats(lambda *_: (xs[0][0], xs[0][1]))(xs, a)[0], DType.INT8


def _scales(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, _ = _quantized(xs, a)
    return (() if a["dim"] is None else (shape[a["dim"]],)), DType.FLOAT32


def _groups_int4(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, group = _floats(_same)(xs, a)[0], a["group"]
    if not shape or group < 2 or group % 2 or shape[-1] % group:
        _fail(f"the last dim of {list(shape)} is no whole number of even groups of {group}")
    return (*shape[:-1], shape[-1] // group, group // 2 + 4), DType.INT8


def _index(typed: Typed) -> Shape:
    shape, dtype = typed
    return (
        shape if dtype.is_integer and dtype.bits >= 8 else _fail(f"an index is an integer, got {dtype.value}")
    )


def _take(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, dim = xs[0][0], _dim(xs[0][0], a["dim"])
    return (*shape[:dim], *_index(xs[1]), *shape[dim + 1 :]), xs[0][1]


def _gather(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    shape, dim, places = xs[0][0], _dim(xs[0][0], a["dim"]), _index(xs[1])
    fit = len(places) == len(shape) and all(
        p <= s for d, (p, s) in enumerate(zip(places, shape, strict=True)) if d != dim
    )
    return (places, xs[0][1]) if fit else _fail(f"an index of {list(places)} into {list(shape)}")


def _where(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    if xs[0][1] is not DType.BOOL:
        _fail(f"asks for bool, got {xs[0][1].value}")
    dtype = _one_dtype(xs[1:])
    either, _ = _broadcast([(s, DType.FLOAT32) for s, _ in xs[1:]], a)
    return _broadcast([(xs[0][0], DType.FLOAT32), (either, DType.FLOAT32)], a)[0], dtype


def _arange(_: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    dtype = DType(a["dtype"])
    if not (dtype.is_float or dtype.is_integer) or (
        dtype.is_integer and any(type(a[n]) is not int for n in ("start", "step"))
    ):
        _fail(f"{a['start']} and {a['step']} count in no {dtype.value}")
    return (a["count"],), dtype


def _constant(_: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    dtype, value = DType(a["dtype"]), a["value"]
    if dtype.is_integer and type(value) is not int:
        _fail(f"{value!r} is no {dtype.value}")
    if dtype.is_integer:
        bits = dtype.bits - dtype.is_signed
        if not (-(1 << bits) if dtype.is_signed else 0) <= value < 1 << bits:
            _fail(f"{value!r} is no {dtype.value}")
    if dtype is DType.BOOL and type(value) is not bool:
        _fail(f"{value!r} is no bool")
    return tuple(a["shape"]), dtype


_ROWS = (
    RecipeOp("cast", (1, 1), {"dtype": "dtype"}, _cast, "another dtype: floats rounded once, integers wrapped"),
    RecipeOp("reshape", (1, 1), {"shape": "sizes"}, _reshape, "the same elements, row-major, in another shape"),
    RecipeOp("permute", (1, 1), {"order": "sizes"}, _permute, "dims in another order"),
    RecipeOp("pad", (1, 1), {"begin": "sizes", "end": "sizes"}, _pad, "zeros before and after, per dim"),
    RecipeOp("slice", (1, 1), {"dim": "size", "begin": "size", "end": "size"}, _slice, "begin:end of one dim"),
    RecipeOp("concat", (1, 4096), {"dim": "size"}, _concat, "one after the other along a dim"),
    RecipeOp("stack", (1, 4096), {"dim": "size"}, _stack, "side by side along a new dim"),
    RecipeOp("add", (2, 2), {}, _broadcast, "sum of two, broadcast"),
    RecipeOp("sub", (2, 2), {}, _broadcast, "difference of two, broadcast"),
    RecipeOp("mul", (2, 2), {}, _broadcast, "product of two, broadcast"),
    RecipeOp("div", (2, 2), {}, _floats(_broadcast), "quotient of two floats, broadcast"),
    RecipeOp("maximum", (2, 2), {}, _real(_broadcast), "larger of two, broadcast; NaN wins"),
    RecipeOp("neg", (1, 1), {}, _same, "with the other sign"),
    RecipeOp("sqrt", (1, 1), {}, _floats(_same), "square root"),
    RecipeOp("rsqrt", (1, 1), {}, _floats(_same), "one over the square root"),
    RecipeOp("reciprocal", (1, 1), {}, _floats(_same), "one over it"),
    RecipeOp("exp", (1, 1), {}, _floats(_same), "exponential"),
    RecipeOp("cos", (1, 1), {}, _floats(_same), "cosine of radians"),
    RecipeOp("sin", (1, 1), {}, _floats(_same), "sine of radians"),
    RecipeOp("sum", (1, 1), {"dim": "size", "keepdim": "flag"}, _sum, "sum over a dim, in float64 or wrapping"),
    RecipeOp("expand", (1, 1), {"shape": "sizes"}, _expand, "repeated along dims of extent 1 and new ones"),
    RecipeOp("flip", (1, 1), {"dims": "sizes"}, _flip, "reversed along dims"),
    RecipeOp("take", (2, 2), {"dim": "size"}, _take, "at indices along a dim, which theirs replace; negative ones count from the end"),
    RecipeOp("gather", (2, 2), {"dim": "size"}, _gather, "per element the one at its index along a dim"),
    RecipeOp("where", (3, 3), {}, _where, "the second where the first is true, else the third, broadcast"),
    RecipeOp("scale_int8", (1, 1), {"dim": "dim"}, _scales, "max|x| / 127 per index of a dim; 1 where that is 0"),
    RecipeOp("quantize_int8", (1, 1), {"dim": "dim"}, _quantized, "x over scale_int8, rounded half to even"),
    RecipeOp("groups_int4", (1, 1), {"group": "size"}, _groups_int4, "per group of the last dim codes of four bits, two in a byte, then scale and low in bfloat16, low bytes first; x is near low + scale * code"),
    RecipeOp("arange", (0, 0), {"start": "number", "step": "number", "count": "size", "dtype": "dtype"}, _arange, "start + i * step, for i below count"),
    RecipeOp("constant", (0, 0), {"value": "number", "dtype": "dtype", "shape": "sizes"}, _constant, "one value"),
)  # fmt: skip

RECIPE_OPS: Mapping[str, RecipeOp] = {row.name: row for row in _ROWS}
"""Every step by name."""


# ── references and whole recipes ──


def weight_input(name: str) -> str:
    """How a step names a weight: its name, a leading ``%`` doubled."""
    return "%" + name if name.startswith("%") else name


def resolve(reference: str, source: str) -> str | int:
    """What a step's input means: the name of a weight, or the index of an earlier step. Raises ValueError."""
    if not reference.startswith("%"):
        return reference
    if reference.startswith("%%"):
        return reference[1:]
    if reference == "%in":
        return source or _fail("%in in a recipe without a source")
    digits = reference[1:]
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10):
        _fail(f"no such reference: {reference[:80]!r}")
    return int(digits)


def rename_inputs(steps: Sequence[RecipeStep], start: int, given: str) -> tuple[RecipeStep, ...]:
    """Steps over ``%in`` as they read behind ``start`` other steps: ``%in`` becomes ``given``, results count on."""

    def renamed(reference: str) -> str:
        if reference == "%in":
            return given
        is_result = reference.startswith("%") and not reference.startswith("%%")
        return f"%{int(reference[1:]) + start}" if is_result else reference

    return tuple(RecipeStep(s.op, tuple(renamed(i) for i in s.inputs), s.attrs) for s in steps)


def infer_recipe(
    recipe: WeightTransformRecipe, weights: Mapping[str, TensorSpec]
) -> tuple[tuple[Typed, ...], Typed]:
    """Shape and dtype of each step's result, and of the last. Raises ValueError, naming the step, when a step is against the table,
    when the result is not the recipe's spec, or when a result between is out of all proportion.
    """
    made: list[Typed] = []
    read = sum(_bytes(_static(weights[n])) for n in weights_of(recipe) if n in weights)
    limit = _GROWTH * (read + (recipe.spec.size_bytes or 0)) + (1 << 16)
    for i, step in enumerate(recipe.steps):
        try:
            result = _step(recipe, step, made, weights)
            if _bytes(result) > limit:
                _fail(f"makes {_bytes(result)} bytes")
        except ValueError as error:
            raise ValueError(f"step {i} ({step.op[:40]}): {error}") from error
        made.append(result)
    last = made[-1] if made else _input(recipe, "%in", made, weights)
    if last != _static(recipe.spec):
        got = TensorSpec(*last)
        raise ValueError(
            f"the steps make {got}, the buffer is {TensorSpec(recipe.spec.shape, recipe.spec.dtype)}"
        )
    return tuple(made), last


def recipe_bytes(recipe: WeightTransformRecipe) -> int:
    """Bytes of the buffer that the recipe makes, padding included. Raises ValueError for a symbolic shape or strings."""
    size = recipe.spec.size_bytes
    return size if size is not None else _fail(f"{recipe.spec} has no size")


def weights_of(recipe: WeightTransformRecipe) -> set[str]:
    """The weights that a recipe reads. Raises ValueError for a step whose input means nothing."""
    found = {resolve(i, recipe.source) for s in recipe.steps for i in s.inputs}
    return {n for n in found if isinstance(n, str)} | ({recipe.source} if recipe.source else set())


def _static(spec: TensorSpec) -> Typed:
    if not spec.is_static or spec.dtype is DType.STRING:
        _fail(f"{spec} has no size")
    return tuple(int(d) for d in spec.shape if isinstance(d, int)), spec.dtype


def _bytes(typed: Typed) -> int:
    return math.prod(typed[0]) * typed[1].numpy.itemsize


def _input(
    recipe: WeightTransformRecipe, reference: str, made: Sequence[Typed], weights: Mapping[str, TensorSpec]
) -> Typed:
    found = resolve(reference, recipe.source)
    if isinstance(found, int):
        return (
            made[found]
            if found < len(made)
            else _fail(f"reads the result of step {found}, which is not before it")
        )
    return _static(weights[found]) if found in weights else _fail(f"reads {found[:80]!r}, which is no weight")


def _step(
    recipe: WeightTransformRecipe, step: RecipeStep, made: Sequence[Typed], weights: Mapping[str, TensorSpec]
) -> Typed:
    row = RECIPE_OPS.get(step.op)
    if row is None:
        return _fail("is no step that this release knows")
    least, most = row.inputs
    if not least <= len(step.inputs) <= most:
        _fail(f"takes {least if least == most else f'{least} to {most}'} inputs, got {len(step.inputs)}")
    if set(step.attrs) != set(row.attrs):
        _fail(f"takes the attributes {sorted(row.attrs)}, got {sorted(step.attrs)}")
    for name, kind in row.attrs.items():
        words, fits = KINDS[kind]
        if not fits(step.attrs[name]):
            _fail(f"{name} must be {words}, got {str(step.attrs[name])[:80]!r}")
    return row.infer([_input(recipe, i, made, weights) for i in step.inputs], step.attrs)
