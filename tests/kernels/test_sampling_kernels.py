"""Resizing, grids, quantization, casts of 8-bit floats, and tensors made of nothing."""

from __future__ import annotations

import numpy as np
import pytest
from support.kernel_cases import check_cases
from support.kernel_inputs import EVERY, FLOATS, Cases, channels_last, levels

from xpuruntime.ir.interp.quant import fake_quantize
from xpuruntime.ir.interp.resize import grid_sample
from xpuruntime.kernels.cpu import movement
from xpuruntime.kernels.cpu.tasks import LoopedTasks
from xpuruntime.kernels.portable import creation, narrow, quant
from xpuruntime.kernels.portable.windows import resize
from xpuruntime.storage.tensor_files import pack_bits, unpack_bits
from xpuruntime.types import DType

PORTABLE = (*resize.KERNELS, *creation.KERNELS, *quant.KERNELS, *narrow.KERNELS)
KERNELS = (*movement.KERNELS, *(LoopedTasks(k) for k in PORTABLE))
WORDS = "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric tf_half_pixel_for_nn"
PACKED = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")
EIGHT = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize(mode: str) -> None:
    c = Cases(KERNELS)
    for dtype in (*FLOATS, "uint8", "int8"):
        z = c.array(2, 3, 7, 6, dtype=dtype)
        for coordinates in WORDS.split() if dtype in ("float32", "uint8") else WORDS.split()[:1]:
            for size in ([2, 3, 13, 9], [2, 3, 4, 3], [2, 3, 1, 6], [2, 5, 8, 8]):
                nearest = "floor" if size[1] == 5 else "round_prefer_ceil"
                c.add("resize", z, size=size, mode=mode, coordinates=coordinates, nearest=nearest)
                if (
                    mode != "nearest" and dtype in FLOATS
                ):  # halves between integers hang on the last bit of a sum
                    own = {"antialias": True, "exclude_outside": True}
                    c.add("resize", z, size=size, mode=mode, coordinates=coordinates, **own)
        crop = {"coordinates": "tf_crop_and_resize", "roi": [0, 0, 0.2, -0.3, 1, 1, 0.8, 1.2]}
        c.add("resize", z, size=[2, 3, 13, 9], mode=mode, extrapolation_value=10.0, **crop)
        c.add("resize", z, size=[2, 3, 13, 9], scales=[1, 1, 1.9, 1.6], mode=mode)
        have, want = channels_last((2, 3, 7, 6), 8), channels_last((2, 3, 14, 12), 8)
        c.add("resize", z, size=[2, 3, 14, 12], mode=mode, layouts={0: have}, to={0: want})
    assert check_cases(c) == []


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_resizes_of_what_is_not_finite(mode: str, target: str) -> None:
    c = Cases(KERNELS)
    crop = {"coordinates": "tf_crop_and_resize", "roi": [0, 0, 0.2, -0.3, 1, 1, 0.8, 1.2]}
    for dtype in FLOATS:
        z = c.array(2, 3, 7, 6, dtype=dtype)
        z[0, 0, 0, 5], z[0, 1, 3, 2], z[1, 2, 6, 0] = np.inf, np.nan, -np.inf
        for size in ([2, 3, 14, 12], [2, 3, 4, 17], [2, 3, 1, 6]):
            for own in ({}, {"exclude_outside": True}, {"antialias": True}, {"coordinates": "align_corners"}):
                c.add("resize", z, size=size, mode=mode, **own)
            c.add("resize", z, size=size, mode=mode, antialias=True, exclude_outside=True)
            c.add("resize", z, size=size, mode=mode, extrapolation_value=10.0, **crop)
    assert check_cases(c, target=target) == []


