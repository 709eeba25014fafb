"""Convolutions of one output pixel on CUDA: the kernel's own text, run on a CPU by the emulator, against the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, judge, one_node

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.kernels.catalogue import offers
from xpuruntime.kernels.cuda.conv.one_pixel import OnePixel
from xpuruntime.kernels.cuda.matmul import libraries

rng = np.random.default_rng(29)


def array(shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))


def attrs_of(x: tuple[int, ...], **attrs: Any) -> dict[str, Any]:
    n = len(x) - 2
    return {"stride": [1] * n, "padding": [0] * n, "dilation": [1] * n} | attrs


def run(
    x: Any, w: Any, *more: Any, dtype: str = "float16", act: str = "", innermost: bool = True, **attrs: Any
) -> Any:
    operands = [None if s is None else array(s, dtype) for s in (x, w, *more)]
    given = attrs_of(x, **attrs) | ({"act": act} if act else {})
    op = "fused_convolution" if act else "convolution"
    return judge(OnePixel(), op, *operands, weights="1", innermost=innermost, **given)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("sizes", [(144, 12), (12, 144), (8, 8), (1536, 64), (1, 1), (3, 1000), (77, 5)])
def test_squeezed_channels(sizes: tuple[int, int], dtype: str) -> None:
    c, o = sizes
    run((1, c, 1, 1), (o, c, 1, 1), (o,), dtype=dtype, act="silu")
    run((1, c, 1, 1), (o, c, 1, 1), dtype=dtype)


@pytest.mark.parametrize("act", ["relu", "sigmoid", "hardswish", "gelu", "none"])
def test_activations_and_residuals(act: str) -> None:
    run((1, 24, 1, 1), (10, 24, 1, 1), (10,), (1, 10, 1, 1), act=act)
    run((2, 24, 1, 1), (10, 24, 1, 1), None, (2, 10, 1, 1), act=act)
    run((3, 24, 1, 1), (10, 24, 1, 1), (10,), (1, 10, 1, 1), act=act)


@pytest.mark.parametrize("images", [1, 2, 4])
def test_filters_that_cover_an_image(images: int) -> None:
    run((images, 16, 3, 5), (9, 16, 3, 5), (9,), act="relu")
    run((images, 5, 4), (7, 5, 4))
    run((images, 4, 2, 3, 2), (6, 4, 2, 3, 2), (6,))
    run((images, 1, 3, 3), (6, 1, 3, 3), innermost=False)
    run((images, 40, 1, 1), (6, 40, 1, 1), innermost=False, stride=[2, 3])


def test_infinite_and_undefined_values() -> None:
    x, w = array((1, 16, 1, 1), "float16"), array((8, 16, 1, 1), "float16")
    x[0, 3], w[2, 5] = np.inf, np.nan
    judge(OnePixel(), "convolution", x, w, weights="1", innermost=True, **attrs_of(x.shape))


@pytest.mark.parametrize(
    ("x", "w", "innermost", "more"),
    [
        ((1, 8, 2, 2), (8, 8, 1, 1), True, {}),  # four pixels
        ((5, 8, 1, 1), (8, 8, 1, 1), True, {}),  # more images than rows
        ((1, 8, 1, 1), (8, 4, 1, 1), True, {"groups": 2}),
        ((1, 8, 1, 1), (8, 8, 3, 3), True, {"padding": [1, 1]}),
        ((1, 8, 3, 3), (8, 8, 2, 2), True, {"stride": [2, 2]}),  # a filter that leaves pixels out
        ((1, 8, 3, 3), (8, 8, 3, 3), False, {}),  # channels of a pixel are apart
        ((0, 8, 1, 1), (8, 8, 1, 1), True, {}),
        ((1, 0, 1, 1), (8, 0, 1, 1), True, {}),
        ((1, 8, 1, 1), (0, 8, 1, 1), True, {}),
    ],
)
def test_what_it_does_not_support(x: Any, w: Any, innermost: bool, more: dict[str, Any]) -> None:
    graph, _, known = one_node(
        "convolution", [array(x, "float16"), array(w, "float16")], "1", **attrs_of(x, **more)
    )
    answer = OnePixel().supports(call_of(graph, known, innermost), cuda_target("cuda:sm_90"))
    assert not answer
    assert answer.reason


def test_it_precedes_cudnn_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "installed", lambda library: True)
    target = cuda_target("cuda:sm_90")
    for dtype, first in {
        "float16": "conv/gemv",
        "bfloat16": "conv/gemv",
        "float32": "conv/implicit_gemm",
    }.items():
        operands = [array(s, dtype) for s in ((1, 64, 1, 1), (16, 64, 1, 1))]
        graph, _, known = one_node("convolution", operands, "1", **attrs_of((1, 64, 1, 1)))
        assert next(k.name for k, s in offers(call_of(graph, known, True), target) if s) == first
