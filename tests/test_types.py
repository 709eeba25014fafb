"""Dim is an algebra over the integers: what it prints parses back, and every law holds under substitution."""

from __future__ import annotations

import ast
import pickle
import string
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import xpuruntime
from xpuruntime.types import HALF_FLOATS, Dim, DimLike, DType, TensorSpec, dim, parse_dim

SYMBOLS = ("n", "m", "seq_len", "class", "None", "ﬁ", "unk__1 (copy)", "a,b]", "it's", 'q"', "\\", "\n")
VALUES = st.fixed_dictionaries({s: st.integers(1, 9) for s in SYMBOLS})

# An expression as a tree of plain tuples, so that it can be evaluated twice: as a Dim and as integers.
TREES = st.recursive(
    st.one_of(st.integers(-9, 9), st.sampled_from(SYMBOLS)),
    lambda inner: st.tuples(st.sampled_from(["+", "-", "*", "//"]), inner, inner),
    max_leaves=8,
)


def as_dim(tree: object) -> DimLike:
    match tree:
        case (op, left, right):
            a, b = as_dim(left), as_dim(right)
            return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b}[op]()
        case _:
            return dim(tree)  # type: ignore[arg-type]


def as_int(tree: object, values: dict[str, int]) -> int:
    match tree:
        case (op, left, right):
            a, b = as_int(left, values), as_int(right, values)
            return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b}[op]()
        case int():
            return tree
        case _:
            return values[tree]  # type: ignore[index]


def evaluate(d: DimLike, values: dict[str, int]) -> DimLike:
    return d.substitute(values) if isinstance(d, Dim) else d


@given(TREES, VALUES)
def test_evaluating_a_dim_is_evaluating_the_integers(tree: object, values: dict[str, int]) -> None:
    try:
        expected = as_int(tree, values)
        built = as_dim(tree)
    except ZeroDivisionError:
        assume(False)
    got = evaluate(built, values)
    assert type(got) is int
    assert got == expected


@given(TREES)
def test_what_a_dim_prints_parses_back_to_an_equal_dim(tree: object) -> None:
    try:
        built = as_dim(tree)
    except ZeroDivisionError:
        assume(False)
    again = parse_dim(str(built))
    assert again == built
    assert str(again) == str(built)
    assert hash(again) == hash(built)
    assert pickle.loads(pickle.dumps(built)) == built


@given(TREES, TREES, TREES)
def test_equal_polynomials_are_equal_dims(a: object, b: object, c: object) -> None:
    try:
        x, y, z = as_dim(a), as_dim(b), as_dim(c)
    except ZeroDivisionError:
        assume(False)
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) + z == x + (y + z)
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert x - x == 0
    assert x + 0 == x * 1 == x // 1 == x
    assert 0 * x == 0
    assert hash(x + y) == hash(y + x)


@given(TREES, TREES, VALUES)
def test_substituting_a_dim_for_a_symbol_is_composition(
    outer: object, inner: object, values: dict[str, int]
) -> None:
    try:
        f, g = as_dim(outer), as_dim(inner)
        n = evaluate(g, values)
        expected = evaluate(f, values | {"n": n})  # type: ignore[dict-item]
        composed = f.substitute({"n": g}) if isinstance(f, Dim) else f
        got = evaluate(composed, values)
    except ZeroDivisionError:
        assume(False)
    assert got == expected


