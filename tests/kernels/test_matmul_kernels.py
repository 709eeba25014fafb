"""Matrix products against the interpreter: shapes, broadcasting, weights and activations, dtypes, levels, epilogues, task splits."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native import check

from xpuruntime.codegen.cpp.isa import LEVELS
from xpuruntime.codegen.cpp.target import CppTarget
from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.ir.ops.matmul import ACTIVATIONS
from xpuruntime.kernels.portable.text import offset_text

TARGETS = ("cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:x86-64-v2")
DTYPES = (
    "float32",
    "float64",
    "bfloat16",
    "float16",
    "int8",
    "uint8",
    "int16",
    "int32",
    "uint32",
    "int64",
    "uint64",
)
rng = np.random.default_rng(3)


def array(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    own = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if "int" in dtype:  # the whole range: products must wrap
        info = np.iinfo(own)
        return rng.integers(info.min, info.max, shape, dtype=own, endpoint=True)
    return rng.standard_normal(shape).astype(own)


Call = tuple[str, list[Any], str, dict[str, Any]]
"""An op, its operands (arrays or None), the positions (digits) of those that are weights, attributes."""


def judge_all(calls: list[Call], target: Any = "cpu") -> dict[str, Any]:
    """Many nodes as one program, since compiling takes longer than running."""
    b = GraphBuilder("products")
    feeds: dict[str, Any] = {}
    known: dict[str, Any] = {}
    for at, (op, operands, weights, attrs) in enumerate(calls):
        names: list[Any] = []
        for i, x in enumerate(operands):
            if x is None:
                names.append(None)
                continue
            declare, held = (b.weight, known) if str(i) in weights else (b.input, feeds)
            name = f"x{at}_{i}"
            names.append(declare(name, f"{x.dtype.name}{list(x.shape)}"))
            held[name] = x
        b.output(f"y{at}", b.call(op, *names, **attrs))
    return check(b.build(), feeds, weights=known, passes="none", split=5, target=target)


def judge(op: str, *operands: Any, weights: str = "", target: Any = "cpu", **attrs: Any) -> Any:
    """The result of one node."""
    return judge_all([(op, list(operands), weights, attrs)], target)["y0"]


SHAPES = [
    ((5, 7), (7, 9)),
    ((1, 33), (33, 100)),
    ((13, 65), (65, 70)),
    ((130, 40), (40, 130)),
    ((2, 3, 7, 9), (9, 11)),
    ((2, 1, 7, 9), (3, 9, 11)),
    ((7, 9), (2, 3, 9, 11)),
    ((2, 7, 9), (2, 9, 11)),
    ((9,), (9, 11)),
    ((9,), (2, 9, 11)),
    ((4, 9), (9,)),
    ((2, 4, 9), (9,)),
    ((9,), (9,)),
    ((4, 0), (0, 9)),
    ((0, 4), (4, 9)),
    ((4, 5), (5, 0)),
    ((0, 3, 4), (0, 4, 5)),
]


@pytest.mark.parametrize("weights", ["", "1", "01"])
def test_numpys_matmul(weights: str) -> None:
    judge_all([("matmul", [array(a, "float32"), array(b, "float32")], weights, {}) for a, b in SHAPES])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
def test_dtypes_on_every_level(target: str) -> None:
    calls: list[Call] = []
    for d in DTYPES:
        calls.append(("linear", [array((9, 37), d), array((70, 37), d), array((70,), d)], "12", {}))
        calls.append(("matmul", [array((2, 5, 19), d), array((2, 19, 33), d)], "", {}))
    judge_all(calls, target)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_few_rows(dtype: str) -> None:
    w = array((130, 67), dtype)
    judge_all([("linear", [array((m, 67), dtype), w, None], "1", {}) for m in (1, 2, 3, 4, 5, 12)])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_longer_than_a_block(dtype: str) -> None:
    x, w, b = array((50, 5001), dtype), array((256, 5001), dtype), array((5001, 256), dtype)
    judge_all([("linear", [x, w, None], "1", {}), ("matmul", [x, b], "", {})])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n", "k"), [(48, 64, 768), (48, 64, 3072), (1, 1024, 3072)])
def test_errors_of_long_sums_grow_with_the_root_of_their_length(m: int, n: int, k: int, target: str) -> None:
    """A sum of k products of normal numbers is about sqrt(k): its error is 3 roundings of that, whatever k; one chain has 8 and 16."""
    normal = np.random.default_rng(7)
    a, b = (normal.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    error = judge("matmul", a, b, weights="1", target=target) - a.astype(np.float64) @ b
    assert np.sqrt(np.mean(error**2)) < 3 * 2.0**-24 * np.sqrt(k)


def test_activations_of_the_epilogue() -> None:
    x = array((3, 2, 9), "float32") * 3
    x[0, 0, 0] = np.nan
    operands = [x, array((21, 9), "float32"), array((21,), "float32"), array((3, 2, 21), "float32")]
    judge_all([("fused_linear", operands, "12", {"act": act}) for act in ACTIVATIONS.split("|")])


def test_residuals_broadcast() -> None:
    x, w = array((3, 2, 9), "float32"), array((21, 9), "float32")
    shapes = [(3, 2, 21), (2, 21), (21,), (3, 1, 21), (3, 2, 1), (1, 1, 1)]
    judge_all([("fused_linear", [x, w, None, array(r, "float32")], "1", {"act": "relu"}) for r in shapes])


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_addmm(dtype: str) -> None:
    calls: list[Call] = []
    for bias in [(), (11,), (1, 11), (7, 1), (7, 11)]:
        operands = [array(bias, dtype), array((7, 9), dtype), array((9, 11), dtype)]
        calls += [("addmm", operands, "2", {"alpha": 2.0, "beta": 3.0}), ("addmm", operands, "", {})]
    judge_all(calls)


@pytest.mark.parametrize("factor", [np.inf, -np.inf, np.nan])
def test_addmm_with_a_factor_that_is_not_finite(factor: float) -> None:
    operands = [array((11,), "float32"), array((7, 9), "float32"), array((9, 11), "float32")]
    judge("addmm", *operands, beta=factor)
    judge("addmm", *operands, alpha=factor)


def test_addmm_with_a_factor_near_the_largest_float() -> None:
    judge("addmm", *(array(shape, "float32") for shape in ((11,), (7, 90), (90, 11))), alpha=1e36)


def test_a_bias_with_factor_zero_is_not_read() -> None:
    bias = np.full((11,), np.nan, np.float32)
    assert np.isfinite(
        judge("addmm", bias, array((7, 9), "float32"), array((9, 11), "float32"), beta=0.0)
    ).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("weights", ["", "1"])
def test_nan_and_infinity_spoil_their_row_and_column_only(dtype: str, weights: str) -> None:
    x, w = array((8, 17), dtype), array((70, 17), dtype)
    x[3, 16], x[3, 0], w[64, 2] = np.nan, np.nan, np.inf
    y = judge("linear", x, w, None, weights=weights).astype(np.float32)
    assert np.isnan(y[3]).all()
    assert not np.isfinite(y[:, 64]).any()
    assert np.isfinite(np.delete(np.delete(y, 3, 0), 64, 1)).all()


@settings(max_examples=15, deadline=None)
@given(m=st.integers(1, 40), n=st.integers(1, 140), k=st.integers(0, 70), weights=st.sampled_from(["", "1"]),
       dtype=st.sampled_from(["float32", "bfloat16", "float64", "int16"]))  # fmt: skip
def test_any_shape(m: int, n: int, k: int, weights: str, dtype: str) -> None:
    judge("linear", array((m, k), dtype), array((n, k), dtype), array((n,), dtype), weights=weights)


@pytest.mark.parametrize("tile", [1, 2, 5, 8, 14, 40])
@pytest.mark.level("x86-64-v3")
def test_the_register_tile_is_the_targets_and_any_is_right(tile: int) -> None:
    level = LEVELS["x86-64-v3"]
    target = CppTarget(level, dataclasses.replace(level.config, matmul_tile=tile))
    x, w = array((23, 31), "float32"), array((45, 31), "float32")
    judge("linear", x, w, None, weights="1", target=target)


def test_the_register_tile_shows_in_the_source() -> None:
    b = GraphBuilder("product")
    b.output("y", b.linear(b.input("x", "float32[23, 31]"), b.weight("w", "float32[45, 31]"), None))
    graph, level = b.build(), LEVELS["x86-64-v3"]

    def source(tile: int) -> str:
        target = CppTarget(level, dataclasses.replace(level.config, matmul_tile=tile))
        return compile_graph(graph, target=target, passes=0).binaries[0].source

    assert "R = 2," in source(2)
    assert "R = 4," in source(4)


def test_few_rows_of_a_weight_are_streamed_and_say_so() -> None:
    def kernel(m: int, weight: bool) -> str:
        b = GraphBuilder("product")
        w = (b.weight if weight else b.input)("w", "float32[45, 31]")
        b.output("y", b.linear(b.input("x", f"float32[{m}, 31]"), w, None))
        return compile_graph(b.build(), passes=0).entries[0].plans[0].calls[0].kernel

    assert kernel(1, True) == kernel(4, True) == "matmul/gemv"
    assert kernel(5, True) == kernel(1, False) == "matmul/generated"


def test_tasks_are_enough_for_many_threads() -> None:
    b = GraphBuilder("product")
    b.output("y", b.linear(b.input("x", "float32[128, 768]"), b.weight("w", "float32[768, 768]"), None))
    (call,) = compile_graph(b.build(), passes=0).entries[0].plans[0].calls
    assert call.tasks >= 32
    assert call.flops == 2 * 128 * 768 * 768


def test_offsets_are_as_short_as_the_strides_allow() -> None:
    assert offset_text("i", (2, 3, 4), (12, 4, 1)) == "i"
    assert offset_text("i", (2, 3, 4), (0, 0, 0)) == "0"
    assert offset_text("i", (2, 3, 4), (4, 0, 1)) == "i / 12 * 4 + (i % 4)"
    assert offset_text("i", (2, 3, 1), (30, 10, 0)) == "i * 10"


IN_PLACE = [
    ((70, 133), (133,)), ((70, 133), (133, 1)), ((1, 5001), (5001, 1)), ((5001,), (5001,)), ((33, 6, 17), (17, 1)),
    ((3, 70, 33), (3, 33, 1)), ((2, 1, 70, 33), (3, 33, 1)), ((70, 33), (3, 33, 1)), ((90, 33), (33, 3)), ((700, 0), (0, 1)),
    ((2, 0, 9), (9, 1)), ((50, 3, 3), (50, 3, 1)), ((50, 1, 5), (50, 5, 3)), ((3, 3), (50, 3, 1)), ((50, 3, 3), (3, 1)),
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int32", "uint8"])
def test_sides_read_in_place(target: str, dtype: str) -> None:
    """Few rows and columns, weights or not, and linear layers with few rows or outputs."""
    calls: list[Call] = [
        ("matmul", [array(a, dtype), array(b, dtype)], weights, {})
        for a, b in IN_PLACE
        for weights in ("", "0", "1")
    ]
    for m, n, k in [(1, 70, 133), (3, 70, 19), (70, 1, 133), (70, 4, 19), (4, 9, 5001), (130, 3, 16)]:
        operands = [
            array((2, m, k), dtype),
            array((n, k), dtype),
            array((n,), dtype),
            array((2, m, n), dtype),
        ]
        calls += [("fused_linear", operands, weights, {"act": "none"}) for weights in ("", "12")]
    judge_all(calls, target)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_strided_sides_read_in_place(dtype: str) -> None:
    """Rows and columns of transposed values, whose elements along k are not adjacent."""
    b, feeds = GraphBuilder("strided"), {}
    for at, (x_shape, y_shape) in enumerate(
        [((133, 70), (133, 1)), ((5001, 3), (40, 5001)), ((19, 130), (3, 19)), ((5001, 2), (5001, 1))]
    ):
        feeds |= {f"x{at}": array(x_shape, dtype), f"y{at}": array(y_shape, dtype)}
        x, y = (
            b.input(f"{name}{at}", f"{dtype}{list(shape)}")
            for name, shape in (("x", x_shape), ("y", y_shape))
        )
        right = y if y_shape[0] == x_shape[0] else b.permute(y, dims=[1, 0])
        b.output(f"z{at}", b.matmul(b.permute(x, dims=[1, 0]), right))
    check(b.build(), feeds, split=5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_spoils_only_its_dot_product(dtype: str) -> None:
    """Of rows whose length is no multiple of the lanes, whose ends are next to others' beginnings."""
    for k in (3, 17, 133):
        x, v = array((9, k), dtype), array((k,), dtype)
        x[4], x[6, k - 1] = np.nan, np.inf
        y = judge("matmul", x, v).astype(np.float32)
        assert np.isnan(y[4])
        assert not np.isfinite(y[6])
        assert np.isfinite(np.delete(y, [4, 6])).all()


