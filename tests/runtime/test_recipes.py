"""Recipes: each step against NumPy written out, arithmetic against the interpreter bit for bit, and what a wrong recipe says."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from xpuruntime import ir
from xpuruntime.errors import FormatError, InputError
from xpuruntime.ir.interp import run
from xpuruntime.program.program import RecipeStep, WeightTransformRecipe
from xpuruntime.program.recipe_check import infer_recipe, resolve, weight_input
from xpuruntime.program.recipe_table import RECIPE_OPS
from xpuruntime.runtime.memory.layouts import flat_bytes, from_memory, to_memory
from xpuruntime.runtime.weights.recipes import STEPS, recipe_bytes, run_recipe
from xpuruntime.types import DType, Layout, TensorSpec

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4, 3, 2)).astype(np.float32)
Y = RNG.standard_normal((3, 1)).astype(np.float32)


def spec_of(array: np.ndarray, layout: Layout | None = None) -> TensorSpec:
    return TensorSpec(array.shape, DType.of(array.dtype), layout=layout)


def recipe(spec: TensorSpec | str, *steps: RecipeStep, source: str = "") -> WeightTransformRecipe:
    return WeightTransformRecipe(
        "buffer", spec if isinstance(spec, TensorSpec) else TensorSpec.parse(spec), source, steps
    )


def one(op: str, *arrays: np.ndarray, spec: str, **attrs: object) -> np.ndarray:
    names = [f"w{i}" for i in range(len(arrays))]
    made = recipe(spec, RecipeStep(op, tuple(names), attrs))
    return run_recipe(made, dict(zip(names, arrays, strict=True)))


MOVES = {
    "cast": ({"dtype": "int32"}, "int32[4, 3, 2]", X.astype(np.int32)),
    "reshape": ({"shape": [6, 4]}, "float32[6, 4]", X.reshape(6, 4)),
    "permute": ({"order": [2, 0, 1]}, "float32[2, 4, 3]", X.transpose(2, 0, 1)),
    "pad": ({"begin": [0, 1, 0], "end": [0, 0, 2]}, "float32[4, 4, 4]", np.pad(X, ((0, 0), (1, 0), (0, 2)))),
    "slice": ({"dim": 1, "begin": 1, "end": 3}, "float32[4, 2, 2]", X[:, 1:3]),
    "neg": ({}, "float32[4, 3, 2]", -X),
    "sum": ({"dim": 0, "keepdim": True}, "float32[1, 3, 2]", X.astype(np.float64).sum(0, keepdims=True).astype(np.float32)),
    "amax": ({"dim": 1, "keepdim": False}, "float32[4, 2]", X.max(1)),
    "expand": ({"shape": [5, 4, 3, 2]}, "float32[5, 4, 3, 2]", np.broadcast_to(X, (5, 4, 3, 2))),
    "flip": ({"dims": [0, 2]}, "float32[4, 3, 2]", X[::-1, :, ::-1]),
}  # fmt: skip


PLACES = np.array([[2, -1], [0, 2]])
LOOKUPS = {
    "take": ([X, PLACES], {"dim": 1}, np.take(X, [[2, 2], [0, 2]], axis=1)),
    "gather": ([X, PLACES[:, :, None]], {"dim": 1}, np.take_along_axis(X[:2, :, :1], np.array([[[2], [2]], [[0], [2]]]), 1)),
    "where": ([X > 0, X, Y], {}, np.where(X > 0, X, Y)),
}  # fmt: skip


@pytest.mark.parametrize("op", LOOKUPS)
def test_a_step_that_looks_up(op: str) -> None:
    arrays, attrs, expected = LOOKUPS[op]
    made = one(op, *arrays, spec=str(spec_of(expected)), **attrs)
    assert made.dtype == expected.dtype
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize(
    ("op", "arrays", "attrs", "spec", "what"),
    [
        ("take", [X, np.array([3])], {"dim": 1}, "float32[4, 1, 2]", "reads an index outside 0 to 2; got 3 to 3"),
        ("gather", [X, np.full((4, 1, 2), -4)], {"dim": 1}, "float32[4, 1, 2]", "reads an index outside 0 to 2"),
        ("take", [X, X], {"dim": 1}, "float32[4, 1, 2]", "an index must be an integer, got float32"),
        ("take", [X, np.array([0])], {"dim": 3}, "float32[4, 1, 2]", r"dim 3 of \[4, 3, 2\]"),
        ("gather", [X, np.zeros((5, 1, 2), int)], {"dim": 1}, "float32[5, 1, 2]", r"an index of shape \[5, 1, 2\] does not fit \[4, 3, 2\]"),
        ("where", [X, X, X], {}, "float32[4, 3, 2]", "needs a bool condition, got float32"),
        ("where", [X > 0, X, X.astype(int)], {}, "float32[4, 3, 2]", "inputs have several dtypes"),
        ("where", [X > 0, X, X[:, :2]], {}, "float32[4, 3, 2]", "do not broadcast"),
    ],
)  # fmt: skip
def test_lookups_that_do_not_fit(
    op: str, arrays: list[Any], attrs: dict[str, Any], spec: str, what: str
) -> None:
    with pytest.raises((FormatError, InputError), match=what):
        one(op, *arrays, spec=spec, **attrs)


@pytest.mark.parametrize("op", MOVES)
def test_a_step_over_one_weight(op: str) -> None:
    attrs, spec, expected = MOVES[op]
    made = one(op, X, spec=spec, **attrs)
    assert made.dtype == expected.dtype
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_product_of_stacked_matrices_is_rounded_once(dtype: str) -> None:
    a, b = (RNG.standard_normal(s).astype(DType(dtype).numpy) for s in ((2, 1, 3, 7), (5, 7, 4)))
    made = one("matmul", a, b, spec=f"{dtype}[2, 5, 3, 4]")
    exact = (a.astype(np.float64) @ b.astype(np.float64)).astype(made.dtype)
    assert made.tobytes() == exact.tobytes()


@pytest.mark.parametrize(
    ("op", "arrays", "attrs", "spec", "what"),
    [
        ("matmul", [X, Y], {}, "float32[4, 3, 1]", "cannot be multiplied as matrices"),
        ("matmul", [X, X[0, 0]], {}, "float32[4, 3]", "cannot be multiplied as matrices"),
        ("matmul", [X[:2], np.ones((3, 2, 1), np.float32)], {}, "float32[2, 3, 1]", "do not broadcast"),
        ("matmul", [X.astype(int), X.astype(int)[0].T], {}, "int64[4, 3, 3]", "needs floats, got int64"),
        ("amax", [X[:0]], {"dim": 0, "keepdim": True}, "float32[1, 3, 2]", "has no maximum"),
        ("amax", [X], {"dim": 3, "keepdim": True}, "float32[4, 3, 2]", r"dim 3 of \[4, 3, 2\]"),
    ],
)  # fmt: skip
def test_products_and_maxima_that_do_not_fit(
    op: str, arrays: list[Any], attrs: dict[str, Any], spec: str, what: str
) -> None:
    with pytest.raises((FormatError, InputError), match=what):
        one(op, *arrays, spec=spec, **attrs)


def test_concat_stack_and_constant() -> None:
    np.testing.assert_array_equal(
        one("concat", X, X[:, :1], spec="float32[4, 4, 2]", dim=1), np.concatenate([X, X[:, :1]], 1)
    )
    np.testing.assert_array_equal(one("stack", X, X, spec="float32[4, 3, 2, 2]", dim=3), np.stack([X, X], 3))
    assert (
        one("constant", spec="bfloat16[2, 2]", value=0.1, dtype="bfloat16", shape=[2, 2]).tolist()
        == [[ml_dtypes.bfloat16(0.1)] * 2] * 2
    )
    big = one("constant", spec="uint64[1]", value=2**63 - 1, dtype="uint64", shape=[1])
    assert big.tolist() == [2**63 - 1]


FLOATS = ("float16", "bfloat16", "float32", "float64")
BINARY = ("add", "sub", "mul", "div", "maximum")
UNARY = ("neg", "sqrt", "rsqrt", "reciprocal", "exp", "log", "tanh")


def interpreted(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    b = ir.GraphBuilder("g")
    values = [b.input(f"w{i}", spec_of(a)) for i, a in enumerate(arrays)]
    b.output("y", getattr(b, op)(*values))
    return run(b.build(), {f"w{i}": a for i, a in enumerate(arrays)})["y"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", BINARY + UNARY)
def test_arithmetic_is_the_interpreter_s_bit_for_bit(op: str, dtype: str) -> None:
    of = DType(dtype).numpy
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-5, 3.0, 65504.0])
    x = np.concatenate([special, RNG.standard_normal(2000) * np.exp(RNG.uniform(-9, 9, 2000))]).astype(of)
    arrays = [x, np.roll(x, 3)] if op in BINARY else [x]
    with np.errstate(all="ignore"):
        expected = interpreted({"maximum": "maximum"}.get(op, op), arrays)
    made = one(op, *arrays, spec=str(spec_of(x)))
    assert made.dtype == expected.dtype
    nan = np.isnan(expected.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(made.astype(np.float64)), nan)
    assert made[~nan].tobytes() == expected[~nan].tobytes()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "int4"])
def test_integers_wrap(dtype: str) -> None:
    of = DType(dtype)
    x = RNG.integers(-8, 8, 64).astype(np.int64)
    x = (x if of.is_signed else np.abs(x)).astype(of.numpy)
    y = np.roll(x, 1)
    for op, exact in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
        made = one(op, x, y, spec=f"{dtype}[64]")
        whole = exact(x.astype(np.int64), y.astype(np.int64))
        bits = of.bits
        wrapped = (
            (whole + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
            if of.is_signed and bits < 64
            else whole
        )
        expected = wrapped.astype(np.int8 if bits < 8 else of.numpy).astype(of.numpy)
        np.testing.assert_array_equal(made, to_memory(expected, TensorSpec((64,), of)))


def test_a_batch_norm_fold_is_within_two_units_in_the_last_place() -> None:
    w = RNG.standard_normal((64, 32, 3, 3)).astype(np.float32)
    gamma, var = RNG.uniform(0.5, 2, 64).astype(np.float32), RNG.uniform(0.1, 3, 64).astype(np.float32)
    steps = (
        RecipeStep("constant", (), {"value": 1e-5, "dtype": "float32", "shape": []}),
        RecipeStep("add", ("var", "%0")),
        RecipeStep("rsqrt", ("%1",)),
        RecipeStep("mul", ("gamma", "%2")),
        RecipeStep("reshape", ("%3",), {"shape": [64, 1, 1, 1]}),
        RecipeStep("mul", ("%in", "%4")),
    )
    made = run_recipe(recipe(spec_of(w), *steps, source="w"), {"w": w, "gamma": gamma, "var": var})
    exact = w.astype(np.float64) * (gamma / np.sqrt(var.astype(np.float64) + 1e-5)).reshape(64, 1, 1, 1)
    ulps = np.abs(made - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert 0.5 < ulps.max() < 2.5


def test_int8_codes_and_scales_belong_together() -> None:
    w = RNG.standard_normal((5, 7)).astype(np.float32)
    w[2] = 0
    scales = one("scale_int8", w, spec="float32[5]", dim=0)
    codes = one("quantize_int8", w, spec="int8[5, 7]", dim=0)
    np.testing.assert_allclose(codes * scales[:, None], w, atol=float(np.abs(w).max()) / 127 / 2 * 1.001)
    assert np.abs(codes).max(1).tolist() == [127, 127, 0, 127, 127]
    assert scales[2] == 1
    assert one("quantize_int8", w, spec="int8[5, 7]", dim=None).shape == (5, 7)
    assert one("scale_int8", w, spec="float32[]", dim=None) == np.float32(np.abs(w).max() / 127)


LAYOUTS = [
    None,
    Layout((0, 2, 3, 1), (2, 8, 3, 5)),
    Layout((0, 2, 3, 1), (2, 6, 3, 5)),
    Layout((3, 2, 1, 0), (4, 6, 3, 5)),
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "float4_e2m1fn", "uint2", "bool"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_and_padding_are_applied_and_undone(layout: Layout | None, dtype: str) -> None:
    array = RNG.integers(0, 2, (2, 6, 3, 5)).astype(np.int8).astype(DType(dtype).numpy)
    spec = spec_of(array, layout)
    made = run_recipe(recipe(spec, source="w"), {"w": array})
    raw = np.ascontiguousarray(made)
    assert raw.nbytes == recipe_bytes(recipe(spec)) == spec.size_bytes
    np.testing.assert_array_equal(from_memory(raw, spec), array)
    strides, flat = spec.physical.strides, raw.reshape(-1)
    if spec.dtype.bits >= 8:
        for index in np.ndindex(array.shape):
            assert flat[sum(i * s for i, s in zip(index, strides, strict=True))] == array[index]
        assert np.count_nonzero(flat.astype(np.float32)) == np.count_nonzero(array.astype(np.float32))


def test_a_wrong_size_is_refused() -> None:
    with pytest.raises(InputError, match=r"takes an array float32\[4, 3\]; got float32\[4, 3, 2\]"):
        to_memory(X, TensorSpec((4, 3), DType.FLOAT32))
    with pytest.raises(InputError, match="takes 48 bytes; got 96 bytes"):
        from_memory(X, TensorSpec((4, 3), DType.FLOAT32))


def test_moving_steps_copy_nothing() -> None:
    w = np.zeros((1024, 1024), np.float32)
    w.flags.writeable = False
    steps = (
        RecipeStep("reshape", ("%in",), {"shape": [1024, 64, 16]}),
        RecipeStep("permute", ("%0",), {"order": [1, 0, 2]}),
    )
    made = run_recipe(recipe("float32[64, 1024, 16]", *steps, source="w"), {"w": w})
    assert np.shares_memory(made, w)


def test_a_long_recipe_runs() -> None:
    steps = tuple(RecipeStep("neg", ("%in" if i == 0 else f"%{i - 1}",)) for i in range(2000))
    made = run_recipe(recipe("float32[1]", *steps, source="w"), {"w": X[0, 0, :1]})
    assert made.tolist() == X[0, 0, :1].tolist()


def test_every_row_has_a_function_and_words() -> None:
    assert set(STEPS) == set(RECIPE_OPS)
    assert all(row.doc and row.name == name for name, row in RECIPE_OPS.items())


BAD = [
    ("no_such_op", (), {}, "is not a step of this release"),
    ("neg", (), {}, "takes 1 inputs, got 0"),
    ("neg", ("nowhere",), {}, "reads 'nowhere', which is not a weight"),
    ("neg", ("%0",), {}, "reads the result of step 0, which is not before it"),
    ("neg", ("%x",), {}, "no such reference: '%x'"),
    ("neg", ("%1234567890",), {}, "no such reference: '%1234567890'"),
    ("neg", ("w",), {"extra": 1}, r"takes the attributes \[\], got \['extra'\]"),
    ("cast", ("w",), {"dtype": "float33"}, "dtype must be the name of a dtype, got 'float33'"),
    ("cast", ("w",), {"dtype": "string"}, "dtype must be the name of a dtype"),
    ("reshape", ("w",), {"shape": [5]}, r"\[4, 3, 2\] does not have the element count of \[5\]"),
    ("reshape", ("w",), {"shape": [-1]}, "shape must be a list of non-negative integers"),
    ("reshape", ("w",), {"shape": [True]}, "shape must be a list"),
    ("permute", ("w",), {"order": [0, 1, 1]}, "must name each dim"),
    ("pad", ("w",), {"begin": [0], "end": [0]}, "needs begin and end for each dim"),
    ("pad", ("w",), {"begin": [1 << 40, 0, 0], "end": [0, 0, 0]}, "creates 26388279066720 bytes"),
    ("expand", ("w",), {"shape": [1 << 20, 4, 3, 2]}, "creates 100663296 bytes"),
    ("expand", ("w",), {"shape": [4, 3, 3]}, "does not expand to"),
    ("slice", ("w",), {"dim": 3, "begin": 0, "end": 1}, r"dim 3 of \[4, 3, 2\]"),
    ("slice", ("w",), {"dim": 0, "begin": 3, "end": 2}, "3:2 of dim 0"),
    ("slice", ("w",), {"dim": 0, "begin": 0, "end": 5}, "0:5 of dim 0"),
    ("concat", ("w", "y"), {"dim": 0}, "cannot be concatenated along dim 0"),
    ("stack", ("w", "y"), {"dim": 0}, "cannot be stacked at dim 0"),
    ("stack", ("w", "w"), {"dim": 4}, "cannot be stacked at dim 4"),
    ("maximum", ("c", "c"), {}, "is not defined for complex64"),
    ("add", ("w", "v"), {}, "do not broadcast"),
    ("add", ("w", "i"), {}, "several dtypes"),
    ("add", ("b", "b"), {}, "bool has no arithmetic"),
    ("div", ("i", "i"), {}, "needs floats, got int32"),
    ("sum", ("w",), {"dim": 5, "keepdim": False}, "dim 5"),
    ("flip", ("w",), {"dims": [0, 0]}, "names a dim twice"),
    ("quantize_int8", ("i",), {"dim": 0}, "needs floats"),
    ("constant", (), {"value": 1.5, "dtype": "int8", "shape": []}, "1.5 is not representable in int8"),
    ("constant", (), {"value": 300, "dtype": "uint8", "shape": []}, "300 is not representable in uint8"),
    ("constant", (), {"value": 1, "dtype": "bool", "shape": []}, "1 is not representable in bool"),
    ("constant", (), {"value": "x", "dtype": "int8", "shape": []}, "value must be a number"),
    ("neg", ("w",), {}, r"the steps make float32\[4, 3, 2\], the buffer is float32\[7\]"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "attrs", "says"), BAD)
def test_a_wrong_step_says_what_is_wrong(
    op: str, inputs: tuple[str, ...], attrs: dict[str, object], says: str
) -> None:
    weights = {
        "w": X,
        "y": Y,
        "v": np.zeros(7, np.float32),
        "i": np.zeros(2, np.int32),
        "b": np.zeros(2, bool),
        "c": np.zeros(7, np.complex64),
    }
    bad = recipe("float32[7]", RecipeStep(op, inputs, attrs))
    with pytest.raises(ValueError, match=says):
        infer_recipe(bad, {n: spec_of(a) for n, a in weights.items()})
    with pytest.raises((FormatError, InputError)) as caught:
        run_recipe(bad, weights)
    assert caught.value.who == "weight recipe 'buffer'"


def test_a_weight_that_is_missing_or_of_another_shape() -> None:
    good = recipe("float32[4, 3, 2]", RecipeStep("neg", ("w",)))
    with pytest.raises(
        InputError, match=r"\[weight recipe 'buffer'\] needs the weight 'w'. Pass it by that name"
    ):
        run_recipe(good, {})
    with pytest.raises(
        FormatError,
        match=r"the steps make float32\[2\], the buffer is float32\[4, 3, 2\]. The weights belong",
    ):
        run_recipe(good, {"w": np.zeros(2, np.float32)})


def test_references() -> None:
    assert resolve("w", "s") == "w"
    assert resolve("%in", "s") == "s"
    assert resolve("%12", "s") == 12
    assert resolve(weight_input("%5"), "") == "%5"
    odd = recipe("float32[4, 3, 2]", RecipeStep("neg", ("%%5",)))
    np.testing.assert_array_equal(run_recipe(odd, {"%5": X}), -X)


@pytest.mark.parametrize(
    "dtype", ["uint8", "float16", "float32", "complex64", "complex128", ml_dtypes.bfloat16]
)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (2, 1, 0)])
@pytest.mark.parametrize("shape", [(3, 4, 2), (2, 3, 8), (5, 1, 3), (0, 2, 4), (1, 1, 1)])
def test_bytes_of_a_strided_array_are_those_of_its_copy(dtype: Any, order: Any, shape: Any) -> None:
    array = (np.arange(np.prod(shape)) + 1).reshape(shape).astype(dtype).transpose(order)
    assert flat_bytes(array).tobytes() == array.tobytes()
