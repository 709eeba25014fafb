"""Strided copies: every op, every size of element, layouts on both sides, tiles and tasks of any size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.kernel_cases import check_cases
from support.kernel_inputs import LEVELS, Cases, channels_last

from xpuruntime.kernels.cpu.movement import KERNELS
from xpuruntime.targets import CPU_WIDE

SIZES = ("float32", "int8", "float16", "float64", "complex64", "complex128", "bool", "float8_e5m2")


def every_op(dtype: str) -> Cases:
    c = Cases(KERNELS)
    z = c.array(3, 4, 5, dtype=dtype)
    fill = 0 if dtype == "complex128" else 2
    c.add("permute", z, dims=[2, 0, 1])
    c.add("permute", z, dims=[1, 2, 0])
    c.add("expand", c.array(1, 4, 1, dtype=dtype), size=[2, 3, 4, 5])
    c.add("flip", z, dims=[0, 2])
    c.add("roll", z, shifts=[1, -2], dims=[0, 2])
    c.add("roll", z, shifts=[7], dims=[])
    c.add("repeat", z, repeats=[2, 1, 3, 2])
    c.add("diagonal", z, offset=1, dim1=2, dim2=0)
    c.add("diagonal", z, offset=-1)
    c.add("pad", z, pads=[1, 0, 2, 0, 3, 1], value=fill)
    c.add("pad", z, pads=[-1, 0, 2, 0, -3, 1], mode="replicate")
    c.add("as_strided", z, size=[3, 2], stride=[2, 7], offset=3)
    c.add("split", z, sizes=[1, 2, 1], dim=1)
    c.add("select", z, dim=1, index=-1)
    c.add("slice", z, dim=2, start=1, step=2)
    c.add("view", z, size=[12, 5])
    c.add("cat", z, z[:, :2], dim=1)
    c.add("clone", z)
    return c


def test_every_size_of_element_moves() -> None:
    check_cases([case for dtype in SIZES for case in every_op(dtype)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", LEVELS)
def test_every_op_on_every_level(target: str) -> None:
    c = every_op("float32")
    a = c.array(2, 5, 7, 9)
    for mode in ("reflect", "replicate", "wrap"):
        c.add("pad", a, pads=[1, 2, 3, 4, 0, 1, 6, 5], mode=mode)
        c.add("pad", a, pads=[0, -1, 2, -3, 0, 2, -2, 1], mode=mode)
    c.add("pad", c.array(2, 3), pads=[0, 7, 0, 5], mode="wrap")
    c.add("cat", a, c.array(2, 3, 7, 9), c.array(2, 1, 7, 9), dim=1)
    c.add("cat", c.array(2, 0, 3), c.array(2, 4, 3), dim=1)
    c.add("slice", a, dim=3, start=5, end=2)
    c.add("slice_scatter", a, c.array(2, 5, 3, 9), dim=2, start=1, end=6, step=2)
    c.add("slice_scatter", a, c.array(2, 2, 7, 9), dim=1, start=1, end=3)
    c.add("slice_scatter", a, c.array(2, 1, 7, 1), dim=1, start=1, end=3)
    c.add("select_scatter", a, c.array(2, 7, 9), dim=1, index=2)
    c.add("squeeze", c.array(2, 1, 3), dims=[1])
    c.add("unsqueeze", c.array(2, 3), dims=[0, 2])
    for mode in ("DCR", "CRD"):
        c.add("depth_to_space", c.array(2, 8, 3, 4), block_size=2, mode=mode)
        c.add("space_to_depth", c.array(2, 3, 4, 6), block_size=2, mode=mode)
    c.add("bitcast", c.array(3, 4), dtype="int32")
    check_cases(c, target=target)


def test_empty_tensors_and_scalars() -> None:
    c = Cases(KERNELS)
    for shape in ((0, 3), (), (1,), (5,), (2, 0, 4)):
        c.add("clone", c.array(*shape))
        c.add("flip", c.array(*shape), dims=[0] if shape else [])
        c.add("pad", c.array(*shape), pads=[1] * (2 * len(shape)))
    c.add("slice_scatter", c.array(3, 4), c.array(3, 0), dim=1, start=2, end=2)
    check_cases(c)


def test_layouts_on_both_sides_and_padding_is_zero() -> None:
    c = Cases(KERNELS)
    a = c.array(2, 5, 7, 9)
    plain, padded = channels_last(a.shape), channels_last(a.shape, 16)
    for have in (plain, padded):
        for want in (None, plain, padded):
            out = {} if want is None else {0: want}
            c.add("clone", a, layouts={0: have}, to=out)
            c.add("flip", a, dims=[1, 3], layouts={0: have}, to=out)
            c.add(
                "pad",
                a,
                pads=[0, 0, 1, 1, 0, 0, 1, 1],
                layouts={0: have},
                to={0: channels_last((2, 5, 9, 11), 16)},
            )
            c.add("cat", a, a, dim=1, layouts={0: have}, to={0: channels_last((2, 10, 7, 9), 16)})
        c.add("view", a, size=[2, 5, 63], layouts={0: have})
        halves = {0: channels_last((2, 2, 7, 9), 8), 1: channels_last((2, 3, 7, 9), 8)}
        c.add("split", a, sizes=[2, 3], dim=1, layouts={0: have}, to=halves)
    assert check_cases(c) == []


@pytest.mark.parametrize(("least", "tile"), [(1, 4), (37, 8), (10**6, 64)])
def test_tiles_and_tasks_of_any_size(least: int, tile: int) -> None:
    c = Cases(KERNELS)
    for dtype in ("int8", "float16", "float32", "float64"):
        c.add("permute", c.array(100, 70, dtype=dtype), dims=[1, 0])
        c.add("permute", c.array(3, 50, 70, dtype=dtype), dims=[0, 2, 1])
        c.add("permute", c.array(33, 10, 70, dtype=dtype), dims=[2, 1, 0])
    c.add("clone", c.array(5, 1000))
    check_cases(c, config=replace(CPU_WIDE, max_threadgroup_1d=least, max_threadgroup_2d=tile))


def test_sizes_of_the_target_change_the_code() -> None:
    from xpuruntime.codegen.cpp.target import CppTarget, cpu_target

    c = Cases(KERNELS)
    c.add("permute", c.array(300, 200), dims=[1, 0])
    isa = cpu_target("cpu").isa

    def text(**sizes: int) -> str:
        return c[0].kernel.lower(c[0].call(), CppTarget(isa, replace(CPU_WIDE, **sizes))).stages[0].source

    assert text(max_threadgroup_1d=64) != text(max_threadgroup_1d=100000)
    assert text(max_threadgroup_2d=8) != text(max_threadgroup_2d=32)


def test_what_cannot_move_says_why() -> None:
    c = Cases(KERNELS)
    c.add("pad", c.array(2, 3, dtype="complex128"), pads=[1, 0, 0, 0], value=1)
    c.add("as_strided", np.arange(6, dtype=np.float32), size=[4], stride=[2], offset=0)
    assert [reason for _, reason in check_cases(c)] == [
        "complex128 can only be padded with zeros",
        "as_strided needs a dense operand and indices within it",
    ]


@pytest.mark.parametrize("target", LEVELS)
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "float64"])
def test_reversed_rows_and_every_other_element(target: str, dtype: str) -> None:
    c = Cases(KERNELS)
    for width in (1, 2, 3, 9, 17, 33, 64, 65, 131, 320):
        z = c.array(3, width, dtype=dtype)
        c.add("flip", z, dims=[1])
        c.add("flip", z, dims=[0, 1])
        for step in (2, 3):
            c.add("slice", z, dim=1, start=0, step=step)
            c.add("slice", z, dim=1, start=1, step=step)
    check_cases(c, target=target)
