"""Convolution kernels against the interpreter: shapes that do not fit vectors, every layout, dtype and instruction set."""

from __future__ import annotations

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.convolutions import LEVELS, conv, conv_call, draw
from support.device_under_test import named
from support.native import check
from support.one_kernel import Weight, channels_last, check_kernel

from xpuruntime import ir
from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.kernels.cpu.conv.depthwise import CpuDepthwise
from xpuruntime.kernels.cpu.conv.generated import GeneratedConv
from xpuruntime.kernels.cpu.conv.windows import window_product
from xpuruntime.kernels.cpu.tasks import LoopedTasks
from xpuruntime.kernels.portable.windows.conv import DeformedConv, NaiveConv
from xpuruntime.kernels.spec.conv_shape import ConvShape
from xpuruntime.types import DType, TensorSpec

SHAPES = {
    "pointwise": {"c": 64, "o": 64, "size": (9, 5), "kernel": (1, 1)},
    "pixels as they lie": {"n": 2, "c": 34, "o": 21, "size": (8, 9), "kernel": (1, 1)},
    "three": {"c": 17, "o": 33, "size": (9, 8), "padding": [1, 1]},
    "wide first": {"c": 3, "o": 64, "size": (20, 21), "kernel": (7, 7), "stride": [2, 2], "padding": [3, 3]},
    "few channels": {
        "n": 2,
        "c": 3,
        "o": 37,
        "size": (11, 31),
        "padding": [2, 0, 1, 3],
        "stride": [2, 2],
        "dilation": [2, 1],
    },
    "few, cropping": {"c": 2, "o": 5, "size": (9, 17), "padding": [-1, -2, 0, -3], "kernel": (2, 4)},
    "few on a line": {"c": 4, "o": 5, "size": (47,), "padding": [3], "kernel": (5,), "stride": [3]},
    "few, volume": {
        "n": 2,
        "c": 2,
        "o": 9,
        "size": (5, 6, 9),
        "padding": [1, 2, 1],
        "stride": [2, 1, 2],
        "dilation": [1, 2, 1],
        "kernel": (3, 3, 3),
    },
    "few, long lines": {"c": 13, "o": 19, "size": (5, 80), "kernel": (2, 17), "padding": [1, 3]},
    "few, lines of several products": {
        "n": 2,
        "c": 12,
        "o": 40,
        "size": (9, 12),
        "kernel": (7, 5),
        "padding": [3, 2],
    },
    "few, long rows": {
        "n": 2,
        "c": 3,
        "o": 7,
        "size": (3, 4500),
        "kernel": (2, 3),
        "padding": [1, 1],
        "stride": [1, 2],
    },
    "few, one row": {"c": 5, "o": 12, "size": (700,), "kernel": (9,), "padding": [4], "stride": [2]},
    "few, one column": {"c": 3, "o": 12, "size": (70, 1), "kernel": (9, 1), "padding": [4, 0]},
    "few, dilated column": {
        "c": 16,
        "o": 12,
        "size": (30, 7),
        "kernel": (5, 1),
        "dilation": [3, 4],
        "stride": [2, 3],
    },
    "few, beyond both ends": {"c": 2, "o": 3, "size": (2, 3), "kernel": (2, 2), "padding": [0, 90]},
    "several chunks": {"c": 70, "o": 40, "size": (8, 8), "padding": [1, 1]},
    "one pixel": {"c": 5, "o": 7, "size": (1, 1), "kernel": (1, 1)},
    "kernel beyond input": {"c": 4, "o": 3, "size": (2, 2), "kernel": (5, 5), "padding": [2, 2]},
    "asymmetric": {"c": 8, "o": 8, "size": (6, 7), "padding": [0, 1, 2, 3], "stride": [2, 1]},
    "cropping": {"c": 8, "o": 8, "size": (9, 9), "padding": [-1, 1, 0, -2]},
    "dilated": {"c": 16, "o": 16, "size": (9, 11), "padding": [2, 4], "dilation": [2, 3]},
    "grouped": {"c": 12, "o": 18, "size": (5, 6), "groups": 3, "padding": [1, 1]},
    "one filter": {"c": 9, "o": 1, "size": (6, 6), "padding": [1, 1]},
    "one channel": {"c": 1, "o": 20, "size": (6, 6), "padding": [1, 1]},
    "batch": {"n": 3, "c": 16, "o": 24, "size": (5, 7), "padding": [1, 1]},
    "line": {"c": 10, "o": 12, "size": (31,), "kernel": (4,), "stride": [3], "padding": [2]},
    "volume": {
        "c": 6,
        "o": 9,
        "size": (4, 5, 6),
        "kernel": (2, 3, 3),
        "padding": [1, 0, 1],
        "stride": [1, 2, 1],
    },
    "empty batch": {"n": 0, "c": 4, "o": 8},
    "small maps": {"c": 130, "o": 70, "size": (7, 7), "padding": [1, 1]},
}
TRANSPOSED = {
    "step": {"c": 6, "o": 8, "size": (5, 4), "kernel": (2, 2), "stride": [2, 2]},
    "overlap": {
        "c": 5,
        "o": 20,
        "size": (4, 5),
        "kernel": (4, 3),
        "stride": [2, 3],
        "padding": [1, 1],
        "output_padding": [1, 2],
    },
    "groups": {
        "c": 8,
        "o": 12,
        "size": (4, 4),
        "groups": 4,
        "stride": [2, 1],
        "padding": [1, 0],
        "dilation": [2, 1],
    },
    "line": {"c": 3, "o": 4, "size": (9,), "kernel": (5,), "stride": [3], "padding": [2]},
    "one filter": {"n": 2, "c": 24, "o": 1, "size": (6, 7), "kernel": (2, 2), "stride": [2, 2]},
    "wide step": {"c": 7, "o": 3, "size": (5, 6), "kernel": (3, 4), "stride": [3, 4]},
    "gaps": {"c": 7, "o": 3, "size": (5, 6), "kernel": (1, 2), "stride": [3, 4]},
    "upsample": {"c": 20, "o": 18, "size": (7, 5), "kernel": (4, 4), "stride": [2, 2], "padding": [1, 1]},
    "cropped": {"c": 6, "o": 5, "size": (5, 6), "kernel": (2, 2), "stride": [2, 2], "padding": [1, 1, 0, 1]},
    "reversed": {"c": 6, "o": 5, "size": (5, 6), "kernel": (3, 2), "padding": [2, 0], "dilation": [1, 3]},
    "even": {"n": 2, "c": 6, "o": 40, "size": (6, 5), "stride": [2, 2], "padding": [1, 1], "output_padding": [1, 1]},
    "volume": {"c": 4, "o": 6, "size": (3, 2, 4), "kernel": (2, 3, 2), "stride": [2, 2, 2]},
    "two runs of phases": {"n": 2, "c": 19, "o": 1, "size": (9,), "kernel": (20,), "stride": [8], "padding": [3]},
    "runs of several filters": {"c": 5, "o": 6, "size": (3, 7), "kernel": (3, 8), "stride": [2, 5], "padding": [1, 2]},
    "few places": {"c": 6, "o": 5, "size": (1, 1), "kernel": (2, 2), "stride": [2, 2], "padding": [0, 0, 1, 1]},
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SHAPES)
def test_generated_computes_shapes_that_fit_nothing(name):
    conv(**SHAPES[name], split=5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_pixels_are_read_as_they_lie(dtype):
    shape = SHAPES["pixels as they lie"] | {"dtype": dtype, "act": "relu"}
    conv(**shape, split=2)
    conv(**shape, residual=True, pad_to=16)
    conv(**shape, residual=(1, 21, 1, 1), padding=[1, 0])
    x = draw(7, 2, 34, 8, 9, dtype=dtype)
    x[1, 3, 7, 8] = x[0, 33, 0, 0] = np.nan
    conv(**shape, x=x)


@pytest.mark.parametrize("name", ["three", "few channels", "grouped", "line", "volume", "several chunks"])
def test_generated_takes_channels_that_lie_apart(name):
    conv(**SHAPES[name], last=False)


# One input channel along one dim: products over overlapping windows.
WINDOWS = {
    "tall": {"o": 33, "size": (70, 19), "kernel": (65, 1)},
    "tall, strided": {"n": 2, "o": 18, "size": (41, 21), "kernel": (7, 1), "stride": [3, 2]},
    "tall, few columns": {"n": 2, "o": 18, "size": (41, 3), "kernel": (7, 1), "stride": [3, 1]},
    "tall, padded and dilated": {"n": 2, "o": 9, "size": (23, 11), "kernel": (6, 1), "padding": [7, 1, 3, 0], "dilation": [3, 1]},
    "wide": {"o": 20, "size": (5, 90), "kernel": (1, 64), "padding": [0, 32]},
    "frames": {"n": 3, "o": 37, "size": (515,), "kernel": (41,), "stride": [16]},
    "windows apart": {"o": 12, "size": (130,), "kernel": (3,), "stride": [7], "padding": [1, 4]},
    "short, strided": {"n": 2, "o": 70, "size": (203,), "kernel": (10,), "stride": [5]},
    "dilated": {"o": 16, "size": (90,), "kernel": (5,), "dilation": [9], "padding": [18]},
    "one filter": {"n": 2, "o": 1, "size": (77,), "kernel": (11,)},
    "one window": {"o": 40, "size": (33,), "kernel": (33,), "stride": [5]},
    "cropping": {"n": 2, "o": 8, "size": (60,), "kernel": (4,), "padding": [-3, -2]},
    "padding alone": {"o": 8, "size": (2, 3), "kernel": (2, 1), "padding": [6, 4], "stride": [1, 3]},
    "long sums": {"o": 17, "size": (3100,), "kernel": (3001,)},
    "volume": {"n": 2, "o": 6, "size": (9, 4, 5), "kernel": (4, 1, 1), "padding": [2, 0, 0]},
    "depth of a volume's row": {"n": 2, "o": 6, "size": (3, 4, 25), "kernel": (1, 1, 4), "stride": [2, 1, 3]},
    "empty batch": {"n": 0, "o": 8, "size": (20,), "kernel": (4,)},
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_overlapping_windows(name, last, dtype):
    shape = {"c": 1, "last": last, "dtype": dtype} | WINDOWS[name]
    conv(**shape, split=5)
    conv(**shape, residual=True, act="relu", bias=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["tall", "tall, padded and dilated", "frames", "short, strided", "wide"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_overlapping_windows_on_every_level(level, name, dtype):
    for last in (True, False):
        shape = {"c": 1, "last": last, "dtype": dtype, "target": level} | WINDOWS[name]
        conv(**shape, residual=True, act="gelu", split=3)
        conv(**shape, known=False, pad_to=16 if last else 1)
        conv(**shape, residual=(1, WINDOWS[name]["o"], *[1] * len(shape["size"])))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [((1, 40), (1, 3), [1, 1], [0, 0]), ((6, 32), (2, 1), [2, 3], [1, 1]), ((1, 64), (1, 2), [1, 4], [0, 0])],
)
def test_windows_of_an_input_that_is_a_weight(size, kernel, stride, padding):
    """The number of elements equals that of the windows in the last case, so that no check of shapes finds a wrong packing."""
    b = ir.GraphBuilder("constant input")
    x = b.weight("x", TensorSpec((2, 1, *size), DType.FLOAT32))
    filters = b.input("filters", TensorSpec((5, 1, *kernel), DType.FLOAT32))
    b.output("y", b.convolution(x, filters, stride=stride, padding=padding * 2, dilation=[1, 1]))
    feeds = {"filters": draw(1, 5, 1, *kernel)}
    check(b.build(), feeds, weights={"x": draw(0, 2, 1, *size)}, passes="none")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["tall", "tall, padded and dilated", "frames", "wide"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_what_is_no_number_stays_in_its_windows(bad, name, dtype):
    shape = WINDOWS[name]
    x = draw(7, shape.get("n", 1), 1, *shape["size"], dtype=dtype)
    x.reshape(-1)[[0, x.size // 2, -1]] = bad
    for last in (True, False):
        conv(**({"c": 1, "last": last, "dtype": dtype} | shape), x=x)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [n for n in SHAPES if n.startswith("few")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_lines_of_few_channels_on_every_level(level, name, dtype):
    conv(**SHAPES[name], dtype=dtype, target=level, residual=True, act="relu", split=3)


@pytest.mark.parametrize("name", ["few, volume", "few, one row", "few, lines of several products"])
def test_what_is_no_number_stays_in_the_windows_of_few_channels(name):
    shape = SHAPES[name]
    x = draw(7, shape.get("n", 1), shape["c"], *shape["size"])
    x.reshape(-1)[[0, x.size // 2, -1]] = np.nan
    conv(**shape, x=x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_tall_kernels_of_few_channels(dtype):
    for c in (1, 2, 3, 4):
        shape = {"c": c, "o": 21, "size": (40, 13), "kernel": (17, 1), "dtype": dtype}
        conv(**shape, n=2, padding=[3, 0, 5, 1], stride=[2, 1], split=4)
        conv(**shape, dilation=[2, 1], act="relu", residual=True)


def test_windows_are_read_in_place_without_padding():
    def product_of(**options):
        call = conv_call(1, 1, 8, (64, 20), (16, 1), **options)
        return window_product(call, ConvShape.of(call))

    assert product_of(padding=(0, 0)).padded is None
    assert product_of(padding=(2, 0)).padded == (1, 1, 68, 20)
    assert product_of(padding=(0, 0), stride=(2, 1)).product.batch == (1, 1, 25)
    call = conv_call(1, 1, 8, (64, 20), (16, 3))
    assert window_product(call, ConvShape.of(call)) is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TRANSPOSED)
def test_generated_computes_transposed_ones(name):
    conv(**TRANSPOSED[name], transposed=True, last=name != "groups", split=6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_transposed_ones_end_in_residuals_and_activations(name, dtype):
    for last in (True, False):
        conv(**TRANSPOSED[name], transposed=True, last=last, residual=True, act="relu", dtype=dtype)
    conv(**TRANSPOSED[name], transposed=True, pad_to=16, bias=False, dtype=dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float64])
def test_transposed_ones_with_filters_that_are_computed(name, dtype):
    for last in (True, False):
        conv(**TRANSPOSED[name], transposed=True, known=False, last=last, residual=True, dtype=dtype, split=6)


def test_phases_compute_nothing_twice():
    shape = TRANSPOSED["step"]
    call = conv_call(
        1,
        shape["c"],
        shape["o"],
        shape["size"],
        shape["kernel"],
        stride=[2, 2],
        padding=[0, 0],
        transposed=True,
    )
    stages = GeneratedConv().lower(call, cpu_target("cpu:x86-64-v4")).stages
    assert len(stages) == 2  # both phases of a row are one product
    assert sum(s.flops for s in stages) == 2 * 20 * 4 * 6 * 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("level", "dtype"), itertools.product(LEVELS, [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
)
def test_generated_on_every_level_and_dtype(level, dtype):
    conv(
        n=2,
        c=19,
        o=37,
        size=(6, 5),
        padding=[1, 1],
        residual=True,
        act="relu",
        dtype=dtype,
        target=level,
        split=1,
    )


LINES = {
    "padding": {"padding": [1, 1], "residual": True, "act": "relu"},
    "two by two": {"size": (15, 22), "padding": [1, 1], "stride": [2, 2], "n": 2},
    "in place": {"size": (9, 30), "residual": True},
    "in place, odd pitch": {"size": (9, 30), "pad_to": 33},
    "one tap, step": {"size": (9, 55), "kernel": (1, 1), "stride": [2, 2], "pad_to": 64},
    "chunks": {"c": 224, "o": 70, "size": (7, 7), "padding": [1, 1]},
    "groups": {"c": 64, "o": 54, "groups": 2, "padding": [1, 1], "pad_to": 96},
    "dilated, cropping": {"padding": [-1, 2, 3, -1], "dilation": [2, 1]},
    "volume": {"size": (3, 5, 9), "kernel": (3, 2, 3), "padding": [1, 0, 1]},
    "line": {"size": (300,), "kernel": (5,), "padding": [2]},
    "transposed": {"transposed": True, "stride": [2, 2], "padding": [1, 1], "kernel": (4, 4)},
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_input_lines_on_every_level(level, name, dtype):
    conv(**({"c": 32, "o": 37, "size": (8, 13)} | LINES[name]), dtype=dtype, target=level, split=3)


@settings(max_examples=15, deadline=None)
@given(
    data=st.data(),
    channels=st.sampled_from([16, 32, 96]),
    dtype=st.sampled_from([np.float32, ml_dtypes.bfloat16]),
)
def test_input_lines_drawn_at_random(data, channels, dtype):
    def both(low, high):
        return tuple(data.draw(st.integers(low, high)) for _ in range(2))

    groups, kernel = data.draw(st.integers(1, 2)), both(1, 3)
    conv(
        n=data.draw(st.integers(1, 2)), c=channels * groups, o=data.draw(st.integers(1, 70)) * groups, groups=groups, kernel=kernel,
        size=(data.draw(st.integers(7, 14)), data.draw(st.integers(7, 40))), stride=[*both(1, 3)], dilation=[*both(1, 2)],
        padding=[*both(0, 3)], residual=data.draw(st.booleans()), pad_to=data.draw(st.sampled_from([1, 33, 64])), dtype=dtype, split=2,
    )  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "act",
    ["relu", "relu6", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish", "leaky_relu", "none"],
)
def test_generated_ends_in_any_activation(act):
    conv(c=8, o=21, residual=True, act=act)


@pytest.mark.parametrize("residual", [(5, 1, 1), (1, 5, 5, 4), (1,), (5, 4)])
def test_residual_may_broadcast(residual):
    conv(residual=residual, last=False)


@pytest.mark.parametrize("options", [{}, {"groups": 3}, {"transposed": True, "groups": 3}])
def test_filters_that_are_computed_are_packed_on_the_way(options):
    for dtype in (np.float32, ml_dtypes.bfloat16):
        conv(c=9, o=39, padding=[1, 1], known=False, dtype=dtype, **options)


def test_layouts_with_padded_channels():
    conv(c=5, o=7, padding=[1, 1], pad_to=16, residual=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_where_it_belongs(bad):
    x = draw(7, 1, 20, 6, 6)
    x[0, 3, 0, 5] = x[0, 19, 4, 0] = bad
    conv(c=20, o=36, size=(6, 6), padding=[1, 1], act="relu", x=x)
    conv(c=20, o=20, groups=20, size=(6, 6), padding=[1, 1], x=x, kernel_row=CpuDepthwise())
    conv(c=20, o=36, size=(6, 6), kernel=(2, 2), stride=[2, 2], transposed=True, x=x)


def test_any_split_gives_the_same_bits():
    shape = {"n": 2, "c": 80, "o": 100, "size": (9, 9), "padding": [1, 1]}
    whole = conv(**shape)[0]
    for seed in range(2):
        assert (conv(**shape, split=seed)[0] == whole).all()


DEPTHWISE = {
    "three": {"c": 53, "o": 53, "size": (9, 11), "padding": [1, 1]},
    "stride": {"c": 40, "o": 40, "size": (12, 13), "padding": [1, 2], "stride": [2, 2], "kernel": (3, 5)},
    "dilated": {"c": 16, "o": 16, "size": (9, 9), "padding": [2, 2], "dilation": [2, 2]},
    "several filters": {"c": 20, "o": 60, "size": (7, 7), "padding": [1, 1]},
    "kernel beyond input": {"c": 33, "o": 33, "size": (3, 2), "kernel": (5, 5), "padding": [2, 2]},
    "line": {"c": 17, "o": 17, "size": (40,), "kernel": (4,), "padding": [3, 0]},
    "volume": {"c": 18, "o": 18, "size": (3, 4, 9), "kernel": (3, 3, 3), "padding": [1, 1, 1]},
    "cropping": {"c": 18, "o": 18, "size": (9, 9), "padding": [-1, 1, 0, -2]},
    "blocks": {"n": 2, "c": 56, "o": 56, "size": (7, 29), "padding": [1, 1]},
    "blocks, two apart": {"c": 40, "o": 40, "size": (9, 43), "kernel": (5, 5), "stride": [2, 2], "padding": [2, 1]},
    "wide kernel": {"c": 19, "o": 19, "size": (5, 17), "kernel": (7, 7), "padding": [3, 3]},
    "few columns": {"c": 8, "o": 8, "size": (4, 1), "kernel": (3, 3), "padding": [1, 1]},
    "three apart": {"c": 20, "o": 20, "size": (9, 20), "stride": [3, 3]},
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(name):
    shape = DEPTHWISE[name] | {"groups": DEPTHWISE[name]["c"], "kernel_row": CpuDepthwise(), "split": 4}
    conv(**shape, residual=True, act="relu6", last=name != "stride")
    conv(**shape, dtype=ml_dtypes.bfloat16, pad_to=8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("level", "dtype"), itertools.product(LEVELS, [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
)
def test_depthwise_on_every_level_and_dtype(level, dtype):
    conv(
        n=2, c=37, o=37, size=(6, 9), padding=[1, 1], groups=37, residual=True, act="hardswish", dtype=dtype,
        target=level, kernel_row=CpuDepthwise(),
    )  # fmt: skip


GROUPED = {
    "four": {"c": 4, "padding": [1, 1], "size": (9, 11)},
    "two": {"c": 2, "padding": [1, 1], "size": (5, 23)},
    "eight": {"c": 8, "padding": [2, 0, 1, 3], "size": (7, 8)},
    "stride": {"c": 4, "padding": [1, 2], "stride": [2, 2], "kernel": (3, 5), "size": (12, 13)},
    "dilated rows": {"c": 4, "padding": [2, 1], "dilation": [2, 1], "size": (9, 9)},
    "beyond input": {"c": 8, "kernel": (5, 5), "padding": [2, 2], "size": (3, 2)},
    "cropping": {"c": 4, "padding": [-1, 1, 0, -2], "size": (9, 9)},
    "line": {"c": 4, "kernel": (4,), "padding": [3, 0], "size": (40,)},
    "one pixel": {"c": 2, "kernel": (1, 1), "size": (1, 1)},
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_few_channels_share_vectors(name, level):
    """As many groups as fill vectors, fewer, and a vector and a half."""
    for groups, dtype in ((3, np.float32), (16, ml_dtypes.bfloat16), (12, np.float16), (5, np.float64)):
        channels = groups * GROUPED[name]["c"]
        shape = GROUPED[name] | {"n": 2, "c": channels, "o": channels, "groups": groups}
        conv(**shape, residual=True, act="relu6", dtype=dtype, target=level, split=3)
        x = draw(1, 2, channels, *shape["size"], dtype=dtype)
        rng = np.random.default_rng(2)
        for value in (np.nan, np.inf, -np.inf):
            x[rng.random(x.shape) < 0.01] = value
        conv(**shape, x=x, dtype=dtype, target=level, bias=False)


@pytest.mark.parametrize(
    ("channels", "filters", "shared"),
    [(2, 2, True), (8, 8, True), (3, 3, False), (4, 8, False), (16, 16, False)],
)
def test_only_groups_that_divide_a_vector_share_one(channels, filters, shared):
    call = conv_call(1, 8 * channels, 8 * filters, (6, 6), groups=8)
    lowered = GeneratedConv().lower(call, cpu_target("cpu:x86-64-v3"))
    assert ("ByGroups" in lowered.stages[0].source) is shared


ROWS = {
    "two rows": {"kernel": (2, 3), "padding": [1, 1]},
    "three": {"padding": [1, 1]},
    "three, stride": {"padding": [1, 1], "stride": [2, 2]},
    "four rows": {"kernel": (4, 5), "padding": [2, 2, 1, 2]},
    "five": {"kernel": (5, 5), "padding": [2, 2]},
    "five, stride": {"kernel": (5, 5), "padding": [2, 2], "stride": [2, 2]},
    "seven": {"kernel": (7, 7), "padding": [3, 3]},
    "dilated rows": {"kernel": (3, 3), "padding": [3, 1], "dilation": [3, 1]},
    "one column": {"kernel": (3, 1), "padding": [1, 0]},
    "rows in padding only": {"kernel": (3, 3), "padding": [4, 1], "stride": [1, 2]},
    "cropping": {"kernel": (3, 3), "padding": [-1, 1, 0, -2]},
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.level("x86-64-v4+bf16")
@pytest.mark.parametrize("name", ROWS)
def test_depthwise_by_pairs_of_rows(name):
    """Infinities and NaNs reach only the windows around them: an odd row of taps is not multiplied by what is next to it."""
    target = "cpu:x86-64-v4+bf16"
    for c, size in ((2, (6, 5)), (37, (8, 20)), (80, (5, 9))):
        x = draw(c, 2, c, *size, dtype=ml_dtypes.bfloat16)
        shape = ROWS[name] | {"n": 2, "c": c, "o": c, "groups": c, "size": size, "kernel_row": CpuDepthwise()}
        conv(**shape, x=x, dtype=x.dtype, target=target, residual=True, act="relu6", pad_to=8, split=c)
        rng = np.random.default_rng(c)
        for value in (np.nan, np.inf, -np.inf):
            x[rng.random(x.shape) < 0.01] = value
        conv(**shape, x=x, dtype=x.dtype, target=target, bias=False)


@pytest.mark.parametrize("act", ["relu6", "hardswish"])
@pytest.mark.parametrize("level", LEVELS)
def test_bounded_activations_keep_nan(level, act):
    x = draw(7, 1, 20, 6, 6) * 8
    x[0, 3, 0, 5], x[0, 5, 2, 2], x[0, 19, 4, 0] = np.nan, np.inf, -np.inf
    (y,) = conv(
        c=20,
        o=20,
        groups=20,
        size=(6, 6),
        padding=[1, 1],
        x=x,
        act=act,
        target=level,
        kernel_row=CpuDepthwise(),
    )
    assert np.isnan(y[0, 3, 0, 5])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.int32, np.int64, np.float32, np.float64, np.float16]
)
def test_naive(dtype):
    x = (draw(1, 2, 6, 5, 6) * 40).astype(dtype)
    shape = {
        "n": 2,
        "c": 6,
        "o": 9,
        "size": (5, 6),
        "padding": [1, 1],
        "kernel_row": LoopedTasks(NaiveConv()),
        "dtype": dtype,
        "x": x,
    }
    conv(**shape, groups=3, stride=[2, 1], residual=True)
    conv(**shape, transposed=True, stride=[2, 1], last=False)


@pytest.mark.parametrize("field", ["channel_tile", "max_threadgroup_3d_xy", "max_threadgroup_3d_z"])
@pytest.mark.level("x86-64-v3")
def test_fields_of_the_target_size_the_code(field):
    target = cpu_target("cpu:x86-64-v3")
    shape = {"n": 2, "c": 40, "o": 48, "size": (14, 15), "padding": [1, 1], "target": target.name}
    for value in (1, 8, 100):
        conv(**shape, config=replace(target.config, **{field: value}))
    call = conv_call(1, 40, 48, (60, 60))
    texts = {
        GeneratedConv()
        .lower(call, type(target)(target.isa, replace(target.config, **{field: v})))
        .stages[0]
        .source
        for v in (4, 16)
    }
    assert len(texts) == 2


def test_kernels_say_why_not():
    if named() is not None:
        pytest.skip("a device's compiler chooses among its own kernels")
    with pytest.raises(AssertionError, match="only non-transposed depthwise"):
        conv(c=4, o=4, groups=2, kernel_row=CpuDepthwise())
    with pytest.raises(AssertionError, match="int32 is not supported"):
        conv(dtype=np.int32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("options", [{}, {"groups": 2, "offset_groups": 2}, {"line": True}])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_deformed(options, dtype):
    options = dict(options)
    line = options.pop("line", False)
    space, kernel = ((9,), (3,)) if line else ((6, 7), (3, 2))
    taps, n = int(np.prod(kernel)), len(space)
    out = [(d + 2 - k) // 2 + 1 for d, k in zip(space, kernel, strict=True)]
    groups, offset_groups = options.get("groups", 1), options.get("offset_groups", 1)
    x, w = draw(1, 2, 8, *space, dtype=dtype), Weight(draw(2, 6, 8 // groups, *kernel, dtype=dtype))
    offset = draw(3, 2, offset_groups * taps * n, *out, dtype=dtype)
    mask = draw(4, 2, offset_groups * taps, *out, dtype=dtype)
    attrs = {"stride": [2] * n, "padding": [1] * n, "dilation": [1] * n, **options}
    layouts = {0: channels_last(x.shape), 2: channels_last(offset.shape)}
    for bias, scale in ((draw(5, 6, dtype=dtype), mask), (None, None)):
        operands = [x, w, offset, bias, scale]
        check_kernel(
            LoopedTasks(DeformedConv()), "deform_convolution", operands, layouts=layouts, split=2, **attrs
        )


@pytest.mark.parametrize("pad_to", [25, 26])
def test_pixels_that_are_not_whole_pairs_apart(pad_to):
    conv(c=8, o=3, size=(9, 9), kernel=(1, 1), pad_to=pad_to, dtype=ml_dtypes.bfloat16)