@pytest.mark.parametrize("act", ACTIVATIONS.split("|"))
def test_activations_of_few_outputs(act: str) -> None:
    operands = [
        array((40, 33), "float32"),
        array((3, 33), "float32"),
        array((3,), "float32"),
        array((40, 1), "float32"),
    ]
    judge("fused_linear", *operands, weights="12", act=act)


def test_addmm_of_one_column() -> None:
    for bias in [(), (1,), (37, 1)]:
        judge(
            "addmm",
            array(bias, "float32"),
            array((37, 19), "float32"),
            array((19, 1), "float32"),
            alpha=2.0,
            beta=3.0,
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_transposed_right_side_that_is_packed_by_tasks(dtype: str) -> None:
    judge_all(
        [
            ("linear", [array((m, k), dtype), array((n, k), dtype), None], "", {})
            for m, n, k in [(16, 70, 133), (9, 33, 16), (40, 130, 15)]
        ]
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_few_rows_sum_as_many(dtype: str, target: str) -> None:
    """Rows times the transpose of a value, which few rows read in place: the bits of the same rows among others, whose right side is packed."""
    for n, k in [(70, 133), (33, 16), (8, 5001), (129, 640), (5, 7), (600, 64)]:
        x, w = array((16, k), dtype), array((n, k), dtype)
        many = judge("linear", x, w, None, target=target)
        for m in (1, 2, 3, 4):
            few = judge("linear", x[:m], w, None, target=target)
            np.testing.assert_array_equal(few, many[:m])


@pytest.mark.parametrize("target", ["cpu", "cpu:x86-64-v3", "cpu:x86-64-v2"])
def test_nan_spoils_only_its_column_of_a_transposed_value(target: str) -> None:
    for k in (3, 16, 133):
        w = array((37, k), "float32")
        w[4], w[36, k - 1] = np.nan, np.inf
        y = judge("linear", array((1, k), "float32"), w, None, target=target)[0]
        assert not np.isfinite(y[[4, 36]]).any()
        assert np.isfinite(np.delete(y, [4, 36])).all()