@pytest.mark.parametrize("target", levels())
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64"])
def test_nearest_rows_are_repeated_or_copied(target: str, dtype: str) -> None:
    c = Cases(KERNELS)
    rule = {"mode": "nearest", "coordinates": "asymmetric", "nearest": "floor"}
    for width in (1, 5, 33, 131):
        z = c.array(2, 3, 2, width, dtype=dtype)
        for times in (1, 2, 3, 8, 9):
            c.add("resize", z, size=[2, 3, 4, width * times], **rule)
        for odd in (2 * width - 1, 2 * width + 1, width // 2 + 1):
            c.add("resize", z, size=[2, 3, 3, odd], **rule)
        c.add("resize", z, size=[2, 3, 4, width * 2], mode="nearest", coordinates="half_pixel")
        c.add("resize", z[0], size=[3, 2, width * 2], **rule)
        crop = {"coordinates": "tf_crop_and_resize", "roi": [0, 0, 0, 0, 1, 1, 1, 1.5]}
        c.add("resize", z, size=[2, 3, 2, width * 2], mode="nearest", extrapolation_value=3.0, **crop)
    z = c.array(2, 70, 3, 5, dtype=dtype)
    have, want = channels_last(z.shape), channels_last((2, 70, 6, 10))
    c.add("resize", z, size=[2, 70, 6, 10], **rule, layouts={0: have}, to={0: want})
    c.add("resize", z, size=[2, 70, 6, 10], **rule, layouts={0: have})
    c.add("resize", z, size=[2, 70, 6, 10], **rule, to={0: want})
    c.add("resize", z, size=[2, 140, 6, 10], **rule, layouts={0: have})
    assert check_cases(c, target=target) == []


@pytest.mark.parametrize("target", levels())
def test_grids(target: str) -> None:
    c = Cases(KERNELS)
    for dtype in ("float32", "float64"):
        for padding in ("zeros", "border", "reflection"):
            for aligned in (True, False):
                how = {"padding_mode": padding, "align_corners": aligned}
                for mode in ("linear", "nearest", "cubic"):
                    grid = (c.array(2, 4, 7, 2, dtype=dtype) * 1.3).astype(dtype)
                    c.add("grid_sample", c.array(2, 3, 5, 6, dtype=dtype), grid, mode=mode, **how)
                    if mode != "cubic":
                        x, grid = c.array(2, 3, 5, 6, 4, dtype=dtype), c.array(2, 4, 7, 2, 3, dtype=dtype)
                        c.add("grid_sample", x, grid, mode=mode, **how)
        c.add("affine_grid", c.array(2, 2, 3, dtype=dtype), size=[2, 3, 5, 6], align_corners=True)
        c.add("affine_grid", c.array(2, 3, 4, dtype=dtype), size=[2, 3, 5, 6, 1], align_corners=False)
    assert check_cases(c, target=target) == []


@pytest.mark.parametrize("target", levels())
def test_grids_of_many_positions(target: str) -> None:
    """Several strips, in each layout. What is not finite in the image does not reach results that only miss it."""
    c = Cases(KERNELS)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        for mode in ("linear", "nearest", "cubic"):
            for channels, rows, columns in ((3, 19, 23), (37, 5, 1), (16, 1, 9)):
                x, grid = (
                    c.array(2, channels, 6, 5, dtype=dtype),
                    c.array(2, rows, columns, 2, dtype="float32"),
                )
                x[0, 0, 0, 0], x[1, 1, 5, 4] = np.inf, np.nan
                c.add("grid_sample", x, grid.astype(x.dtype), mode=mode)
                last = {
                    "layouts": {0: channels_last(x.shape)},
                    "to": {0: channels_last((2, channels, rows, columns))},
                }
                c.add("grid_sample", x, grid.astype(x.dtype), mode=mode, **last)
                c.add("grid_sample", x, grid.astype(x.dtype), mode=mode, layouts=last["layouts"])
    line, grid = c.array(2, 3, 40), c.array(2, 7, 1)
    c.add("grid_sample", line, grid, mode="linear")
    assert check_cases(c, target=target) == []


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_positions_that_are_no_places(padding: str, mode: str) -> None:
    """NaN, infinite and huge positions give what PyTorch computes, from the interpreter and the kernel."""
    torch = pytest.importorskip("torch")
    c = Cases(KERNELS)
    x, grid = c.array(2, 3, 5, 6), c.array(2, 4, 7, 2)
    odd = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9], np.float32)
    if padding == "reflection":  # float32, as in PyTorch, has no remainder of a huge number
        odd[3:] = np.nan
    grid[0, 0, :6, 0] = grid[0, 1, :6, 1] = odd
    grid[1, 2, :6] = odd[:, None]
    for aligned in (True, False):
        how = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
        c.add("grid_sample", x, grid, **how)
        pytorch = torch.nn.functional.grid_sample(
            torch.from_numpy(x),
            torch.from_numpy(grid),
            **how | {"mode": {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)},
        )
        with np.errstate(invalid="ignore"):
            ours = grid_sample(x, grid, **how)
        np.testing.assert_allclose(ours, pytorch, rtol=1e-4, atol=1e-5)
    assert check_cases(c) == []


