"""Convolutions with few filters, whose vectors run along output positions, against the interpreter."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from support.convolutions import LEVELS, conv, conv_call, draw

from xpuruntime.codegen.cpp.target import cpu_target
from xpuruntime.kernels.cpu.conv import pixels
from xpuruntime.kernels.cpu.conv.generated import GeneratedConv

PIXELS = {
    "row": {"c": 5, "o": 1, "size": (1211,), "kernel": (7,), "padding": [3]},
    "row, dilated": {"n": 2, "c": 3, "o": 2, "size": (150,), "kernel": (5,), "dilation": [3], "padding": [4, 9]},
    "image": {"n": 2, "c": 9, "o": 1, "size": (13, 37), "padding": [1, 1]},
    "rows apart": {"c": 4, "o": 3, "size": (23, 41), "kernel": (3, 2), "stride": [2, 1], "dilation": [3, 2], "padding": [1, 0, 4, 3]},
    "several tiles of filters": {"c": 6, "o": 11, "size": (7, 70), "padding": [1, 1]},
    "groups": {"c": 12, "o": 6, "size": (11, 40), "groups": 3, "padding": [1, 1]},
    "pointwise": {"n": 2, "c": 33, "o": 2, "size": (9, 19), "kernel": (1, 1)},
    "volume": {"n": 2, "c": 2, "o": 2, "size": (4, 5, 19), "kernel": (3, 2, 3), "stride": [2, 1, 1], "padding": [1, 1, 1]},
    "one channel": {"c": 1, "o": 1, "size": (9, 33), "padding": [1, 1]},
    "several chunks": {"c": 401, "o": 1, "size": (90,), "kernel": (3,), "padding": [1]},
    "long": {"c": 3, "o": 1, "size": (1300,), "kernel": (211,)},
    "beyond both ends": {"c": 2, "o": 3, "size": (2, 3), "kernel": (2, 2), "padding": [5, 90]},
    "cropping": {"c": 8, "o": 2, "size": (9, 60), "padding": [-1, -3, 0, -2]},
    "few positions": {"c": 8, "o": 2, "size": (3, 2), "kernel": (2, 2)},
    "kernel beyond input": {"c": 4, "o": 1, "size": (2, 2), "kernel": (5, 5), "padding": [2, 2]},
}  # fmt: skip
TRANSPOSED_PIXELS = {
    "decoder": {"c": 33, "o": 1, "size": (700,), "kernel": (16,), "stride": [8]},
    "two runs": {"n": 2, "c": 19, "o": 1, "size": (29,), "kernel": (20,), "stride": [8], "padding": [3]},
    "two filters": {"n": 2, "c": 5, "o": 2, "size": (6, 21), "kernel": (4, 5), "stride": [2, 3], "padding": [1, 2]},
    "no stride": {"c": 6, "o": 1, "size": (5, 26), "kernel": (3, 2), "padding": [2, 0], "dilation": [1, 3]},
}  # fmt: skip


class ByPixels(GeneratedConv):
    """The kernel, which must choose vectors of positions for every stage."""

    def lower(self, call, target):
        lowered = super().lower(call, target)
        assert all("conv_pixels" in s.parts for s in lowered.stages)
        return lowered


@pytest.fixture
def by_pixels(monkeypatch):
    """Vectors of positions wherever they are possible."""
    monkeypatch.setattr(pixels, "_MAX_TIME", float("inf"))
    return ByPixels()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", PIXELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_few_filters_on_every_level(level, name, dtype, by_pixels):
    for last in (True, False):
        shape = {"last": last, "dtype": dtype, "target": level, "kernel_row": by_pixels} | PIXELS[name]
        conv(**shape, residual=True, act="relu", split=3)
        conv(**shape, bias=False, pad_to=16 if last else 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", TRANSPOSED_PIXELS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_transposed_ones_with_few_filters(level, name, dtype, by_pixels):
    for last in (True, False):
        shape = {"last": last, "dtype": dtype, "target": level, "kernel_row": by_pixels} | TRANSPOSED_PIXELS[
            name
        ]
        conv(**shape, transposed=True, known_bias=True, residual=True, act="gelu", split=3)
        conv(**shape, transposed=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TRANSPOSED_PIXELS)
def test_transposed_ones_with_few_filters_that_are_computed(name, by_pixels):
    for last in (True, False):
        conv(
            **({"last": last, "kernel_row": by_pixels} | TRANSPOSED_PIXELS[name]),
            transposed=True,
            known=False,
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_few_filters_that_are_computed(dtype, by_pixels):
    for name in ("rows apart", "groups", "several tiles of filters"):
        shape = {"dtype": dtype, "kernel_row": by_pixels} | PIXELS[name]
        computed = conv(**shape, known=False)[0]
        assert (computed == conv(**shape)[0]).all()  # the same order of sums


def test_few_filters_give_the_same_bits_in_any_layout_and_split(by_pixels):
    for name in PIXELS:
        shape = {"kernel_row": by_pixels} | PIXELS[name]
        whole = conv(**shape)[0]
        for seed in range(2):
            assert (conv(**shape, split=seed)[0] == whole).all()
            assert (conv(**shape, split=seed, last=False)[0] == whole).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_in_the_windows_of_few_filters(bad, by_pixels):
    for name in ("row", "image", "groups", "volume"):
        shape = PIXELS[name]
        x = draw(7, shape.get("n", 1), shape["c"], *shape["size"])
        x.reshape(-1)[[0, x.size // 2, -1]] = bad
        for last in (True, False):
            conv(**shape, x=x, last=last, kernel_row=by_pixels)


def test_empty_ones_with_few_filters():
    for last in (True, False):
        conv(n=0, c=6, o=1, size=(50,), kernel=(3,), last=last)
        conv(n=0, c=6, o=1, size=(50,), kernel=(4,), stride=[2], transposed=True, last=last)


@pytest.mark.parametrize("level", LEVELS)
def test_vectors_of_positions_are_chosen_where_they_are_faster(level):
    def runs_along_positions(*shape, last=True, **options):
        call = conv_call(*shape, **options)
        if not last:
            x, w, bias = call.inputs
            call = replace(call, inputs=(replace(x, spec=replace(x.spec, layout=None)), w, bias))
        stages = GeneratedConv().lower(call, cpu_target(level)).stages
        return all("conv_pixels" in s.parts for s in stages)

    wide = {"kernel": (1, 7), "padding": (0, 3)}
    for last in (True, False):
        assert runs_along_positions(1, 32, 1, (1, 8192), **wide, last=last)
        assert runs_along_positions(1, 64, 1, (100, 100), last=last)
        assert not runs_along_positions(1, 32, 1, (1, 8192), **wide, stride=(1, 2), last=last)
        assert not runs_along_positions(1, 64, 64, (56, 56), last=last)
    assert runs_along_positions(1, 1, 1, (100, 100))
    assert not runs_along_positions(1, 1, 16, (100, 100))
    assert not runs_along_positions(
        1, 64, 1, (100, 100), (1, 1), padding=(0, 0)
    )  # channels would be copied for one tap
    assert not runs_along_positions(1, 128, 1, (7, 7))
    decoder = {"kernel": (1, 16), "stride": (1, 8), "padding": (0, 0), "transposed": True}
    assert runs_along_positions(1, 512, 1, (1, 3999), **decoder, last=False)
