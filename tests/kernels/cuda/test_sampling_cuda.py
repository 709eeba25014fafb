"""Resizing, grids, regions and triangles on CUDA: enough threads, and the same values as the interpreter."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.cuda_kernels import call_of, judge, one_node

from xpuruntime.codegen.cuda.target import cuda_target
from xpuruntime.ir import interp
from xpuruntime.kernels.cuda.tasks import KERNELS, ThreadedTasks
from xpuruntime.kernels.kernel import Kernel
from xpuruntime.kernels.portable.tasks import OpTemplate, TemplateKernel
from xpuruntime.kernels.portable.windows import resize
from xpuruntime.testing.emulation.launches import emulate

OWN: dict[str, Kernel] = {op: kernel for kernel in KERNELS for op in kernel.ops}
FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
CROP = {"coordinates": "tf_crop_and_resize", "extrapolation_value": 10.0}
COORDINATES = (
    "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_half_pixel_for_nn"
)
RESIZES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "larger": ((2, 8, 7, 6), {"size": [2, 8, 13, 9]}),
    "smaller": ((2, 8, 7, 6), {"size": [2, 8, 4, 3], "antialias": True}),
    "odd channels": ((1, 5, 7, 6), {"size": [1, 5, 9, 8]}),
    "channels too": ((2, 3, 7, 6), {"size": [2, 5, 8, 8]}),
    "every dim": ((2, 3, 4, 5), {"size": [3, 4, 6, 7]}),
    "line": ((2, 4, 9), {"size": [2, 4, 17]}),
    "volume": ((1, 4, 3, 4, 5), {"size": [1, 4, 5, 6, 7]}),
    "no batch": ((5, 6), {"size": [8, 11]}),
    "one pixel": ((2, 8, 7, 6), {"size": [2, 8, 1, 1]}),
    "same size": ((2, 8, 4, 6), {"size": [2, 8, 4, 6]}),
    "cropped": ((2, 8, 7, 6), {"size": [2, 8, 13, 9], "roi": [0, 0, 0.2, -0.3, 1, 1, 0.8, 1.2], **CROP}),
    "empty": ((0, 8, 7, 6), {"size": [0, 8, 4, 3]}),
    "no channels": ((2, 0, 7, 6), {"size": [2, 0, 14, 3]}),
}


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs also of small images."""
    monkeypatch.setattr(resize, "_MIN_THREADS", 1)


def drawn(shape: tuple[int, ...], dtype: Any, special: bool = False) -> Any:
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape) if np.dtype(dtype).kind not in "iu" else rng.integers(0, 100, shape)
    if special:
        x = np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf, -0.0], shape), x)
    return x.astype(dtype)


def launched(op: str, *operands: Any, innermost: bool = False, **attrs: Any) -> tuple[int, str]:
    """Return the threads of a node's launch, and its text."""
    graph, _, known = one_node(op, operands, **attrs)
    call, to = call_of(graph, known, innermost), cuda_target("cuda:sm_90")
    (stage,) = OWN[op].lower(call, to).stages
    return int(np.prod(stage.options["grid"]) * np.prod(stage.options["block"])), stage.source