@pytest.mark.parametrize("target", levels())
def test_quantize_and_back(target: str) -> None:
    c = Cases(KERNELS)
    for dtype in FLOATS:
        z = (c.array(3, 8, 5, dtype=dtype) * 40).astype(DType(dtype).numpy)
        scale, blocks = (np.abs(c.array(*s, dtype=dtype)) + z.dtype.type(0.1) for s in ((8,), (3, 4, 5)))
        one = scale[0:1].reshape(())
        for kind in ("int8", "uint8", "int16", "uint16", "int32"):
            zero, zeros = c.array(8, dtype=kind), c.array(3, 4, 5, dtype=kind)
            c.add("quantize_linear", z, one, dtype=kind)
            c.add("quantize_linear", z, scale, zero, dtype=kind, axis=1)
            c.add("quantize_linear", z, blocks, zeros, dtype=kind, axis=1, block_size=2)
            c.add("quantize_linear", z, one, dtype=kind, precision="float32")
            q = c.array(3, 8, 5, dtype=kind)
            c.add("dequantize_linear", q, one)
            c.add("dequantize_linear", q, scale, zero, axis=1)
            c.add("dequantize_linear", q, blocks, zeros, axis=1, block_size=2)
        for kind in EIGHT[:4] if dtype != "float64" else ():
            zero = np.zeros(8, DType(kind).numpy)
            for saturate in (True, False):
                c.add("quantize_linear", z, scale, zero, dtype=kind, axis=1, saturate=saturate)
            codes = np.arange(120, dtype=np.uint8).view(DType(kind).numpy).reshape(3, 8, 5)
            c.add("dequantize_linear", codes, scale, zero, axis=1)
        for kind in PACKED if dtype != "float16" else ():  # 3 * 7 * 5 elements end within a byte
            w, own = z[:, :7], DType(kind).numpy
            every = np.resize(np.arange(1 << DType(kind).bits, dtype=np.uint8), 105)
            codes = unpack_bits(pack_bits(every.view(np.int8), DType(kind)), DType(kind), (3, 7, 5))
            zero, zeros = codes[0, :, 0], codes[:, :4]
            c.add("quantize_linear", w, one, dtype=kind)
            c.add("quantize_linear", w, scale[:7], zero, dtype=kind, axis=1)
            c.add("quantize_linear", w, blocks, zeros, dtype=kind, axis=1, block_size=2)
            c.add("dequantize_linear", codes, one)
            c.add("dequantize_linear", codes, scale[:7], zero, axis=1)
            c.add("dequantize_linear", codes, blocks, zeros, axis=1, block_size=2)
            c.add("dequantize_linear", codes[:0].astype(own), one)
        own = np.abs(c.array(8)) + np.float32(0.1)
        for zero in (c.array(8, dtype="int32"), c.array(8)):
            c.add("fake_quantize", z, own, zero, quant_min=-128, quant_max=127, axis=1)
    for z in (c.array(3, 8), np.zeros((3, 8), np.float32), -np.abs(c.array(3, 8))):
        c.add("dynamic_quantize_linear", z)
    assert check_cases(c, target=target) == []


@pytest.mark.parametrize("whole", [True, False])
def test_fake_quantize_of_ties_and_nan(whole: bool) -> None:
    """PyTorch rounds before it adds a zero point that is an integer, and after it adds one that is a float."""
    torch = pytest.importorskip("torch")
    x = np.array([[0.5, 1.5, 2.5, -0.5, -1.5, np.nan, 300, -300]], np.float32)
    scale, zero = np.ones(1, np.float32), np.ones(1, np.int32 if whole else np.float32)
    limits = {"quant_min": 0, "quant_max": 255}
    c = Cases(KERNELS)
    c.add("fake_quantize", x, scale, zero, axis=0, **limits)
    assert check_cases(c) == []
    pytorch = torch.fake_quantize_per_channel_affine(
        torch.from_numpy(x), torch.from_numpy(scale), torch.from_numpy(zero), 0, 0, 255
    )
    numbers = slice(None) if whole else slice(5)  # PyTorch's floats have no code for NaN
    got = fake_quantize(x, scale, zero, axis=0, **limits)
    np.testing.assert_array_equal(got[0, numbers], pytorch[0, numbers])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", EIGHT)
