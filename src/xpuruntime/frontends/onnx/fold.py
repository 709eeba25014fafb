"""Constant folding of shape arithmetic at import.

ONNX models compute shapes with ordinary ops (Shape, Gather, Mul, Concat, Reshape). If every operand is known, so is the
result: numbers, or symbolic dims. Arrays hold numbers, or objects of which some are dims. Large arrays, such as weights,
are not folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ... import casts
from ...protocols import Array
from ...types import Dim, DimLike, DType

__all__ = ["FOLDS", "MAX_FOLDED_ELEMENTS", "UnknownContent", "fold"]

MAX_FOLDED_ELEMENTS = 1024
"""Maximum elements of a folded array."""

_BROADCAST = frozenset(
    [
        "Add",
        "And",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Or",
        "Pow",
        "Sub",
        "Where",
    ]
)
Attributes: TypeAlias = Mapping[str, Any]
Fold: TypeAlias = "Callable[[Sequence[Any], Attributes], Array | list[Array]]"


class UnknownContent(Exception):
    """The result depends on the values of symbols."""


def fold(op: str, operands: Sequence[Array | None], attrs: Attributes) -> list[Array] | None:
    """Return the op's results, or None if they are known only at run time."""
    rule = FOLDS.get(op)
    if rule is None or any(a is not None and a.size > MAX_FOLDED_ELEMENTS for a in operands):
        return None
    try:
        if _result_elements(op, [a for a in operands if a is not None], attrs) > MAX_FOLDED_ELEMENTS:
            return None
        with np.errstate(all="ignore"):
            outputs = rule(operands, attrs)
        results = [_normalized(np.asarray(r)) for r in (outputs if isinstance(outputs, list) else [outputs])]
    except (UnknownContent, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None
    kinds = "biufOV" if op == "Cast" else "biufO"  # V: bfloat16, with which no rule computes
    return results if all(r.size <= MAX_FOLDED_ELEMENTS and r.dtype.kind in kinds for r in results) else None


def _result_elements(op: str, arrays: Sequence[Array], attrs: Attributes) -> int:
    """Return the number of result elements before it is computed, for ops whose result can be larger than its operands."""
    if op == "Concat":
        return sum(a.size for a in arrays)
    if op == "Gather":
        return int(arrays[0].size // max(arrays[0].shape[attrs.get("axis", 0)], 1) * arrays[1].size)
    shapes = [a.shape for a in arrays] if op in _BROADCAST else []
    if op == "Expand":
        _plain(arrays[1])
        shapes = [arrays[0].shape, tuple(int(d) for d in arrays[1])]
    return math.prod(np.broadcast_shapes(*shapes))


def _normalized(array: Array) -> Array:
    """Return an object array of integers as int64. Raise UnknownContent for one with anything but integers and dims."""
    if array.dtype != object:
        return array
    flat = array.ravel().tolist()
    if not all(
        isinstance(v, Dim) or (isinstance(v, int | np.integer) and int(v).bit_length() < 64) for v in flat
    ):
        raise UnknownContent
    return array if any(isinstance(v, Dim) for v in flat) else array.astype(np.int64)


def _symbolic(*arrays: Any) -> bool:
    return any(isinstance(a, np.ndarray) and a.dtype.kind == "O" for a in arrays)


def _plain(*arrays: Any) -> None:
    if _symbolic(*arrays):
        raise UnknownContent


def equal(a: DimLike, b: DimLike) -> bool:
    """Return whether two dims are equal for all non-negative symbols. Raise UnknownContent if that depends on them."""
    difference = a - b
    if isinstance(difference, int):
        return difference == 0
    for symbol, number in ((a, b), (b, a)):
        if (
            isinstance(number, int)
            and number < 0
            and isinstance(symbol, Dim)
            and len(symbol.symbols) == 1
            and str(symbol) in symbol.symbols
        ):
            return False
    raise UnknownContent


def _each(function: Callable[..., Any], *arrays: Any, kind: Any = object) -> Array:
    result: Array = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return np.asarray(result, dtype=kind)


def _quotient(a: Any, b: Any) -> Any:
    if isinstance(b, int) and b < 1:
        raise UnknownContent
    return a // b


def _div(x: Sequence[Any], _: Attributes) -> Array:
    a, b = x
    if _symbolic(a, b):
        return _each(_quotient, a, b)
    if a.dtype.kind == "f":
        return np.asarray(a / b)
    return np.asarray(np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


def _mod(x: Sequence[Any], attrs: Attributes) -> Array:
    _plain(*x)
    return np.asarray(np.fmod(*x) if attrs.get("fmod") else np.mod(*x))


def _equal(x: Sequence[Any], _: Attributes) -> Array:
    return _each(equal, *x, kind=bool) if _symbolic(*x) else np.asarray(x[0] == x[1])


def _numeric(function: Callable[..., Any]) -> Fold:
    def rule(x: Sequence[Any], _: Attributes) -> Array:
        _plain(*x)
        return np.asarray(function(*x))

    return rule


def _binary(function: Callable[[Any, Any], Any]) -> Fold:
    return lambda x, _: np.asarray(function(x[0], x[1]))


def _cast(x: Sequence[Any], attrs: Attributes) -> Array:
    to: DType = attrs["to"]
    if _symbolic(x[0]):
        if not to.is_integer or to.bits < 32:
            raise UnknownContent
        return np.asarray(x[0])
    if to is DType.STRING or (
        to.bits <= 8 and to.numpy.kind == "V"
    ):  # attributes decide how narrow floats round
        raise UnknownContent
    return casts.to(np.asarray(x[0]), to)


def _slice(x: Sequence[Any], attrs: Attributes) -> Array:
    data = x[0]
    _plain(*(v for v in x[1:] if v is not None))
    if "starts" in attrs:
        starts, ends, axes, steps = attrs["starts"], attrs["ends"], attrs.get("axes"), None
    else:
        starts, ends, axes, steps = [
            v.tolist() if v is not None else None for v in (*x[1:], *[None] * (5 - len(x)))
        ]
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axes[i] if axes is not None else i
        step = steps[i] if steps is not None else 1
        indices = range(*slice(start, end, step).indices(data.shape[axis]))
        data = np.take(data, list(indices), axis=axis)
    return np.asarray(data)


def _axes(x: Sequence[Any], attrs: Attributes) -> list[int] | None:
    if "axes" in attrs:
        return list(attrs["axes"])
    return [int(v) for v in x[1]] if len(x) > 1 and x[1] is not None else None


def _squeeze(x: Sequence[Any], attrs: Attributes) -> Array:
    axes = _axes(x, attrs)
    return np.asarray(np.squeeze(x[0], axis=None if axes is None else tuple(axes)))


def _unsqueeze(x: Sequence[Any], attrs: Attributes) -> Array:
    return np.asarray(np.expand_dims(x[0], tuple(_axes(x, attrs) or ())))


def _reshape(x: Sequence[Any], attrs: Attributes) -> Array:
    _plain(x[1])
    shape = [x[0].shape[i] if d == 0 and not attrs.get("allowzero") else int(d) for i, d in enumerate(x[1])]
    return np.asarray(x[0].reshape(shape))


def _gather(x: Sequence[Any], attrs: Attributes) -> Array:
    _plain(x[1])
    return np.asarray(np.take(x[0], x[1].astype(np.int64), axis=attrs.get("axis", 0)))


def _split(x: Sequence[Any], attrs: Attributes) -> list[Array]:
    sizes, axis = attrs.get("split"), attrs.get("axis", 0)
    if sizes is None and len(x) > 1 and x[1] is not None:
        sizes = x[1].tolist()
    if sizes is None and "num_outputs" in attrs:
        size, parts = x[0].shape[axis], attrs["num_outputs"]
        part_size = -(-size // parts)
        sizes = [part_size] * (parts - 1) + [size - part_size * (parts - 1)]
    if sizes is None or min(sizes) < 0:
        raise UnknownContent
    return list(np.split(x[0], np.cumsum(sizes)[:-1], axis=axis))


def _reduce(function: Callable[[Any, Any], Any]) -> Fold:
    """Return the rule of a reduction over all axes, the only kind in shape arithmetic."""

    def rule(x: Sequence[Any], attrs: Attributes) -> Array:
        if x[0].ndim != 1 or not x[0].size or attrs.get("noop_with_empty_axes"):
            raise UnknownContent
        value = reduce(function, x[0].tolist())
        dtype = object if isinstance(value, Dim) else x[0].dtype
        out = np.empty((1,) if attrs.get("keepdims", 1) else (), dtype=dtype)
        out[...] = value
        return out

    return rule


def _range(x: Sequence[Any], _: Attributes) -> Array:
    _plain(*x)
    start, end, step = (v.reshape(-1)[0] for v in x)
    if abs((end - start) / step) > MAX_FOLDED_ELEMENTS:
        raise UnknownContent
    return np.arange(start, end, step, dtype=x[0].dtype)


def _expand(x: Sequence[Any], _: Attributes) -> Array:
    _plain(x[1])
    return (
        np.asarray(x[0] * np.ones([int(d) for d in x[1]], x[0].dtype))
        if x[0].dtype.kind in "iuf"
        else _stretch(x)
    )


def _stretch(x: Sequence[Any]) -> Array:
    return np.broadcast_to(x[0], np.broadcast_shapes(x[0].shape, tuple(int(d) for d in x[1])))


def _power(base: Array, exponent: Array) -> Array:
    """Return the power in the type of the base, which exporters take roots of sizes with."""
    if base.dtype.kind == "f":
        return np.asarray(np.power(base.astype(np.float64), exponent)).astype(base.dtype)
    return np.asarray(np.power(base, exponent)).astype(base.dtype)


FOLDS: Mapping[str, Fold] = MappingProxyType(
    {
        "Abs": _numeric(np.abs),
        "Add": _binary(lambda a, b: a + b),
        "And": _numeric(np.logical_and),
        "Cast": _cast,
        "Ceil": _numeric(np.ceil),
        "Concat": lambda x, attrs: np.concatenate(list(x), axis=attrs.get("axis", 1)),
        "Div": _div,
        "Equal": _equal,
        "Expand": _expand,
        "Floor": _numeric(np.floor),
        "Gather": _gather,
        "Greater": _numeric(np.greater),
        "GreaterOrEqual": _numeric(np.greater_equal),
        "Identity": lambda x, _: np.asarray(x[0]),
        "Less": _numeric(np.less),
        "LessOrEqual": _numeric(np.less_equal),
        "Max": lambda x, _: _numeric(lambda *v: reduce(np.maximum, v))(x, {}),
        "Min": lambda x, _: _numeric(lambda *v: reduce(np.minimum, v))(x, {}),
        "Mod": _mod,
        "Mul": _binary(lambda a, b: a * b),
        "Neg": _numeric(np.negative),
        "Not": _numeric(np.logical_not),
        "Or": _numeric(np.logical_or),
        "Pow": _numeric(_power),
        "Range": _range,
        "ReduceProd": _reduce(lambda a, b: a * b),
        "ReduceSum": _reduce(lambda a, b: a + b),
        "Relu": _numeric(lambda v: np.maximum(v, v.dtype.type(0))),
        "Reshape": _reshape,
        "Round": _numeric(np.rint),
        "Sign": _numeric(np.sign),
        "Slice": _slice,
        "Split": _split,
        "Sqrt": _numeric(np.sqrt),
        "Squeeze": _squeeze,
        "Sub": _binary(lambda a, b: a - b),
        "Transpose": lambda x, attrs: np.transpose(x[0], attrs.get("perm")),
        "Unsqueeze": _unsqueeze,
        "Where": lambda x, _: np.asarray(np.where(x[0].astype(bool), x[1], x[2])),
    }
)
"""ONNX op -> its folding rule."""
