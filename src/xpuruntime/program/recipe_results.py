"""The shape and dtype that each step of a weight recipe makes of those of its inputs. Each raises ValueError with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from ..types import DType

__all__ = [
    "Infer",
    "Shape",
    "Typed",
    "arange",
    "as_dtype",
    "broadcast",
    "concat",
    "constant",
    "dim_in",
    "expand",
    "fail",
    "flip",
    "floats",
    "gather",
    "groups_int4",
    "index_shape",
    "one_dtype",
    "pad",
    "permute",
    "quantized",
    "reals",
    "reshape",
    "same",
    "scales",
    "shapes",
    "sliced",
    "stack",
    "summed",
    "take",
    "where",
]

Shape: TypeAlias = tuple[int, ...]
Typed: TypeAlias = tuple[Shape, DType]
Infer: TypeAlias = Callable[[Sequence[Typed], Mapping[str, Any]], Typed]


# ── results ──


def fail(text: str) -> NoReturn:
    """Raise ValueError."""
    raise ValueError(text)


def dim_in(shape: Shape, dim: int) -> int:
    """Return a dim that a shape has."""
    return dim if dim < len(shape) else fail(f"dim {dim} of {list(shape)}")


def as_dtype(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Of ``cast``."""
    return xs[0][0], DType(a["dtype"])


