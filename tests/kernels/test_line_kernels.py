"""Kernels of whole lines: running sums, sorting, recurrent layers, Fourier transforms."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support.kernel_cases import check_cases
from support.kernel_inputs import EVERY, FLOATS, Cases, channels_last, levels

from xpuruntime.kernels.cpu import rnn
from xpuruntime.kernels.cpu.tasks import LoopedTasks
from xpuruntime.kernels.portable.lines import distance, scan, signal, sort

PORTABLE = (*scan.KERNELS, *sort.KERNELS, *distance.KERNELS, *signal.KERNELS)
KERNELS = (*rnn.KERNELS, *(LoopedTasks(k) for k in PORTABLE))


@pytest.mark.parametrize("target", levels())
def test_running_sums_and_products(target: str) -> None:
    c = Cases(KERNELS)
    for dtype in EVERY:
        z = c.array(3, 4, 5, dtype=dtype)
        for op in ("cumsum", "cumprod"):
            for dim, exclusive, reverse in (
                (0, True, False),
                (1, False, True),
                (2, True, True),
                (2, False, False),
            ):
                c.add(op, z, dim=dim, exclusive=exclusive, reverse=reverse)
        c.add("cumsum", z, dim=1, dtype="float32")
        c.add("cumsum", c.array(dtype=dtype), dim=0)
    layout = {0: channels_last((2, 6, 4, 5))}
    c.add("cumsum", c.array(2, 6, 4, 5), dim=1, layouts=layout, to=layout)
    assert check_cases(c, target=target) == []


@pytest.mark.parametrize("target", levels())
def test_sorting_is_stable_and_nan_is_the_largest(target: str) -> None:
    c = Cases(KERNELS)
    for dtype in EVERY:
        z = c.array(3, 40, 5, dtype=dtype)
        if dtype in FLOATS:
            z[0, :3], z[1, :2] = np.nan, np.inf
        z = np.concatenate([z, z], axis=1)
        for dim in range(3):
            for way in (True, False):
                c.add("sort", z, dim=dim, descending=way)
                c.add("topk", z, k=3, dim=dim, largest=way)
    c.add("topk", c.array(2, 1000), k=5, dim=1)
    equal = np.round(c.array(2, 1000) * 4)  # of equal ones the earlier come first
    for k in (1, 7, 249, 250, 251):
        for way in (True, False):
            c.add("topk", equal, k=k, dim=1, largest=way)
    for n in (15, 16, 17, 32, 33, 47, 64, 96, 100, 127):  # runs of 16, merged in pairs and with a rest
        row = np.round(c.array(2, n) * 4)
        row[:, ::5], row[0, n // 2 :: 7], row[1, 1::6] = -0.0, np.nan, -np.inf
        for way in (True, False):
            c.add("sort", row, dim=1, descending=way)
    c.add("sort", np.array([[2**31 - 1, -(2**31), 0, -1, 2**31 - 1]], np.int32), dim=1, descending=True)
    c.add("topk", np.full((1, 64), np.nan, np.float32), k=9, dim=1)
    c.add("sort", c.array(3, 0), dim=1)
    c.add("topk", c.array(), k=1, dim=0)
    c.add("topk", c.array(3, 4), k=0)
    assert check_cases(c, target=target) == []


ACTIVATIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "rnn": ((), ("Relu",), ("LeakyRelu",), ("Affine",), ("Elu",)),
    "gru": ((), ("HardSigmoid", "ScaledTanh")),
    "lstm": ((), ("Sigmoid", "Softsign", "Tanh"), ("HardSigmoid", "Softplus", "ThresholdedRelu")),
}


WAYS = (
    ("float32", "forward"),
    ("float64", "reverse"),
    ("float16", "bidirectional"),
    ("float32", "bidirectional"),
)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("op", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_recurrent_layers(op: str, gates: int) -> None:
    """Every activation, direction and option, with and without biases, lengths, first states and peepholes."""
    c = Cases(KERNELS)
    size, hidden, batch, length = 19, 5, 3, 6
    switches = itertools.product(WAYS, ACTIVATIONS[op], (False, True), (False, True))
    for (dtype, direction), names, first, full in switches:
        d = 2 if direction == "bidirectional" else 1
        x = c.array(batch, length, size, dtype=dtype)
        x = x if first else np.ascontiguousarray(x.swapaxes(0, 1))
        state = (batch, d, hidden) if first else (d, batch, hidden)
        w, r = (c.array(d, gates * hidden, n, dtype=dtype) * x.dtype.type(0.3) for n in (size, hidden))
        more: list[Any] = [None] * (5 if op == "lstm" else 3)
        if full:
            lengths = np.array([6, 2, 4], np.int32)
            more[:3] = c.array(d, 2 * gates * hidden, dtype=dtype), lengths, c.array(*state, dtype=dtype)
        if full and op == "lstm":
            more[3:] = c.array(*state, dtype=dtype), c.array(d, 3 * hidden, dtype=dtype)
        attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction, "batch_first": first}
        attrs |= {"gru": {"linear_before_reset": full}, "lstm": {"input_forget": full and first}}.get(op, {})
        attrs |= {"clip": 0.7} if full and first else {}
        c.add(op, x, w, r, *more, outputs=3 if op == "lstm" else 2, activations=list(names) * d, **attrs)
    assert check_cases(c) == []


def test_fourier_transforms() -> None:
    c = Cases(KERNELS)
    for dtype in ("float32", "float64"):
        for length in (None, 5, 8, 20):
            for parts in (1, 2):
                for inverse, half in ((False, False), (True, False), (True, True), (False, True)):
                    if parts == 2 and half and not inverse:
                        continue
                    for n in (9, 10):
                        x = c.array(2, n, 3, parts, dtype=dtype)
                        c.add("dft", x, dim=1, length=length, inverse=inverse, onesided=half)
        for half in (False, True):
            c.add("stft", c.array(2, 50, 1, dtype=dtype), frame_length=16, frame_step=5, onesided=half)
            c.add(
                "stft",
                c.array(2, 50, 1, dtype=dtype),
                c.array(12, dtype=dtype),
                frame_length=16,
                frame_step=5,
                onesided=half,
            )
        c.add(
            "stft",
            c.array(2, 50, 2, dtype=dtype),
            c.array(16, dtype=dtype),
            frame_length=16,
            frame_step=5,
            onesided=False,
        )
    assert check_cases(c) == []


def test_fourier_transforms_by_factors() -> None:
    c = Cases(KERNELS)
    for n in (1, 2, 3, 4, 7, 16, 30, 49, 64, 72, 121, 251, 400):
        for inverse, half in ((False, False), (True, False), (True, True), (False, True)):
            size = n // 2 + 1 if inverse and half else n
            parts = 1 if half and not inverse else 2
            x = c.array(3, size, 2, parts, dtype="float64")
            c.add("dft", x, dim=1, length=n, inverse=inverse, onesided=half)
        c.add("dft", c.array(n, 2, 1, dtype="float32"), dim=0, length=None, inverse=False, onesided=False)
        c.add("dft", c.array(0, n, 2, dtype="float32"), dim=1, length=None, inverse=False, onesided=False)
    assert check_cases(c) == []


def test_distances() -> None:
    c = Cases(KERNELS)
    for dtype in ("float32", "float64", "float16"):
        for p in (0.0, 0.5, 1.0, 2.0, 3.0, float("inf")):
            x, y = c.array(2, 1, 5, 7, dtype=dtype), c.array(3, 4, 7, dtype=dtype)
            y[0, 1] = x[0, 0, 2]
            x[1, 0, 1, 3], y[2, 0, 0], y[1, 2, 4] = np.nan, np.inf, -np.inf
            c.add("cdist", x, y, p=p)
            c.add("cdist", y[0], x, p=p)
            c.add("cdist", y[:, :, :0], x[..., :0], p=p)
            c.add("cdist", y[:, :0], x, p=p)
            for rows in (
                x[1, 0],
                y[0],
                c.array(1, 3, dtype=dtype),
                c.array(0, 3, dtype=dtype),
                y[0, :, :0],
                c.array(2, 0, dtype=dtype),
            ):
                c.add("pdist", rows, p=p)
    c.add(
        "pdist", c.array(1500, 1, dtype="float64"), p=1.0
    )  # a million pairs, whose rows are found by a root
    assert check_cases(c) == []


def test_long_transforms_are_refused() -> None:
    c = Cases(KERNELS)
    c.add("dft", c.array(1, 10000, 1), dim=1)
    assert [r for _, r in check_cases(c)] == [
        "Fourier transforms of more than 8192 elements are not supported"
    ]