@pytest.mark.parametrize("innermost", [True, False], ids=["channels last", "dense"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_position_embedding_has_enough_threads(dtype: Any, innermost: bool) -> None:
    """The case that had 576 threads, which took 335 us on an H200."""
    x, size = np.zeros((1, 768, 16, 16), dtype), [1, 768, 24, 24]
    options = {"mode": "cubic", "antialias": True}
    threads, text = launched("resize", x, innermost=innermost, size=size, **options)
    width = 4 if innermost else 1
    assert 768 * 24 * 24 // width <= threads < 768 * 24 * 24 // width + 128
    assert f"fetch<{width}>" in text


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(("name", "innermost"), [(n, i) for n in RESIZES for i in (True, False)])
def test_threads_of_every_resize(name: str, innermost: bool, mode: str) -> None:
    shape, attrs = RESIZES[name]
    threads, _ = launched("resize", np.zeros(shape, np.float16), innermost=innermost, mode=mode, **attrs)
    assert threads >= np.prod(attrs["size"])  # small: an element each


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(("name", "innermost"), [(n, i) for n in RESIZES for i in (True, False)])
def test_resize(name: str, innermost: bool, mode: str, packed: None) -> None:
    shape, attrs = RESIZES[name]
    if mode == "nearest":
        attrs = {k: v for k, v in attrs.items() if k != "antialias"}
    for special in (False, True):
        x = drawn(shape, np.float16, special)
        judge(OWN["resize"], "resize", x, innermost=innermost, mode=mode, **attrs)


def same_bits(x: Any, innermost: bool, **attrs: Any) -> None:
    """Compare the elements of packs with those of lines, the CPU's text: the interpreter rounds halves otherwise.

    The nearest elements are copied, in lines by functions that only CPUs have, so that they are compared with the interpreter's.
    """
    graph, feeds, known = one_node("resize", [x], **attrs)
    call, to = call_of(graph, known, innermost), cuda_target("cuda:sm_90")
    (got,) = emulate(OWN["resize"].lower(call, to), call, to, feeds)
    if attrs["mode"] == "nearest":
        (want,) = interp.run(graph, feeds).values()
    else:
        template = OpTemplate(resize._resize, resize._resizable)
        lines = ThreadedTasks(TemplateKernel("resize/lines", {"resize": template}))
        (want,) = emulate(lines.lower(call, to), call, to, feeds)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(np.where(np.isnan(got), 0, got), np.where(np.isnan(want), 0, want))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [*FLOATS, np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("innermost", [True, False], ids=["channels last", "dense"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_packs_have_the_values_of_lines(mode: str, innermost: bool, dtype: Any, packed: None) -> None:
    whole = np.dtype(dtype).kind in "iu"
    x = drawn((2, 8, 7, 6), dtype, special=not whole)
    same_bits(x, innermost, mode=mode, size=[2, 8, 13, 9])
    same_bits(x, innermost, mode=mode, size=[2, 8, 3, 11], antialias=mode != "nearest" and not whole)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("coordinates", COORDINATES.split())
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_coordinates(mode: str, coordinates: str, packed: None) -> None:
    x = drawn((2, 8, 7, 6), np.float32)
    options = {"mode": mode, "coordinates": coordinates, "exclude_outside": mode == "cubic"}
    judge(OWN["resize"], "resize", x, innermost=True, size=[2, 8, 4, 9], **options)


@pytest.mark.parametrize("mode", ["nearest", "cubic"])
def test_unaligned_addresses(mode: str, packed: None) -> None:
    x = drawn((2, 8, 7, 6), np.float16)
    judge(OWN["resize"], "resize", x, innermost=True, shift=1, mode=mode, size=[2, 8, 13, 9])


def test_antialias_with_many_taps(packed: None) -> None:
    x = drawn((1, 8, 40, 37), np.float16)
    options = {"mode": "cubic", "antialias": True, "size": [1, 8, 5, 4]}
    judge(OWN["resize"], "resize", x, innermost=True, **options)
    judge(OWN["resize"], "resize", x, **options)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 200, 1 << 16], ids=["one group", "several groups", "a channel each"])
@pytest.mark.parametrize("innermost", [True, False], ids=["channels last", "dense"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample(mode: str, innermost: bool, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize, "_MIN_THREADS", threads)
    x, grid = drawn((2, 11, 5, 6), np.float32), drawn((2, 4, 7, 2), np.float32)
    judge(OWN["grid_sample"], "grid_sample", x, grid, innermost=innermost, mode=mode)


def test_few_grid_positions_have_a_thread_per_channel() -> None:
    x, grid = np.zeros((1, 768, 16, 16), np.float32), np.zeros((1, 3, 3, 2), np.float32)
    assert launched("grid_sample", x, grid, mode="linear")[0] >= 768 * 9


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4)], ids=["no batch", "no channels"])
def test_empty_grids(sizes: tuple[int, int, int]) -> None:
    n, c, side = sizes
    x, grid = drawn((n, c, 5, 6), np.float32), drawn((n, side, side, 2), np.float32)
    judge(OWN["grid_sample"], "grid_sample", x, grid, mode="linear")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("innermost", [True, False], ids=["channels last", "dense"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_regions(dtype: Any, innermost: bool) -> None:
    x = drawn((2, 5, 9, 8), dtype)
    rois = np.array([[0.5, 1, 6, 7.5], [2, 2, 3, 3], [-3, -2, 12, 11], [4, 4, 4, 4]], dtype)
    images = np.array([0, 1, 1, 0], np.int64)
    for options in ({}, {"mode": "max"}, {"sampling_ratio": 2, "spatial_scale": 0.5, "aligned": False}):
        judge(
            OWN["roi_align"], "roi_align", x, rois, images, innermost=innermost, output_size=[3, 2], **options
        )
    boxes = np.concatenate([images[:, None].astype(dtype), rois], 1)
    options = {"output_size": [3, 2], "spatial_scale": 0.7}
    judge(OWN["max_roi_pool"], "max_roi_pool", x, boxes, innermost=innermost, **options)
    assert launched("roi_align", x, rois, images, output_size=[3, 2])[0] >= 4 * 5


@pytest.mark.parametrize("sizes", [(0, 5), (3, 0)], ids=["no regions", "no channels"])
def test_empty_regions(sizes: tuple[int, int]) -> None:
    regions, channels = sizes
    x, rois = drawn((2, channels, 9, 8), np.float32), drawn((regions, 4), np.float32)
    judge(OWN["roi_align"], "roi_align", x, rois, np.zeros(regions, np.int64), output_size=[3, 2])


@pytest.mark.parametrize("op", ["tril", "triu"])
def test_triangles(op: str) -> None:
    for shape in ((5, 7), (2, 4, 6, 5), (0, 3), (3, 0)):
        for dtype in (np.float16, np.int64, np.bool_):
            x = np.random.default_rng(1).integers(0, 2, shape).astype(dtype)
            judge(OWN[op], op, x, diagonal=1)
    judge(OWN[op], op, drawn((2, 4, 6, 5), np.float32, special=True), innermost=True, diagonal=-1)
    assert launched(op, np.zeros((64, 100), np.float32), diagonal=0)[0] >= 6400
