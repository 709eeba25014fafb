"""Depthwise convolutions on CUDA: the kernel's own text, run on a CPU by the emulator, against the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, judge, one_node

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.kernels.cuda.conv import depthwise as conv_depthwise
from xpuruntime.kernels.cuda.conv.depthwise import Depthwise
from xpuruntime.kernels.cuda.conv.generated import KERNELS, ImplicitGemm
from xpuruntime.types import DType

rng = np.random.default_rng(23)
TILES = [(2, 4), (1, 4), (1, 2), (1, 1)]


def array(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))


def run(x: Any, w: Any, *more: Any, dtype: str = "bfloat16", act: str = "", **attrs: Any) -> None:
    n = len(x) - 2
    given = {
        "stride": [1] * n,
        "padding": [0] * n,
        "dilation": [1] * n,
        "groups": x[1],
        "innermost": True,
    } | attrs
    operands = [None if s is None else array(s, dtype) for s in (x, w, *more)]
    if act:
        given["act"] = act
    judge(Depthwise(), "fused_convolution" if act else "convolution", *operands, weights="1", **given)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_tiles_of_every_size(tile: tuple[int, int], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_depthwise, "_tile", lambda s, width: tile)
    run((2, 16, 7, 9), (16, 1, 3, 3), (16,), padding=[1, 1], dtype=dtype)
    run((1, 16, 11, 10), (16, 1, 5, 5), padding=[2, 2], stride=[2, 2], dtype=dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", TILES)
def test_windows_of_all_kinds(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_depthwise, "_tile", lambda s, width: tile)
    run((1, 8, 9, 9), (8, 1, 7, 7), padding=[3, 3])
    run((1, 8, 12, 13), (8, 1, 3, 2), padding=[0, 1, 2, 3], stride=[2, 3], dilation=[3, 2])
    run((1, 8, 12, 11), (8, 1, 3, 3), padding=[2, 2], dilation=[2, 2])
    run((3, 24, 21), (24, 1, 3), (24,), padding=[1])


def test_channels_that_are_no_whole_pack_and_memory_that_starts_anywhere() -> None:
    run((2, 6, 7, 9), (6, 1, 3, 3), (6,), padding=[1, 1])
    run((2, 7, 5, 5), (7, 1, 3, 3), padding=[1, 1])
    run((1, 16, 8, 8), (16, 1, 3, 3), padding=[1, 1], shift=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("act", ["relu6", "silu", "hardswish", "gelu"])
def test_epilogue_of_bias_residual_and_activation(act: str) -> None:
    run((1, 16, 6, 6), (16, 1, 3, 3), (16,), (1, 16, 6, 6), padding=[1, 1], act=act, dtype="float32")
    run((1, 16, 6, 6), (16, 1, 3, 3), (16,), None, padding=[1, 1], act=act)


def test_what_is_no_number_stays_in_the_windows_that_see_it() -> None:
    x = array((1, 8, 7, 8), "float32")
    x[0, 2, 3, 3], x[0, 5, 0, 0] = np.nan, np.inf
    w = array((8, 1, 3, 3), "float32")
    given = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 8, "innermost": True}
    judge(Depthwise(), "convolution", x, w, weights="1", **given)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("filters", [2, 3, 4, 5, 6, 8, 16])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_several_filters_per_channel(filters: int, dtype: str) -> None:
    many = filters * 8
    run((2, 8, 7, 9), (many, 1, 3, 3), (many,), padding=[1, 1], stride=[2, 2], dtype=dtype)
    run((1, 8, 6, 5), (many, 1, 3, 2), padding=[0, 1, 2, 3], dilation=[2, 1], dtype=dtype)
    run((2, 5, 9), (filters * 5, 1, 3), (filters * 5,), padding=[1], dtype=dtype)
    run((1, 3, 5, 5), (filters * 3, 1, 3, 3), padding=[1, 1], dtype=dtype)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tile", TILES)
def test_tiles_of_several_filters_per_channel(tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_depthwise, "_tile", lambda s, width: tile)
    for filters in (2, 3, 16):
        run((1, 8, 7, 9), (filters * 8, 1, 3, 3), padding=[1, 1])
        run((1, 8, 9, 10), (filters * 8, 1, 5, 5), padding=[2, 2], stride=[2, 2], dtype="float32")


@pytest.mark.parametrize("filters", [2, 3, 16])
def test_memory_that_starts_anywhere_with_several_filters_per_channel(filters: int) -> None:
    x, w = array((1, 8, 5, 6), "float16"), array((filters * 8, 1, 3, 3), "float16")
    given = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 8, "innermost": True}
    for shift in (1, 2, 3, 4):
        judge(Depthwise(), "convolution", x, w, weights="1", shift=shift, **given)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("act", ["relu6", "silu", "hardswish", "gelu"])
def test_epilogue_of_several_filters_per_channel(act: str) -> None:
    run((2, 8, 6, 6), (16, 1, 3, 3), (16,), (2, 16, 6, 6), padding=[1, 1], act=act)
    run((2, 8, 6, 6), (24, 1, 3, 3), (24,), (1, 24, 1, 1), padding=[1, 1], act=act, dtype="float32")
    run((2, 7, 6, 6), (14, 1, 3, 3), None, (2, 14, 6, 6), padding=[1, 1], act=act)


def test_no_images_and_several_filters_per_channel() -> None:
    run((0, 8, 6, 6), (16, 1, 3, 3), (16,), padding=[1, 1])


@pytest.mark.parametrize("filters", [2, 3])
def test_what_is_no_number_stays_in_the_filters_of_its_channel(filters: int) -> None:
    x = array((1, 8, 7, 8), "float32")
    x[0, 2, 3, 3], x[0, 5, 0, 0], x[0, 7, 6, 7] = np.nan, np.inf, -np.inf
    w = array((filters * 8, 1, 3, 3), "float32")
    given = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 8, "innermost": True}
    got = judge(Depthwise(), "convolution", x, w, weights="1", **given)
    strange = np.flatnonzero(~np.isfinite(np.asarray(got)).all(axis=(0, 2, 3)))
    assert strange.tolist() == [c * filters + i for c in (2, 5, 7) for i in range(filters)]


@pytest.mark.parametrize(
    ("dtype", "filters", "width", "loads"),
    [
        ("float16", 1, 8, (8, 8)), ("float16", 2, 8, (4, 4)), ("float16", 8, 8, (1, 1)), ("float16", 16, 8, (1, 1)),
        ("float16", 3, 8, (8, 1)), ("float16", 6, 8, (4, 1)), ("float32", 2, 4, (2, 2)), ("float64", 4, 2, (1, 1)),
    ],
)  # fmt: skip
def test_results_of_a_thread_share_channels(
    dtype: str, filters: int, width: int, loads: tuple[int, int]
) -> None:
    s = shape_of((1, 8, 9, 9), (filters * 8, 1, 3, 3), dtype)
    assert conv_depthwise._width(s, DType.of(np.dtype(dtype))) == width
    assert conv_depthwise._loads(s, width) == loads


def shape_of(x: tuple[int, ...], w: tuple[int, ...], dtype: str) -> conv_depthwise.ConvShape:
    graph, _, known = one_node(
        "convolution", [np.zeros(x, dtype), np.zeros(w, dtype)], "1", stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=x[1]
    )  # fmt: skip
    return conv_depthwise.ConvShape.of(call_of(graph, known, innermost=True))


def test_a_thread_has_as_many_outputs_as_leave_the_device_busy() -> None:
    def tile(images: int, size: int, channels: int, kernel: int, dtype: str = "bfloat16") -> tuple[int, int]:
        shape = (images, channels, size, size)
        operands = [
            np.zeros(s, getattr(ml_dtypes, dtype, dtype)) for s in (shape, (channels, 1, kernel, kernel))
        ]
        graph, _, known = one_node(
            "convolution",
            operands,
            "1",
            stride=[1, 1],
            padding=[kernel // 2] * 2,
            dilation=[1, 1],
            groups=channels,
        )
        call = call_of(graph, known, innermost=True)
        s = conv_depthwise.ConvShape.of(call)
        return conv_depthwise._tile(s, conv_depthwise._width(s, call.outputs[0].dtype))

    assert tile(1, 7, 1152, 5) == (1, 1)
    assert tile(32, 112, 32, 3) == (2, 4)


def test_what_it_leaves_to_others() -> None:
    def said(x: Any, w: Any, known: str = "1", **attrs: Any) -> str:
        n = len(x) - 2
        given = {"stride": [1] * n, "padding": [0] * n, "dilation": [1] * n, "groups": x[1]} | attrs
        graph, _, names = one_node("convolution", [array(s, "float32") for s in (x, w)], known, **given)
        call = call_of(graph, names, innermost=attrs.get("groups", 0) != 1)
        return str(Depthwise().supports(call, cuda_target("cuda:sm_90")).reason)

    assert not said((1, 8, 9, 9), (16, 1, 3, 3))
    assert not said((1, 8, 9, 9), (128, 1, 5, 5))
    assert not said((1, 8, 20, 20), (64, 1, 11, 11))
    assert "at most 25 taps" in said((1, 8, 9, 9), (128, 1, 7, 7))
    grouped = "only depthwise convolutions, which have one input channel per group, are supported"
    assert said((1, 8, 9, 9), (8, 4, 3, 3), groups=2) == said((1, 1, 9, 9), (4, 1, 3, 3), groups=1) == grouped
    assert "at most 11 taps" in said((1, 8, 20, 20), (8, 1, 13, 13))
    assert said((1, 8, 9, 9), (8, 1, 3, 3), known="") == "the filters must be constant and dense"
    assert [k.name for k in KERNELS] == ["conv/depthwise", "conv/gemv", "conv/cudnn", "conv/implicit_gemm"]


def test_it_precedes_the_product_in_float32() -> None:
    def leads(x: tuple[int, ...], w: tuple[int, ...], groups: int) -> bool:
        operands = [np.zeros(s, "float32") for s in (x, w)]
        graph, _, known = one_node(
            "convolution", operands, "1", stride=[1, 1], padding=[1, 1], dilation=[1, 1], groups=groups
        )
        return ImplicitGemm().leads(call_of(graph, known, innermost=True), cuda_target("cuda:sm_90"))

    assert not leads((1, 8, 9, 9), (32, 1, 3, 3), 8)
    assert leads((1, 8, 15, 15), (32, 1, 13, 13), 8)  # more taps than conv/depthwise has
    assert leads((1, 8, 9, 9), (32, 4, 3, 3), 2)
    assert leads((1, 1, 9, 9), (32, 1, 3, 3), 1)