def test_arithmetic_that_yields_a_constant_hands_back_an_int() -> None:
    n = dim("n")
    for value, expected in ((n - n, 0), (n // n, 1), (n * 0, 0), ((4 * n) // (2 * n), 2), (0 // (n + 1), 0)):
        assert type(value) is int
        assert value == expected


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("n", "n"),
        ("1 + n*2", "2*n + 1"),
        ("(n + 1)*(n - 1)", "n*n - 1"),
        ("(2*n + 6)//2", "n + 3"),
        ("n//2*2", "2*(n//2)"),
        ("(n//2)//3", "(n//6)"),
        ("(n + 1)//(m*2)", "((n + 1)//(2*m))"),
        ("-n", "-n"),
        ("'height out' * 2", "2*'height out'"),
        ("'class' - 1", "'class' - 1"),
        ("7//2", "3"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(parse_dim(text)) == canonical


@pytest.mark.parametrize(
    "text",
    [
        *[
            "",
            " ",
            "n +",
            "n / 2",
            "n ** 2",
            "f(n)",
            "n if n else m",
            "1.5",
            "True",
            "b'n'",
            "''",
            "n//0",
            "[n]",
            "n\0",
        ],
        *["(" * 500 + "n" + ")" * 500, "n+" * 6000 + "n", "9" * 5000, "-" * 9000 + "n"],
        "*".join(f"(a{i}+b{i})" for i in range(600)),
    ],
)
def test_text_that_is_no_dim_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"dim|part|symbol|terms|null|characters"):
        parse_dim(text)


@given(st.text(alphabet=string.printable, max_size=40))
def test_any_text_parses_or_is_a_value_error(text: str) -> None:
    try:
        parsed = parse_dim(text)
    except ValueError:
        return
    assert parse_dim(str(parsed)) == parsed


def test_dim_takes_numpy_integers_and_nothing_else() -> None:
    assert type(dim(np.int64(3))) is int  # type: ignore[arg-type]
    assert type(dim(True)) is int
    with pytest.raises(TypeError):
        dim(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must not be empty"):
        dim("")
    with pytest.raises(ZeroDivisionError):
        dim("n") // 0


def test_an_int_is_never_equal_to_a_symbol() -> None:
    assert dim("n") != 1
    assert dim("1") != 1  # a symbol may be called "1"
    assert parse_dim(str(dim("1"))) == dim("1")


# DType


def test_every_dtype_knows_its_numpy_dtype_and_comes_back_from_it() -> None:
    for dtype in DType:
        assert DType.of(dtype.value) is dtype
        assert DType.of(dtype) is dtype
        assert DType.of(dtype.numpy) is dtype
        kinds = (dtype.is_float, dtype.is_complex, dtype.is_integer, dtype in (DType.BOOL, DType.STRING))
        assert sum(kinds) == 1, dtype


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"])
def test_sub_byte_types_take_a_byte_in_numpy_and_less_when_packed(name: str) -> None:
    assert DType(name).numpy.itemsize == 1
    assert DType(name).bits == int(name.lstrip("uintfloa")[0])


def test_signedness_is_what_numpy_can_represent() -> None:
    for dtype in DType:
        if dtype.is_integer:
            info = ml_dtypes.iinfo(dtype.numpy)
            assert dtype.is_signed == (info.min < 0)
        if dtype.is_float:
            assert dtype.is_signed == (float(ml_dtypes.finfo(dtype.numpy).min) < 0)


@pytest.mark.parametrize(
    "value", [None, object(), 5, "float33", "i4,(2", "datetime64[s]", "(3,)f4", np.dtype("V3")]
)
def test_what_is_no_tensor_dtype_is_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"no such dtype|no tensor dtype"):
        DType.of(value)


def test_texts_and_byte_orders() -> None:
    assert DType.of(np.dtype(">f4")) is DType.FLOAT32
    assert DType.of(np.array(["a"]).dtype) is DType.STRING
    assert DType.of(object) is DType.STRING
    assert DType.of("bf16") is DType.BFLOAT16
    assert DType.of("half") is DType.FLOAT16


# TensorSpec

SPECS = st.builds(
    TensorSpec,
    st.lists(st.one_of(st.integers(0, 2**40), st.sampled_from(SYMBOLS).map(dim)), max_size=5).map(tuple),
    st.sampled_from(list(DType)),
)


@given(SPECS)
def test_what_a_spec_prints_parses_back(spec: TensorSpec) -> None:
    assert TensorSpec.parse(str(spec)) == spec
    assert spec.rank == len(spec.shape)
    assert spec.is_static == (not spec.symbols)


@given(st.lists(TREES, max_size=4), VALUES)
def test_a_spec_of_expressions_survives_text_and_substitution(
    trees: list[object], values: dict[str, int]
) -> None:
    try:
        shape = tuple(as_dim(t) for t in trees)
        expected = tuple(as_int(t, values) for t in trees)
    except ZeroDivisionError:
        assume(False)
    spec = TensorSpec(shape, DType.FLOAT32, "x")
    assert TensorSpec.parse(str(spec), "x") == spec
    fixed = spec.substitute(values)
    assert fixed.shape == expected
    assert fixed.is_static


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("float32[2, 3]", 24),
        ("float32[]", 4),
        ("int4[3]", 2),
        ("float32[0, 5]", 0),
        ("string[2]", None),
        ("int8[n]", None),
    ],
)
def test_size_in_bytes(text: str, size: int | None) -> None:
    assert TensorSpec.parse(text).size_bytes == size


@pytest.mark.parametrize(
    "text", ["", "float32", "float32[1", "[1]", "float32[1,]", "float32[1.5]", "floaty[1]"]
)
def test_text_that_is_no_spec_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        TensorSpec.parse(text)


def test_the_floats_of_16_bits_have_one_definition() -> None:
    """No module lists both of them and no other dtype: it uses HALF_FLOATS."""
    folder = Path(xpuruntime.__file__).parent
    pair = {"DType.FLOAT16", "DType.BFLOAT16"}
    lists = [
        f"{file.relative_to(folder)}:{node.lineno}"
        for file in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Tuple | ast.Set | ast.List) and {ast.unparse(e) for e in node.elts} == pair
    ]
    assert [name.partition(":")[0] for name in lists] == ["types.py"], lists
    assert frozenset(d for d in DType if d.is_float and d.bits == 16) == HALF_FLOATS
