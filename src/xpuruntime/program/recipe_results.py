"""Shape and dtype inference for the steps of weight recipes. Each function raises ValueError with the reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

from ..storage.blocks import BLOCK_FORMATS, NUMBER_BYTES, BlockFormat, GroupForm, common_form
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
    "dequantized_blocks",
    "dim_in",
    "expand",
    "fail",
    "flip",
    "floats",
    "gather",
    "groups_int4",
    "groups_of_blocks",
    "index_shape",
    "largest",
    "one_dtype",
    "pad",
    "permute",
    "product",
    "quantized",
    "quantized_fp8",
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
    """Check that a dim is within the rank of a shape."""
    return dim if dim < len(shape) else fail(f"dim {dim} of {list(shape)}")


def as_dtype(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Infer ``cast``."""
    return xs[0][0], DType(a["dtype"])


def reshape(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Check that the element count does not change."""
    shape = tuple(a["shape"])
    if math.prod(shape) != math.prod(xs[0][0]):
        fail(f"{list(xs[0][0])} does not have the element count of {list(shape)}")
    return shape, xs[0][1]


def permute(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Check that the order names each dim once, and reorder them."""
    shape, order = xs[0][0], a["order"]
    if sorted(order) != list(range(len(shape))):
        fail(f"order {list(order)} must name each dim of {list(shape)} once")
    return tuple(shape[d] for d in order), xs[0][1]


def pad(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Add the padding before and after to each dim."""
    shape, begin, end = xs[0][0], a["begin"], a["end"]
    if not len(begin) == len(end) == len(shape):
        fail(f"needs begin and end for each dim of {list(shape)}, got {len(begin)} and {len(end)}")
    return tuple(b + s + e for b, s, e in zip(begin, shape, end, strict=True)), xs[0][1]


def sliced(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Infer ``slice``, which shortens one dim."""
    shape, dim = xs[0][0], dim_in(xs[0][0], a["dim"])
    if not a["begin"] <= a["end"] <= shape[dim]:
        fail(f"{a['begin']}:{a['end']} of dim {dim} of {list(shape)}")
    return (*shape[:dim], a["end"] - a["begin"], *shape[dim + 1 :]), xs[0][1]


def concat(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Add up one dim of shapes that are otherwise equal."""
    dim, dtype = dim_in(xs[0][0], a["dim"]), one_dtype(xs)
    rests = {(*s[:dim], *s[dim + 1 :]) for s, _ in xs}
    if len({len(s) for s, _ in xs} | rests) != 2:
        fail(f"{shapes(xs)} cannot be concatenated along dim {dim}")
    shape = xs[0][0]
    return (*shape[:dim], sum(s[dim] for s, _ in xs), *shape[dim + 1 :]), dtype


def stack(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Add a new dim that counts the inputs, which have equal shapes."""
    shape, dtype = xs[0][0], one_dtype(xs)
    if len({s for s, _ in xs}) != 1 or a["dim"] > len(shape):
        fail(f"{shapes(xs)} cannot be stacked at dim {a['dim']}")
    return (*shape[: a["dim"]], len(xs), *shape[a["dim"] :]), dtype


def shapes(xs: Sequence[Typed]) -> str:
    """Return the shapes as text."""
    return ", ".join(str(list(s)) for s, _ in xs)


def one_dtype(xs: Sequence[Typed]) -> DType:
    """Return the common dtype of all inputs. Raises ValueError without one."""
    if len({d for _, d in xs}) != 1:
        fail(f"inputs have several dtypes: {', '.join(d.value for _, d in xs)}")
    return xs[0][1]


def broadcast(xs: Sequence[Typed], _: Mapping[str, Any]) -> Typed:
    """Broadcast two inputs; bool is not allowed."""
    (a, dtype), (b, _dtype) = xs
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b
    if any(p != q and 1 not in (p, q) for p, q in zip(left, right, strict=True)):
        fail(f"{shapes(xs)} do not broadcast")
    if dtype is DType.BOOL:
        fail("bool has no arithmetic")
    return tuple(q if p == 1 else p for p, q in zip(left, right, strict=True)), one_dtype(xs)


def floats(infer: Infer) -> Infer:
    """Restrict an inference function to floats."""

    def checked(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
        shape, dtype = infer(xs, a)
        return (shape, dtype) if dtype.is_float else fail(f"needs floats, got {dtype.value}")

    return checked


def same(xs: Sequence[Typed], _: Mapping[str, Any]) -> Typed:
    """Return the input's spec; bool is not allowed."""
    return xs[0] if xs[0][1] is not DType.BOOL else fail("bool has no arithmetic")


def reals(infer: Infer) -> Infer:
    """Restrict an inference function to real numbers."""

    def checked(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
        shape, dtype = infer(xs, a)
        return fail(f"is not defined for {dtype.value}") if dtype.is_complex else (shape, dtype)

    return checked


def summed(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Infer ``sum``, which drops a dim or keeps it with size 1."""
    shape, dtype = same(xs, a)
    dim_in(shape, a["dim"])
    kept_dim = (1,) if a["keepdim"] else ()
    return (*shape[: a["dim"]], *kept_dim, *shape[a["dim"] + 1 :]), dtype


def largest(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Infer ``amax``, as ``sum``. A dim without elements has no maximum."""
    if xs[0][0][dim_in(xs[0][0], a["dim"])] == 0:
        fail(f"dim {a['dim']} of {list(xs[0][0])} has no maximum")
    return summed(xs, a)


def product(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Infer the product of two matrices or of stacks of them."""
    (left, dtype), (right, _) = xs
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        fail(f"{shapes(xs)} cannot be multiplied as matrices")
    stack_dims, _ = broadcast([(left[:-2], dtype), (right[:-2], dtype)], a)
    return (*stack_dims, left[-2], right[-1]), one_dtype(xs)


def expand(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Expand new dims and dims of extent 1."""
    shape, target = xs[0][0], tuple(a["shape"])
    tail = target[len(target) - len(shape) :]
    if len(target) < len(shape) or any(s not in (1, w) for s, w in zip(shape, tail, strict=True)):
        fail(f"{list(shape)} does not expand to {list(target)}")
    return target, xs[0][1]


def flip(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return the input's spec; each dim may be named once."""
    if len(set(a["dims"])) != len(a["dims"]):
        fail(f"names a dim twice: {list(a['dims'])}")
    for d in a["dims"]:
        dim_in(xs[0][0], d)
    return xs[0]


def quantized(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return int8 for floats."""
    if a["dim"] is not None:
        dim_in(xs[0][0], a["dim"])
    return floats(lambda *_: (xs[0][0], xs[0][1]))(xs, a)[0], DType.INT8


def quantized_fp8(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return float8_e4m3fn for floats."""
    return quantized(xs, a)[0], DType.FLOAT8_E4M3FN


def scales(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return float32 with one scale per index of a dim, or one in all."""
    shape, _ = quantized(xs, a)
    return (() if a["dim"] is None else (shape[a["dim"]],)), DType.FLOAT32


def groups_int4(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return the bytes of int4 groups: half the group size plus four per group of the last dim."""
    shape, group = floats(same)(xs, a)[0], a["group"]
    if not shape or group < 2 or group % 2 or shape[-1] % group:
        fail(f"the last dim of {list(shape)} must be a multiple of the even group size {group}")
    return (*shape[:-1], shape[-1] // group, group // 2 + 4), DType.INT8


def _block_format(typed: Typed, name: str) -> tuple[BlockFormat, Shape]:
    """Return the format of a step, and the shape of the values of rows of its blocks."""
    shape, dtype = typed
    if name not in BLOCK_FORMATS:
        fail(f"no such format of blocks: {name[:40]!r}")
    form = BLOCK_FORMATS[name]
    if dtype is not DType.UINT8 or not shape or shape[-1] % form.bytes:
        fail(f"{dtype.value}{list(shape)} must be rows of blocks of {form.bytes} bytes")
    return form, (*shape[:-1], shape[-1] // form.bytes * form.values)


def dequantized_blocks(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return float32 with the values of rows of blocks."""
    return _block_format(xs[0], a["blocks"])[1], DType.FLOAT32


def groups_of_blocks(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return the bytes of groups that hold the values of rows of blocks."""
    own, shape = _block_format(xs[0], a["blocks"])
    if a["bits"] not in (4, 8) or a["group"] not in (16, 32) or a["numbers"] not in NUMBER_BYTES:
        fail(f"no such groups: {a['bits']} bits, {a['group']} inputs, {a['numbers'][:40]!r}")
    form = GroupForm(a["bits"], a["group"], a["numbers"])
    if common_form((own.form, form)) != form:
        fail(f"groups of {form.bits} bits and {form.group} inputs, {form.numbers}, do not hold {a['blocks']}")
    return (*shape[:-1], shape[-1] // form.group, form.bytes), DType.INT8


def index_shape(typed: Typed) -> Shape:
    """Return the shape of an index."""
    shape, dtype = typed
    return (
        shape
        if dtype.is_integer and dtype.bits >= 8
        else fail(f"an index must be an integer, got {dtype.value}")
    )


def take(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Replace one dim by the index's dims."""
    shape, dim = xs[0][0], dim_in(xs[0][0], a["dim"])
    return (*shape[:dim], *index_shape(xs[1]), *shape[dim + 1 :]), xs[0][1]


def gather(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return the index's shape, which must not exceed the operand's in other dims."""
    shape, dim, index_dims = xs[0][0], dim_in(xs[0][0], a["dim"]), index_shape(xs[1])
    fit = len(index_dims) == len(shape) and all(
        p <= s for d, (p, s) in enumerate(zip(index_dims, shape, strict=True)) if d != dim
    )
    return (
        (index_dims, xs[0][1])
        if fit
        else fail(f"an index of shape {list(index_dims)} does not fit {list(shape)}")
    )


def where(xs: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Broadcast a bool condition with two values."""
    if xs[0][1] is not DType.BOOL:
        fail(f"needs a bool condition, got {xs[0][1].value}")
    dtype = one_dtype(xs[1:])
    either, _ = broadcast([(s, DType.FLOAT32) for s, _ in xs[1:]], a)
    return broadcast([(xs[0][0], DType.FLOAT32), (either, DType.FLOAT32)], a)[0], dtype


def arange(_: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return a vector of ``count`` elements; integer types need integer start and step."""
    dtype = DType(a["dtype"])
    if not (dtype.is_float or dtype.is_integer) or (
        dtype.is_integer and any(type(a[n]) is not int for n in ("start", "step"))
    ):
        fail(f"{a['start']} and {a['step']} cannot be counted in {dtype.value}")
    return (a["count"],), dtype


def constant(_: Sequence[Typed], a: Mapping[str, Any]) -> Typed:
    """Return the shape of one value, after checking that the dtype can represent it."""
    dtype, value = DType(a["dtype"]), a["value"]
    if dtype.is_integer and type(value) is not int:
        fail(f"{value!r} is not representable in {dtype.value}")
    if dtype.is_integer:
        bits = dtype.bits - dtype.is_signed
        if not (-(1 << bits) if dtype.is_signed else 0) <= value < 1 << bits:
            fail(f"{value!r} is not representable in {dtype.value}")
    if dtype is DType.BOOL and type(value) is not bool:
        fail(f"{value!r} is not representable in bool")
    return tuple(a["shape"]), dtype
