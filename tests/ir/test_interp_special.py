"""NaN, infinities, signed zeros; scalar, empty and broadcast shapes: the interpreter against PyTorch on random operands."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from xpuruntime.ir import interp
from xpuruntime.testing.conformance.opinfo import TOLERANCE, disagreement, to_numpy
from xpuruntime.types import DType

torch = pytest.importorskip("torch")
F = torch.nn.functional

SPECIAL = st.sampled_from(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -2.5, 2.0, 3.0, 1e-3, 1e3]
)
FLOATS = SPECIAL | st.floats(-100, 100, width=16)
INTS = st.integers(-9, 9)
DTYPES = ("float32", "float64", "bfloat16", "int32", "int64", "int8", "uint8")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def arrays(
    shape: tuple[int, ...], dtype: str, elements: st.SearchStrategy[Any] | None = None
) -> st.SearchStrategy[Any]:
    """Arrays of a torch dtype; drawn wide, so that each library gets the same values."""
    values = elements if elements is not None else INTS if "int" in dtype else FLOATS
    if dtype == "bool":
        return hnp.arrays(np.bool_, shape)
    if "int" in dtype:
        return hnp.arrays(np.int64, shape, elements=values).map(lambda a: a.astype(dtype))
    drawn = hnp.arrays(np.float64, shape, elements=values)
    return drawn.map(lambda a: a.astype(np.float32).astype(DType(dtype).numpy))


def tensor(x: np.ndarray[Any, Any]) -> Any:
    if x.dtype == DType.BFLOAT16.numpy:
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(x))


def agree(
    op: str,
    reference: Callable[..., Any],
    *operands: Any,
    tolerance: tuple[float, float] | None = None,
    **attrs: Any,
) -> None:
    """Both give the same, or both refuse."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            want = reference(*(tensor(o) if isinstance(o, np.ndarray) else o for o in operands))
        except (
            RuntimeError,
            NotImplementedError,
            IndexError,
        ):  # PyTorch has no kernel for the type, or no answer
            return
    want = [want] if isinstance(want, torch.Tensor) else list(want)
    got = interp.apply(op, *operands, outputs=len(want), **attrs)
    for mine, theirs in zip(got, want, strict=True):
        text = disagreement(mine, to_numpy(theirs), tolerance)
        assert not text, f"{op} {attrs} {text}: {operands}"


UNARY: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(torch, name)
        for name in ["abs", "neg", "sign", "ceil", "floor", "trunc", "round", "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sin", "sinh", "sqrt", "tan", "isnan", "isinf", "logical_not", "bitwise_not", "relu", "sigmoid", "tanh"]
    },
    **{name: getattr(F, name) for name in ["gelu", "silu", "elu", "leaky_relu", "hardsigmoid", "hardswish", "mish", "softplus", "softsign"]},
}  # fmt: skip
ATTRS = {"softplus": {"threshold": 20.0}}


def gelu_tolerance(x: np.ndarray[Any, Any]) -> tuple[float, float] | None:
    """PyTorch's own error at these numbers, which cancellation makes large below zero.

    PyTorch computes x / 2 * (1 + erf(x / sqrt(2))): an error of erf becomes one of |x| / 2 times that, however small the result is.
    Below -6 erf is -1 in float32 and the error is the result itself, under 6e-9. ATen and oneDNN compute erf of float32, and of the half
    types in float32, by Abramowitz and Stegun 7.1.26, which is off by 1.5e-7, and by eight roundings of numbers up to 1; float64 by roundings.
    """
    if str(x.dtype) not in TOLERANCE or x.size == 0:
        return None
    double = x.dtype == np.float64
    of_erf = 8 * 2.0**-53 if double else 1.5e-7 + 8 * 2.0**-24
    far = np.abs(x.astype(np.float64)).max(initial=0.0, where=~np.isnan(x.astype(np.float64)))
    return TOLERANCE[str(x.dtype)], min(far, 9.0 if double else 6.0) / 2 * of_erf


