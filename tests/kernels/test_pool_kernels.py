"""Pool kernels against the interpreter: windows at every border, every dtype, layout and instruction set."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from support.one_kernel import channels_last, check_kernel

from xpuruntime.kernels.cpu.pool import CpuPool
from xpuruntime.kernels.cpu.tasks import LoopedTasks
from xpuruntime.kernels.portable.windows.pool_regions import MaxUnpool, RegionPool

LEVELS = ("cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:x86-64-v4+bf16")
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def draw(*shape, dtype=np.float32):
    values = np.random.default_rng(0).standard_normal(shape) * (1 if np.dtype(dtype).kind in "fV" else 50)
    return values.astype(dtype)


def layouts(x, space, last):
    return {0: channels_last(x.shape)} if last and x.ndim == space + 2 else {}


def pool(op, x, *, kernel=(3, 3), stride=None, padding=None, dilation=None, ceil=False, last=True, **options):
    n = len(kernel)
    window = {
        "kernel_size": list(kernel),
        "stride": list(stride or kernel),
        "padding": list(padding or [0] * n),
        "dilation": list(dilation or [1] * n),
        "ceil_mode": ceil,
    }
    given = layouts(x, n, last)
    return check_kernel(CpuPool(), op, [x], layouts=given, **window, **options)


WINDOWS = {
    "plain": {},
    "overlap": {"stride": (2, 2), "padding": [1, 1]},
    "uneven": {"kernel": (3, 2), "stride": (2, 1), "padding": [0, 1, 1, 0]},
    "dilated": {"kernel": (2, 3), "stride": (1, 2), "dilation": (3, 2), "padding": [1, 1]},
    "ceil": {"kernel": (3, 3), "stride": (2, 2), "ceil": True, "padding": [1, 1]},
    "ceil beyond": {"kernel": (2, 2), "stride": (3, 3), "ceil": True},
    "cropping": {"kernel": (2, 2), "stride": (2, 2), "padding": [-1, 0, -2, -1]},
    "cropping beyond": {"stride": (2, 3), "ceil": True, "padding": [1, 0, -2, -2]},
    "whole": {"kernel": (9, 8)},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
    x = draw(2, 85, 9, 8)
    window = WINDOWS[name]
    pool("max_pool", x, **window, split=3)
    pool("avg_pool", x, **window, split=4)
    pool("avg_pool", x, **window, last=False, count_include_pad=False)
    pool("lp_pool", x, **window, p=2.0)


@pytest.mark.parametrize("options", [{"count_include_pad": False}, {"divisor": 5}, {}])
def test_divisors_of_means(options):
    pool("avg_pool", draw(1, 20, 9, 8), **WINDOWS["ceil"], **options)


@pytest.mark.parametrize("power", [1.0, 3.0, 0.5])
def test_norms_of_any_power(power):
    pool("lp_pool", draw(1, 20, 9, 8), **WINDOWS["overlap"], p=power)


@pytest.mark.parametrize("over", ["plane", "tensor", "tensor_column_major"])
def test_places_of_maxima(over):
    x = np.round(draw(2, 21, 7, 8))  # equal values: the first place counts
    x[0, 3] = -np.inf
    x[1, 4, 2, 2] = x[1, 4, 2, 3] = np.nan
    for last in (True, False):
        pool("max_pool", x, stride=(2, 1), padding=[1, 1], indices_over=over, last=last, outputs=2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("level", "dtype"), itertools.product(LEVELS, [*FLOATS, np.int32, np.uint8]))
def test_vectors_along_rows(level, dtype):
    """Windows up to five elements apart in rows of any length, with taps outside at either end, and numbers that are none."""
    for width, stride, op in (
        (12, 1, "avg_pool"),
        (83, 2, "max_pool"),
        (45, 3, "avg_pool"),
        (83, 4, "max_pool"),
        (45, 5, "max_pool"),
    ):
        x = draw(2, 3, 4, width, dtype=dtype)
        if np.dtype(dtype).kind in "fV":
            x[0, 1, 2, width // 2], x[1, 2, 3, width - 1], x[1, 0, 0, 0] = np.nan, np.inf, -np.inf
        window = {"kernel": (2, 3), "stride": (1, stride), "dilation": (1, 1 + stride % 2)}
        pool(op, x, padding=[1, -1, 0, 2], ceil=True, last=False, target=level, **window)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("level", "dtype"), itertools.product(LEVELS, FLOATS))
def test_every_level_and_dtype(level, dtype):
    x = draw(1, 37, 6, 5, dtype=dtype)
    for op in ("max_pool", "avg_pool"):
        pool(op, x, stride=(1, 2), padding=[1, 1], target=level)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
)
def test_integers(dtype):
    x = np.abs(draw(1, 70, 5, 6, dtype=np.int64)).astype(dtype)
    pool("max_pool", x, padding=[1, 1])
    pool("avg_pool", x, padding=[1, 1])


def test_bool_has_maxima():
    pool("max_pool", draw(1, 7, 5, 6) > 1, padding=[1, 1])


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ((2, 5, 9), (3,)),
        ((5, 9), (3,)),
        ((1, 20, 4, 5, 6), (2, 3, 2)),
        ((6, 5, 7), (2, 2)),
        ((0, 3, 5, 5), (2, 2)),
    ],
)
def test_other_ranks(shape, kernel):
    for op in ("max_pool", "avg_pool"):
        pool(op, draw(*shape), kernel=kernel)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(1, 1), (3, 2), (7, 7), (5, 9)])
@pytest.mark.parametrize("op", ["adaptive_avg_pool", "adaptive_max_pool"])
def test_adaptive(op, size):
    x = draw(2, 67, 7, 6)
    for last in (True, False):
        check_kernel(CpuPool(), op, [x], layouts=layouts(x, 2, last), output_size=list(size), split=2)
    check_kernel(CpuPool(), op, [draw(3, 8)], output_size=[3])
    check_kernel(CpuPool(), op, [draw(1, 3, 8, 5, 6)], output_size=[3, 5, 2])


def test_no_number_stays_in_its_windows():
    x = draw(1, 20, 6, 6)
    x[0, 3, 0, 5], x[0, 17, 4, 0], x[0, 5, 2, 2] = np.nan, np.inf, -np.inf
    for op in ("max_pool", "avg_pool"):
        pool(op, x, stride=(1, 1), padding=[1, 1])


def test_nothing_is_written_beyond_the_channels():
    x = draw(1, 5, 6, 6)
    out = {0: channels_last((1, 5, 2, 2), 16)}
    window = {"kernel_size": [3, 3], "stride": [3, 3], "padding": [0, 0], "dilation": [1, 1]}
    check_kernel(
        CpuPool(), "avg_pool", [x], layouts={0: channels_last(x.shape, 16)}, out_layouts=out, **window
    )


@pytest.mark.parametrize("over", ["plane", "tensor"])
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_unpool(over, dtype):
    x = draw(2, 3, 2, 4, dtype=dtype)
    total = 30 if over == "plane" else 2 * 3 * 30
    at = np.random.default_rng(1).integers(0, total, x.shape)
    for last in (True, False):
        out = {0: channels_last((2, 3, 5, 6))} if last else {}
        check_kernel(
            LoopedTasks(MaxUnpool()), "max_unpool", [x, at], out_layouts=out, layouts=layouts(x, 2, last), output_size=[5, 6],
            indices_over=over,
        )  # fmt: skip


@pytest.mark.parametrize(
    "options", [{}, {"mode": "max"}, {"aligned": False}, {"sampling_ratio": 2, "spatial_scale": 0.5}]
)
def test_regions(options):
    x = draw(2, 3, 9, 8)
    rois = np.array([[0.5, 1, 6, 7.5], [2, 2, 3, 3], [-3, -2, 12, 11], [4, 4, 4, 4]], np.float32)
    images = np.array([0, 1, 1, 0], np.int64)
    check_kernel(
        LoopedTasks(RegionPool()),
        "roi_align",
        [x, rois, images],
        layouts=layouts(x, 2, True),
        output_size=[3, 2],
        **options,
    )
    whole = np.concatenate([images[:, None].astype(np.float32), rois], 1)
    check_kernel(LoopedTasks(RegionPool()), "max_roi_pool", [x, whole], output_size=[3, 2], spatial_scale=0.7)


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "dense"])
def test_indices_of_nan_are_those_of_pytorch(last):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    x = rng.integers(-2, 3, (2, 8, 9, 11)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = np.nan
    x[rng.random(x.shape) < 0.1] = -np.inf
    window = {
        "kernel_size": [3, 3],
        "stride": [2, 2],
        "padding": [1, 1],
        "dilation": [1, 1],
        "ceil_mode": False,
    }
    values, places = check_kernel(
        CpuPool(), "max_pool", [x], layouts=layouts(x, 2, last), outputs=2, **window
    )
    wanted = torch.nn.functional.max_pool2d(torch.from_numpy(x), 3, 2, 1, return_indices=True)
    np.testing.assert_array_equal(values, wanted[0].numpy())
    np.testing.assert_array_equal(places, wanted[1].numpy())


HALVES = (np.float16, ml_dtypes.bfloat16)
PARTNERS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan, 1e-7, -1e-7)


def exact_maxima(x, axis):
    """Maxima of 16-bit floats, by NumPy in float32: NaN wins."""
    return np.max(x.astype(np.float32), axis)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:invalid value")  # of NumPy, which casts signaling NaNs
@pytest.mark.parametrize(
    ("level", "dtype", "last"), itertools.product(LEVELS, HALVES, (True, False)), ids=str
)
def test_maxima_of_every_half(level, dtype, last):
    """Every pattern of 16 bits, that is NaNs of both signs, zeros, infinities and subnormal numbers, next to values of each kind."""
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    partners = np.array(PARTNERS, dtype)
    assert {bool(s) for s in np.signbit(partners[6:8])} == {False, True}  # NaNs of both signs
    pairs = np.stack([np.stack((every, np.full_like(every, p)), -1) for p in partners])
    x = np.concatenate([pairs, pairs[..., ::-1]])
    (y,) = pool("max_pool", x, kernel=(2,), target=level, last=last)
    np.testing.assert_array_equal(y[..., 0].astype(np.float32), exact_maxima(x, -1))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("dtype", "name"), itertools.product(HALVES, WINDOWS), ids=str)
def test_maxima_of_halves_are_those_of_pytorch(dtype, name):
    torch = pytest.importorskip("torch")
    window = {
        "kernel": (3, 3),
        "stride": None,
        "padding": [0, 0],
        "dilation": (1, 1),
        "ceil": False,
    } | WINDOWS[name]
    rng = np.random.default_rng(3)
    for channels in (1, 7, 16, 23, 40, 75, 150):
        x = -np.abs(draw(2, channels, 9, 8, dtype=dtype))  # negative but for a few values
        for value in (np.nan, -np.nan, np.inf, -0.0, 0.0, 2.0):
            x[rng.random(x.shape) < 0.02] = value
        x[rng.random(x.shape) < 0.3] = -np.inf
        for last in (True, False):
            (y,) = pool("max_pool", x, **window, last=last, split=channels)
            if len(window["padding"]) == 2 and min(window["padding"]) >= 0:
                k, s, p, d = window["kernel"], window["stride"], window["padding"], window["dilation"]
                wide = torch.from_numpy(x.astype(np.float32))
                wanted = torch.nn.functional.max_pool2d(wide, k, s, p, d, window["ceil"]).numpy()
                np.testing.assert_array_equal(y.astype(np.float32), wanted)