def test_casts_of_eight_bit_floats(kind: str) -> None:
    """Every code, every halfway point between two, what is beyond, NaN, infinities and both zeros."""
    c = Cases(KERNELS)
    own = DType(kind).numpy
    codes = np.arange(256, dtype=np.uint8).view(own)
    for other in (*EIGHT, "float32", "float16", "bfloat16", "float64", "bool"):
        if other != kind:
            c.add("cast", codes, dtype=other)
    special = [
        464,
        464.1,
        463.9,
        480,
        1e9,
        -1e9,
        np.inf,
        -np.inf,
        np.nan,
        0.0,
        -0.0,
        1e-12,
        248,
        61440,
        61439.9,
        2.0**-130,
    ]
    values = np.concatenate([codes.astype(np.float64), special])
    known = np.sort(values[np.isfinite(values)])
    spread = c.rng.standard_normal(2000) * 10.0 ** c.rng.uniform(-6, 6, 2000)
    values = np.concatenate([values, (known[1:] + known[:-1]) / 2, spread])
    for other in FLOATS:
        with np.errstate(all="ignore"):
            given = values.astype(DType(other).numpy)
        for saturate in (True, False):
            for mode in ("up", "down", "nearest") if "e8m0" in kind else (None,):
                c.add("cast", given, dtype=kind, saturate=saturate, **({"round_mode": mode} if mode else {}))
    c.add("cast", np.arange(-300, 300), dtype=kind)
    c.add("cast", np.array([True, False]), dtype=kind)
    assert check_cases(c) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", PACKED)
def test_casts_of_types_below_a_byte(kind: str) -> None:
    """Every code to every type and back, in tensors that end within a byte, and numbers that wrap or round."""
    c = Cases(KERNELS)
    dtype = DType(kind)
    for count in (1, 5, 1 << dtype.bits, (1 << dtype.bits) + 3, 0):
        codes = np.resize(np.arange(1 << dtype.bits, dtype=np.uint8), count)
        values = unpack_bits(pack_bits(codes.view(np.int8), dtype), dtype, (count,))
        for other in (*EVERY, *EIGHT, *PACKED):
            if other != kind:
                c.add("cast", values, dtype=other)
    spread = c.rng.standard_normal(501) * 10.0 ** c.rng.uniform(-2, 20, 501)
    special = [
        0.0,
        -0.0,
        0.25,
        0.75,
        1.75,
        2.5,
        5.0,
        5.1,
        7.0,
        -0.25,
        -5.0,
        -7.5,
        np.inf,
        -np.inf,
        np.nan,
        2.0**63,
        -(2.0**63),
    ]
    for other in (*FLOATS, *EIGHT[:4]):
        with np.errstate(all="ignore"):
            given = np.concatenate([spread, special]).astype(DType(other).numpy)
        c.add("cast", given, dtype=kind)
        if dtype.is_float:
            c.add("cast", given, dtype=kind, saturate=False)
    for other in ("int64", "uint64", "int32", "uint8", "int8"):
        c.add("cast", c.rng.integers(-(2**63), 2**63, (3, 7)).astype(other), dtype=kind)
    c.add("cast", np.array([True, False, True]), dtype=kind)
    c.add("cast", np.array(3.0), dtype=kind)
    copied = unpack_bits(np.arange(7, dtype=np.uint8), dtype, (1, 5))
    c.add("clone", copied)
    c.add("view", copied, size=[5, 1])
    c.add("squeeze", copied, dims=[0])
    c.add("unsqueeze", copied, dims=[0])
    assert check_cases(c) == []


def test_tensors_made_of_nothing() -> None:
    c = Cases(KERNELS)
    for dtype in (*EVERY, "complex64", "float8_e5m2"):
        c.add("full", size=[3, 4], value=1, dtype=dtype)
    for dtype in EVERY:
        c.add("eye", rows=4, columns=6, diagonal=1, dtype=dtype)
        c.add("dropout", c.array(3, 4, dtype=dtype), train=False, outputs=2)
        if dtype != "bool":
            c.add("arange", start=1, end=9, step=2, dtype=dtype)
            at = np.array([[0, 3, -1], [7, -9, 2]]).astype(DType(dtype).numpy)
            c.add("one_hot", at, np.array([2, 5]), depth=5, dim=1)
        if dtype in FLOATS:
            c.add("arange", start=0.5, end=-3.1, step=-0.3, dtype=dtype)
            c.add("full", size=[2], value=float("nan"), dtype=dtype)
            c.add("full", size=[2], value=-2.7, dtype=dtype)
    c.add("dims", values=[3, -4, 5])
    c.add("full", size=[0], value=1, dtype="float32")
    assert check_cases(c) == []


def test_what_draws_is_refused() -> None:
    c = Cases(KERNELS)
    c.add("rand", size=[3])
    c.add("dropout", c.array(3), p=0.5)
    assert [reason for _, reason in check_cases(c)] == [
        f"{op} draws random numbers in a branch or a loop, or without the pass expand_random"
        for op in ("rand", "dropout")
    ]