def reshape(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return as many elements in another shape."""
    shape = tuple(a["shape"])
    if math.prod(shape) != math.prod(xs[0][0]):
        fail(f"{list(xs[0][0])} has another number of elements than {list(shape)}")
    return shape, xs[0][1]


def permute(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Dims in another order, each once."""
    shape, order = xs[0][0], a["order"]
    if sorted(order) != list(range(len(shape))):
        fail(f"order {list(order)} does not name each dim of {list(shape)} once")
    return tuple(shape[d] for d in order), xs[0][1]


def pad(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Longer by what is before and after."""
    shape, begin, end = xs[0][0], a["begin"], a["end"]
    if not len(begin) == len(end) == len(shape):
        fail(f"needs begin and end for each dim of {list(shape)}, got {len(begin)} and {len(end)}")
    return tuple(b + s + e for b, s, e in zip(begin, shape, end, strict=True)), xs[0][1]


def sliced(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Of ``slice``: one dim cut."""
    shape, dim = xs[0][0], dim_in(xs[0][0], a["dim"])
    if not a["begin"] <= a["end"] <= shape[dim]:
        fail(f"{a['begin']}:{a['end']} of dim {dim} of {list(shape)}")
    return (*shape[:dim], a["end"] - a["begin"], *shape[dim + 1 :]), xs[0][1]


def concat(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Shapes that differ in one dim only, which adds up."""
    dim, dtype = dim_in(xs[0][0], a["dim"]), one_dtype(xs)
    rests = {(*s[:dim], *s[dim + 1 :]) for s, _ in xs}
    if len({len(s) for s, _ in xs} | rests) != 2:
        fail(f"{shapes(xs)} do not fit along dim {dim}")
    shape = xs[0][0]
    return (*shape[:dim], sum(s[dim] for s, _ in xs), *shape[dim + 1 :]), dtype


def stack(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Equal shapes, and a new dim that counts them."""
    shape, dtype = xs[0][0], one_dtype(xs)
    if len({s for s, _ in xs}) != 1 or a["dim"] > len(shape):
        fail(f"{shapes(xs)} do not stack at dim {a['dim']}")
    return (*shape[: a["dim"]], len(xs), *shape[a["dim"] :]), dtype


def shapes(xs: Sequence[Typed]) -> str:
    """Shapes in words."""
    return ", ".join(str(list(s)) for s, _ in xs)


def one_dtype(xs: Sequence[Typed]) -> DType:
    """Return the dtype that all have."""
    if len({d for _, d in xs}) != 1:
        fail(f"inputs have several dtypes: {', '.join(d.value for _, d in xs)}")
    return xs[0][1]


def broadcast(xs: Sequence[Typed], _: Mapping[str, Any]) -> Typed:
    """Of two that broadcast; not of bool."""
    (a, dtype), (b, _dtype) = xs
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(p != q and 1 not in (p, q) for p, q in zip(left, right, strict=True)):
        fail(f"{shapes(xs)} do not broadcast")
    if dtype is DType.BOOL:
        fail("bool has no arithmetic")
    return tuple(q if p == 1 else p for p, q in zip(left, right, strict=True)), one_dtype(xs)


def floats(infer: Infer) -> Infer:
    """Return the same, for floats only."""

    def checked(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
        shape, dtype = infer(xs, a)
        return (shape, dtype) if dtype.is_float else fail(f"is for floats, got {dtype.value}")

    return checked


def same(xs: Sequence[Typed], _: Mapping[str, Any]) -> Typed:
    """Return as the input; not of bool."""
    return xs[0] if xs[0][1] is not DType.BOOL else fail("bool has no arithmetic")


def reals(infer: Infer) -> Infer:
    """Return the same, not for complex numbers."""

    def checked(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
        shape, dtype = infer(xs, a)
        return fail(f"has no meaning for {dtype.value}") if dtype.is_complex else (shape, dtype)

    return checked


def summed(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Of ``sum``: without a dim, or with 1 there."""
    shape, dtype = same(xs, a)
    dim_in(shape, a["dim"])
    kept_dim = (1,) if a["keepdim"] else ()
    return (*shape[: a["dim"]], *kept_dim, *shape[a["dim"] + 1 :]), dtype


def expand(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Dims of extent 1 and new ones repeated."""
    shape, target = xs[0][0], tuple(a["shape"])
    tail = target[len(target) - len(shape) :]
    if len(target) < len(shape) or any(s not in (1, w) for s, w in zip(shape, tail, strict=True)):
        fail(f"{list(shape)} does not expand to {list(target)}")
    return target, xs[0][1]


def flip(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return as the input; dims named once each."""
    if len(set(a["dims"])) != len(a["dims"]):
        fail(f"names a dim twice: {list(a['dims'])}")
    for d in a["dims"]:
        dim_in(xs[0][0], d)
    return xs[0]


def quantized(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """int8, of floats."""
    if a["dim"] is not None:
        dim_in(xs[0][0], a["dim"])
    return floats(lambda *_: (xs[0][0], xs[0][1]))(xs, a)[0], DType.INT8


def scales(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """float32, one for each index of a dim, or one in all."""
    shape, _ = quantized(xs, a)
    return (() if a["dim"] is None else (shape[a["dim"]],)), DType.FLOAT32


def groups_int4(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Bytes: a group of the last dim is half as many, and four more."""
    shape, group = floats(same)(xs, a)[0], a["group"]
    if not shape or group < 2 or group % 2 or shape[-1] % group:
        fail(f"the last dim of {list(shape)} is no whole number of even groups of {group}")
    return (*shape[:-1], shape[-1] // group, group // 2 + 4), DType.INT8


def index_shape(typed: Typed) -> Shape:
    """Return the shape of an index."""
    shape, dtype = typed
    return (
        shape if dtype.is_integer and dtype.bits >= 8 else fail(f"an index is an integer, got {dtype.value}")
    )


def take(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return the index's dims in the place of one."""
    shape, dim = xs[0][0], dim_in(xs[0][0], a["dim"])
    return (*shape[:dim], *index_shape(xs[1]), *shape[dim + 1 :]), xs[0][1]


def gather(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return as the index, which lies within the operand in the other dims."""
    shape, dim, places = xs[0][0], dim_in(xs[0][0], a["dim"]), index_shape(xs[1])
    fit = len(places) == len(shape) and all(
        p <= s for d, (p, s) in enumerate(zip(places, shape, strict=True)) if d != dim
    )
    return (places, xs[0][1]) if fit else fail(f"an index of {list(places)} into {list(shape)}")


def where(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Of a bool and two that broadcast with it."""
    if xs[0][1] is not DType.BOOL:
        fail(f"asks for bool, got {xs[0][1].value}")
    dtype = one_dtype(xs[1:])
    either, _ = broadcast([(s, DType.FLOAT32) for s, _ in xs[1:]], a)
    return broadcast([(xs[0][0], DType.FLOAT32), (either, DType.FLOAT32)], a)[0], dtype


def arange(_: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return as long as its count; whole numbers count in whole steps."""
    dtype = DType(a["dtype"])
    if not (dtype.is_float or dtype.is_integer) or (
        dtype.is_integer and any(type(a[n]) is not int for n in ("start", "step"))
    ):
        fail(f"{a['start']} and {a['step']} count in no {dtype.value}")
    return (a["count"],), dtype


def constant(_: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return a shape of one value, which its dtype holds."""
    dtype, value = DType(a["dtype"]), a["value"]
    if dtype.is_integer and type(value) is not int:
        fail(f"{value!r} is no {dtype.value}")
    if dtype.is_integer:
        bits = dtype.bits - dtype.is_signed
        if not (-(1 << bits) if dtype.is_signed else 0) <= value < 1 << bits:
            fail(f"{value!r} is no {dtype.value}")
    if dtype is DType.BOOL and type(value) is not bool:
        fail(f"{value!r} is no bool")
    return tuple(a["shape"]), dtype
