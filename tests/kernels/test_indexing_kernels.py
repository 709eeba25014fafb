"""Gathers, scatters and what moves by a rule of its own place; an index outside is reported and touches nothing."""

from __future__ import annotations

import numpy as np
import pytest
from support.kernel_cases import check_cases
from support.kernel_inputs import EVERY, LEVELS, Cases, channels_last, levels

from xpuruntime.kernels.cpu import movement
from xpuruntime.kernels.cpu.tasks import LoopedTasks
from xpuruntime.kernels.portable import rearrange

KERNELS = (*movement.KERNELS, *(LoopedTasks(k) for k in rearrange.KERNELS))


def reads_and_writes(dtype: str, index: str) -> Cases:
    c = Cases(KERNELS)
    z = c.array(4, 5, 6, dtype=dtype)
    for dim in range(3):
        at = c.places(z.shape[dim], 3, 5, 4, dtype=index)
        c.add("gather", z, at, dim=dim)
        c.add("scatter", z, at, c.array(4, 5, 5, dtype=dtype), dim=dim)
        c.add("index_select", z, c.places(z.shape[dim], 2, 3, dtype=index), dim=dim)
        part = [7 if i == dim else d for i, d in enumerate(z.shape)]
        c.add("index_copy", z, c.places(z.shape[dim], 7, dtype=index), c.array(*part, dtype=dtype), dim=dim)
    c.add("gather_nd", z, c.places(4, 3, 2, 2, dtype=index))
    c.add("gather_nd", z, c.places(4, 4, 2, 1, dtype=index), batch_dims=1)
    c.add("scatter_nd", z, c.places(4, 3, 7, 2, dtype=index), c.array(3, 7, 6, dtype=dtype))
    c.add("index", z, None, c.places(5, 3, 1, dtype=index), c.places(6, 4, dtype=index))
    c.add("index", z, c.places(4, 3, 1, dtype=index), None, c.places(6, 4, dtype=index))
    c.add("index", z, c.places(4, 2, dtype=index))
    c.add(
        "index_put",
        z,
        c.array(4, dtype=dtype),
        None,
        c.places(5, 9, 4, dtype=index),
        c.places(6, 4, dtype=index),
    )
    return c


@pytest.mark.sampled(1)
@pytest.mark.parametrize("index", ["int64", "int32", "uint8"])
def test_every_size_of_element_and_index(index: str) -> None:
    dtypes = ("float32", "int8", "float16", "float64", "complex64", "complex128", "bool")
    assert check_cases([case for dtype in dtypes for case in reads_and_writes(dtype, index)]) == []


@pytest.mark.parametrize("target", LEVELS)
def test_every_level(target: str) -> None:
    check_cases(reads_and_writes("float32", "int64"), target=target)


def test_reductions_at_places() -> None:
    c = Cases(KERNELS)
    for dtype in ("float32", "float64", "int32", "uint8", "int64", "bool"):
        z = c.array(4, 5, 6, dtype=dtype)
        for how in ("add", "mul", "amax", "amin"):
            for own in (True, False):
                src = c.array(4, 9, 5, dtype=dtype)
                c.add("scatter", z, c.places(5, 3, 9, 4), src, dim=1, reduce=how, include_self=own)
            c.add("scatter_nd", z, c.places(4, 3, 7, 2), c.array(3, 7, 6, dtype=dtype), reduce=how)
        c.add("index_put", z, c.array(4, 6, dtype=dtype), c.places(4, 9, 4), c.places(5, 4), accumulate=True)
        c.add("scatter", z, c.places(5, 3, 9, 4), 2, dim=1)
        c.add("scatter", z, c.places(5, 3, 9, 4), 3, dim=1, reduce="add")
    assert check_cases(c) == []


def test_an_index_outside_is_reported() -> None:
    c = Cases(KERNELS)
    z = c.array(3, 4)
    c.add("gather", z, np.array([[0, 5, 1, 2]]), dim=0)
    c.add("index_select", z, np.array([-4]), dim=0)
    c.add("scatter", z, np.array([[9]]), c.array(1, 1), dim=0)
    c.add("scatter_nd", z, np.array([[3]]), c.array(1, 4))
    c.add("index", z, np.array([2**40]))
    c.add("reverse_sequence", z, np.array([2, 3, 5]), time_dim=1, batch_dim=0)
    c.add("masked_scatter", z, np.ones((3, 4), bool), c.array(5))
    c.add("tensor_scatter", c.array(2, 5, 3), c.array(2, 2, 3), np.array([0, 4]), dim=1)
    assert check_cases(c) == []


def test_scalars_stand_for_vectors_of_one() -> None:
    c = Cases(KERNELS)
    c.add("gather", c.array(), c.places(1), dim=0)
    c.add("index_select", c.array(), c.places(1), dim=0)
    c.add("scatter", c.array(), c.places(1), c.array(), dim=0)
    c.add("index_copy", c.array(), c.places(1), c.array(), dim=0)
    assert check_cases(c) == []