def test_gelu_may_be_off_by_as_much_as_erf_lets_it() -> None:
    """An array without large results: where all are small, a share of the largest is no bound."""
    for value in (-2.5, -3.0, -3.5, -4.0, -5.0, -5.5, -6.0, -8.0):
        for dtype in ("float32", "float64", "bfloat16"):
            x = np.full(2, value, DType(dtype).numpy)
            agree("gelu", F.gelu, x, tolerance=gelu_tolerance(x))
    assert disagreement(
        np.full(2, -0.00405, "f"), np.full(2, -0.00406, "f"), gelu_tolerance(np.full(2, -3.0, "f"))
    )


@pytest.mark.parametrize("op", UNARY)
@settings(max_examples=25)
@given(data=st.data())
def test_one_operand(op: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from((*DTYPES, "bool")))
    x = data.draw(arrays(data.draw(SHAPES), dtype))
    if op == "softsign" and x.dtype.kind in "iu":
        return  # PyTorch adds the one in the integers' own type, where 255 + 1 is 0
    if op == "gelu" and np.isinf(x.astype(np.float64)).any():
        return  # NaN by oneDNN, which PyTorch takes for some shapes and types
    tolerance = gelu_tolerance(x) if op == "gelu" else None
    agree(op, UNARY[op], x, tolerance=tolerance, **ATTRS.get(op, {}))


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(torch, name)
    for name in [
        "add",
        "sub",
        "mul",
        "div",
        "pow",
        "maximum",
        "minimum",
        "fmod",
        "remainder",
        "atan2",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "logical_and",
        "logical_or",
        "logical_xor",
        "bitwise_and",
        "bitwise_or",
        "bitwise_xor",
        "bitwise_left_shift",
        "bitwise_right_shift",
    ]
}


@pytest.mark.parametrize("op", BINARY)
@settings(max_examples=25)
@given(data=st.data())
def test_two_operands(op: str, data: st.DataObject) -> None:
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3)).input_shapes
    shift = st.integers(0, 7) if "shift" in op else None
    a, b = (
        data.draw(arrays(shape, data.draw(st.sampled_from((*DTYPES, "bool"))), elements))
        for shape, elements in zip(shapes, (None, shift), strict=True)
    )
    if "shift" in op and "int" not in str(b.dtype):
        return
    agree(op, BINARY[op], a, b)


@pytest.mark.parametrize("op", BINARY)
@settings(max_examples=20)
@given(data=st.data())
def test_a_number_as_an_operand(op: str, data: st.DataObject) -> None:
    """A number next to float16 or bfloat16 is not rounded to it in arithmetic, but is in comparisons.

    PyTorch's kernels do round it where the tensor has no dims itself, so those are left out. Its sums, differences and powers on processors
    round it always, which shows where values cancel or grow, so their numbers need no rounding.
    """
    if op in ("maximum", "minimum", "atan2", "logical_and", "logical_or", "logical_xor") or "shift" in op:
        return  # PyTorch takes no number there
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
    x = data.draw(arrays(shape, data.draw(st.sampled_from(DTYPES))))
    number = data.draw(
        INTS | st.floats(-10, 10, width=32, allow_subnormal=False)
    )  # vectors of PyTorch divide by 0 then
    if op in ("add", "sub", "pow") and isinstance(number, float):
        number = float(DType.BFLOAT16.numpy.type(number))
    agree(op, BINARY[op], x, number)


@settings(max_examples=60)
@given(data=st.data())
def test_rounded_division(data: st.DataObject) -> None:
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=3)).input_shapes
    mode = data.draw(st.sampled_from(["trunc", "floor"]))
    dtype = data.draw(st.sampled_from(DTYPES))
    a, b = (data.draw(arrays(shape, dtype)) for shape in shapes)
    if "int" in dtype and not b.all():
        return
    agree("div", lambda x, y: torch.div(x, y, rounding_mode=mode), a, b, rounding_mode=mode)


@settings(max_examples=60)
@given(data=st.data())
def test_where_and_clamp(data: st.DataObject) -> None:
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, max_side=3)).input_shapes
    dtypes = [data.draw(st.sampled_from(DTYPES)) for _ in range(3)]
    a, b = (data.draw(arrays(s, d)) for s, d in zip(shapes[1:], dtypes[1:], strict=True))
    agree("where", torch.where, data.draw(arrays(shapes[0], "bool")), a, b)
    agree("clamp", torch.clamp, data.draw(arrays(shapes[0], dtypes[0])), a, b)


