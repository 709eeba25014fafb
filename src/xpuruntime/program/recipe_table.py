"""The ops of weight recipes: names, attributes, and the shape and dtype of each result.

A weight recipe is a list of steps that compute one weight buffer of a program from the model's arrays when the weights are loaded. Each step
is an op of this table, its inputs and its attributes. The compiler writes recipes, the program reader checks them against the table, and
``runtime.weights.recipes`` has one NumPy function per op. A file with any other op is rejected.

A step's result is rounded once, to the step's dtype, as in the interpreter. A computation in float64 needs explicit casts.

A step's inputs are names of weights (a leading ``%`` is doubled), ``%in`` (the weight that the recipe names as its source), or ``%N`` (the
result of step N).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..types import DType
from . import recipe_results as to
from .recipe_results import Infer

__all__ = ["KINDS", "RECIPE_OPS", "RecipeOp"]


@dataclass(frozen=True, slots=True)
class RecipeOp:
    """One op of the table.

    inputs: minimum and maximum number of inputs.
    attrs:  name of each attribute -> its kind, a key of ``KINDS``. All are required.
    infer:  function of the inputs' shapes and dtypes and the attributes. Returns shape and dtype of the result, or raises ValueError with the
            reason why the step is invalid.
    doc:    the result in words, for the reference page of program files.
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


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) <= 64 and all(_is_size(v) for v in value)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and value in DType._value2member_map_ and value != "string"


KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "size": ("a non-negative integer", _is_size),
    "sizes": ("a list of non-negative integers", _are_sizes),
    "flag": ("true or false", lambda v: type(v) is bool),
    "dtype": ("the name of a dtype", _is_dtype),
    "dim": ("a dim (from 0), or null", lambda v: v is None or _is_size(v)),
    "name": ("a name", lambda v: isinstance(v, str) and len(v) < 64),
    "number": ("a number", lambda v: type(v) in (bool, float) or _is_int(v)),
}
"""Kinds of attributes: the words of an error message for the valid values, and the check of a value that was read from a file."""


_OPS = (
    RecipeOp("cast", (1, 1), {"dtype": "dtype"}, to.as_dtype, "cast: floats are rounded once, integers wrap"),
    RecipeOp("reshape", (1, 1), {"shape": "sizes"}, to.reshape, "the same elements in row-major order, in another shape"),
    RecipeOp("permute", (1, 1), {"order": "sizes"}, to.permute, "transpose: dims in another order"),
    RecipeOp("pad", (1, 1), {"begin": "sizes", "end": "sizes"}, to.pad, "zeros before and after, per dim"),
    RecipeOp("slice", (1, 1), {"dim": "size", "begin": "size", "end": "size"}, to.sliced, "begin:end of one dim"),
    RecipeOp("concat", (1, 4096), {"dim": "size"}, to.concat, "concatenation along a dim"),
    RecipeOp("stack", (1, 4096), {"dim": "size"}, to.stack, "stacking along a new dim, at position dim"),
    RecipeOp("add", (2, 2), {}, to.broadcast, "sum of two, broadcast"),
    RecipeOp("sub", (2, 2), {}, to.broadcast, "difference of two, broadcast"),
    RecipeOp("mul", (2, 2), {}, to.broadcast, "product of two, broadcast"),
    RecipeOp("div", (2, 2), {}, to.floats(to.broadcast), "quotient of two floats, broadcast"),
    RecipeOp("maximum", (2, 2), {}, to.reals(to.broadcast), "maximum of two, broadcast; NaN propagates"),
    RecipeOp("neg", (1, 1), {}, to.same, "negation"),
    RecipeOp("sqrt", (1, 1), {}, to.floats(to.same), "square root"),
    RecipeOp("rsqrt", (1, 1), {}, to.floats(to.same), "reciprocal of the square root"),
    RecipeOp("reciprocal", (1, 1), {}, to.floats(to.same), "reciprocal"),
    RecipeOp("exp", (1, 1), {}, to.floats(to.same), "exponential"),
    RecipeOp("cos", (1, 1), {}, to.floats(to.same), "cosine of radians"),
    RecipeOp("sin", (1, 1), {}, to.floats(to.same), "sine of radians"),
    RecipeOp("log", (1, 1), {}, to.floats(to.same), "natural logarithm"),
    RecipeOp("tanh", (1, 1), {}, to.floats(to.same), "hyperbolic tangent"),
    RecipeOp("matmul", (2, 2), {}, to.floats(to.product), "product of matrices, summed in float64, broadcast over leading dims"),
    RecipeOp("amax", (1, 1), {"dim": "size", "keepdim": "flag"}, to.floats(to.largest), "maximum over a dim; NaN propagates"),
    RecipeOp("sum", (1, 1), {"dim": "size", "keepdim": "flag"}, to.summed, "sum over a dim, in float64 or with integer wrapping"),
    RecipeOp("expand", (1, 1), {"shape": "sizes"}, to.expand, "broadcast along dims of extent 1 and new dims"),
    RecipeOp("flip", (1, 1), {"dims": "sizes"}, to.flip, "reversal along dims"),
    RecipeOp("take", (2, 2), {"dim": "size"}, to.take, "elements at indices along a dim, as numpy.take; negative indices count from the end"),
    RecipeOp("gather", (2, 2), {"dim": "size"}, to.gather, "for each index, the element at it along a dim, as numpy.take_along_axis"),
    RecipeOp("where", (3, 3), {}, to.where, "the second input where the first is true, else the third, broadcast"),
    RecipeOp("scale_int8", (1, 1), {"dim": "dim"}, to.scales, "max|x| / 127 per index of a dim; 1 where that is 0"),
    RecipeOp("quantize_int8", (1, 1), {"dim": "dim"}, to.quantized, "x / scale_int8, rounded half to even, from -127 to 127"),
    RecipeOp("scale_fp8", (1, 1), {"dim": "dim"}, to.scales, "max|x| / 448 per index of a dim; 1 where that is 0, NaN where a value is not finite"),
    RecipeOp("quantize_fp8", (1, 1), {"dim": "dim"}, to.quantized_fp8, "x / scale_fp8 in float32, as float8_e4m3fn: rounded half to even, at most 448; 0 where the scale is NaN"),
    RecipeOp("groups_int4", (1, 1), {"group": "size"}, to.groups_int4, "per group of the last dim: 4-bit codes, two per byte, then scale and low in little-endian bfloat16; low + scale * code approximates x"),
    RecipeOp("dequantize_blocks", (1, 1), {"blocks": "name"}, to.dequantized_blocks, "float32 values of rows that are stored in blocks of the GGUF format blocks"),
    RecipeOp("groups_of_blocks", (1, 1), {"blocks": "name", "bits": "size", "group": "size", "numbers": "name"}, to.groups_of_blocks, "the values of such rows, exact, as groups of the last dim: codes of 4 bits (0 to 15, two per byte) or 8 (signed), then two numbers: scale and low (float16, float32), or float16 factors of the scale (product)"),
    RecipeOp("arange", (0, 0), {"start": "number", "step": "number", "count": "size", "dtype": "dtype"}, to.arange, "start + i * step, for i in range(count)"),
    RecipeOp("constant", (0, 0), {"value": "number", "dtype": "dtype", "shape": "sizes"}, to.constant, "a constant value"),
)  # fmt: skip

RECIPE_OPS: Mapping[str, RecipeOp] = {op.name: op for op in _OPS}
"""Every op by name."""