def test_layouts() -> None:
    c = Cases(KERNELS)
    z = c.array(2, 6, 4, 5)
    plain, padded = channels_last(z.shape), channels_last(z.shape, 8)
    c.add("index_select", z, c.places(6, 6), dim=1, layouts={0: plain}, to={0: padded})
    c.add("index_select", z, c.places(5, 5), dim=3, layouts={0: padded}, to={0: padded})
    c.add("gather", z, c.places(6, 2, 6, 4, 5), dim=1, layouts={0: padded}, to={0: plain})
    c.add("index_copy", z, c.places(6, 2), c.array(2, 2, 4, 5), dim=1, layouts={0: plain}, to={0: padded})
    c.add("tril", z, layouts={0: plain}, to={0: padded})
    assert check_cases(c) == []


def test_sums_of_narrow_floats_are_refused() -> None:
    c = Cases(KERNELS)
    c.add(
        "scatter",
        c.array(3, dtype="float16"),
        c.places(3, 2),
        c.array(2, dtype="float16"),
        dim=0,
        reduce="add",
    )
    c.add("scatter", c.array(3), c.places(3, 2), c.array(2), dim=0, reduce="mean")
    assert [reason for _, reason in check_cases(c)] == [
        "float16 would round after each addition; reduce in a wider type",
        "scatter with reduce='mean' is not implemented",
    ]


@pytest.mark.parametrize("target", levels())
def test_rules_of_their_own_place(target: str) -> None:
    c = Cases(KERNELS)
    for dtype in EVERY if target == "cpu" else EVERY[:4]:
        z = c.array(3, 7, 5, dtype=dtype)
        for k in (-2, 0, 1):
            c.add("tril", z, diagonal=k)
            c.add("triu", z, diagonal=k)
        c.add("reverse_sequence", z, np.array([1, 5, 7]), time_dim=1, batch_dim=0)
        c.add("reverse_sequence", z, np.array([1, 0, 3, 3, 2], np.int32), time_dim=0, batch_dim=2)
        c.add("masked_scatter", z, c.rng.random((7, 1)) > 0.5, z)
        c.add("masked_scatter", z, c.rng.random((3, 7, 5)) > 0.5, z)
        for mode in ("linear", "circular"):
            c.add("tensor_scatter", z, z[:, :3], np.array([0, 2, 4]), dim=1, mode=mode)
            c.add("tensor_scatter", z, z[:, :3], dim=1, mode=mode)
        c.add("tensor_scatter", z[:, :3], z, np.array([0, 2, -4]), dim=1, mode="circular")
        both = np.stack([z, z[::-1]])
        c.add("im2col", both, kernel_size=[3, 2], stride=[2, 1], padding=[1, 1], dilation=[1, 2])
        c.add("im2col", both, kernel_size=[2, 2], stride=[1, 1], padding=[0, 1, 2, 0], dilation=[1, 1])
        if dtype not in ("bool", "int64", "uint64"):
            window = {"output_size": [6, 7], "kernel_size": [2, 3], "dilation": [1, 1]}
            c.add("col2im", c.array(2, 12, 25, dtype=dtype), stride=[1, 1], padding=[0, 0], **window)
            c.add("col2im", c.array(2, 12, 16, dtype=dtype), stride=[2, 2], padding=[1, 1], **window)
    assert check_cases(c, target=target) == []


@pytest.mark.parametrize("target", levels())
def test_rows_of_windows_and_triangles(target: str) -> None:
    """Rows that are shorter and longer than vectors, windows that are partly or wholly in the padding, any number of spatial dims."""
    c = Cases(KERNELS)
    for dtype in ("float32", "uint8", "bfloat16", "float64"):
        for width in (1, 5, 70, 131):
            z = c.array(3, 4, width, dtype=dtype)
            for k in (-(2**62), -3, 2, width - 1, 2**62):
                c.add("tril", z, diagonal=k)
                c.add("triu", z, diagonal=k)
            for kernel, stride, padding, dilation in (
                ((1, 1), (1, 1), (0, 0), (1, 1)),
                ((3, 5), (1, 1), (1, 2), (1, 1)),
                ((2, 3), (1, 2), (1, 3), (2, 3)),
                ((2, 2), (3, 3), (2, 9), (1, 7)),
                ((2, 1), (1, 200), (1, 0), (1, 1)),
            ):
                window = {"kernel_size": kernel, "stride": stride, "padding": padding, "dilation": dilation}
                c.add(
                    "im2col", c.array(2, 3, 4, width, dtype=dtype), **{k: list(v) for k, v in window.items()}
                )
        line = {"kernel_size": [3], "stride": [2], "padding": [4], "dilation": [2]}
        c.add("im2col", c.array(2, 3, 77, dtype=dtype), **line)
        cube = {"kernel_size": [2, 3, 2], "stride": [1, 2, 1], "padding": [1, 0, 1], "dilation": [1, 1, 2]}
        c.add("im2col", c.array(2, 3, 3, 5, 19, dtype=dtype), **cube)
        c.add("tril", c.array(0, 3, 5, dtype=dtype), diagonal=0)
        z = c.array(2, 3, 5, 40, dtype=dtype)
        plain = channels_last(z.shape)
        for op in ("tril", "triu"):
            c.add(op, z, layouts={0: plain}, to={0: plain})
        square = {"kernel_size": [3, 3], "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}
        c.add("im2col", z, layouts={0: plain}, **square)
    assert check_cases(c, target=target) == []