@settings(max_examples=60)
@given(data=st.data())
def test_casts(data: st.DataObject) -> None:
    x = data.draw(
        arrays(
            data.draw(SHAPES), data.draw(st.sampled_from((*DTYPES, "bool", "float16"))), st.integers(0, 100)
        )
    )
    dtype = data.draw(st.sampled_from((*DTYPES, "bool", "float16")))
    agree("cast", lambda t: t.to(getattr(torch, dtype)), x, dtype=dtype)


REDUCE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "sum": (torch.sum, {}),
    "mean": (torch.mean, {}),
    "amax": (torch.amax, {}),
    "amin": (torch.amin, {}),
    "any": (torch.any, {}),
    "all": (torch.all, {}),
    "var": (lambda x, dim, keepdim: torch.var(x, dim, correction=1, keepdim=keepdim), {}),
    "logsumexp": (torch.logsumexp, {}),
}


@pytest.mark.parametrize("op", REDUCE)
@settings(max_examples=30)
@given(data=st.data())
def test_reductions(op: str, data: st.DataObject) -> None:
    x = data.draw(arrays(data.draw(SHAPES), data.draw(st.sampled_from((*DTYPES, "bool")))))
    if x.dtype == np.uint8 and op in ("any", "all"):
        return  # PyTorch answers in uint8
    axes = data.draw(st.sets(st.integers(0, max(x.ndim - 1, 0)), min_size=1).map(sorted))
    keepdim = data.draw(st.booleans())
    function, attrs = REDUCE[op]
    agree(op, lambda t: function(t, axes, keepdim=keepdim), x, dim=axes, keepdim=keepdim, **attrs)


ALONG: dict[str, Callable[[Any, int], Any]] = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "argmax": torch.argmax,
    "argmin": torch.argmin,
    "max": torch.max,
    "min": torch.min,
    "cumsum": torch.cumsum,
    "sort": lambda x, dim: torch.sort(x, dim=dim, stable=True),
}


@pytest.mark.parametrize("op", ALONG)
@settings(max_examples=30)
@given(data=st.data())
def test_along_a_dim(op: str, data: st.DataObject) -> None:
    x = data.draw(arrays(data.draw(SHAPES), data.draw(st.sampled_from(DTYPES))))
    if op.endswith("softmax") and x.dtype.kind in "iu":
        return  # a frontend's cast: PyTorch has no softmax of integers
    dim = data.draw(st.integers(0, max(x.ndim - 1, 0)))
    agree(op, lambda t: ALONG[op](t, dim), x, dim=dim)


def test_nothing_reduces_to_what_lies_below_all() -> None:
    """PyTorch refuses; ONNX says what the largest of nothing is."""
    for dtype, low, high in ((np.float32, -np.inf, np.inf), (np.int8, -128, 127), (np.bool_, False, True)):
        x = np.zeros((2, 0), dtype)
        (most,) = interp.apply("amax", x, dim=1)
        (least,) = interp.apply("amin", x, dim=1)
        assert most.tolist() == [low, low]
        assert least.tolist() == [high, high]


def test_of_equal_values_the_last() -> None:
    x = np.array([[1, 3, 3, 0]], np.float32)
    (first,) = interp.apply("argmax", x, dim=1)
    (last,) = interp.apply("argmax", x, dim=1, last=True)
    assert (first.tolist(), last.tolist()) == ([1], [2])
    (flat,) = interp.apply("argmax", x, keepdim=True)
    assert flat.shape == (1, 1)


def test_running_forms() -> None:
    x = np.array([1, 2, 3], np.int32)
    for exclusive, reverse, want in (
        (True, False, [0, 1, 3]),
        (False, True, [6, 5, 3]),
        (True, True, [5, 3, 0]),
    ):
        (got,) = interp.apply("cumsum", x, dim=0, exclusive=exclusive, reverse=reverse, dtype="int32")
        assert got.tolist() == want
    (product,) = interp.apply("cumprod", x, dim=0, exclusive=True)
    assert product.tolist() == [1, 1, 2]
