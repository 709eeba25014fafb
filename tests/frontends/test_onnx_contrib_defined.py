"""ONNX Runtime's ops that it runs on GPUs only, beside the same arithmetic in ops of the default domain or in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from support.contrib.case import (
    U8,
    Case,
    codes,
    differences,
    feeds_of,
    floats,
    model_of,
    ours,
    scale,
    theirs,
    typed,
)

Arrays = Sequence[np.ndarray]


def default(op: str, *operands: np.ndarray, **attributes: object) -> np.ndarray:
    """Return what ONNX Runtime computes for an op of the default domain."""
    model, feeds = model_of(Case(op, operands, attributes, tuple(range(len(operands))), domain=""))
    return theirs(model, feeds)[0]


def first(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, -1, 1)


def last(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, -1)


def gelu(x: np.ndarray, kind: str = "Gelu") -> np.ndarray:
    model, feeds = model_of(Case(kind, (x,)))
    return theirs(model, feeds)[0]


def group_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, groups: int) -> np.ndarray:
    """Return the norm of [batch, channels, ...] in float64."""
    parts = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    shape = (1, -1, *[1] * (x.ndim - 2))
    return (parts.reshape(x.shape) * weight.reshape(shape) + bias.reshape(shape)).astype(np.float32)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


CONV = {"strides": [2, 1], "pads": [1, 0, 1, 2], "kernel_shape": [3, 2]}
X, W, B = floats(2, 7, 9, 3), floats(5, 3, 3, 2), floats(5)
Z = floats(2, 4, 10, 5)

CASES: list[tuple[Case, Callable[..., np.ndarray]]] = [
    (Case("BiasAdd", (floats(2, 5, 7), floats(7), floats(2, 5, 7))), lambda x, b, s: x + b + s),
    (Case("BiasDropout", (floats(5, 7), floats(7), floats(5, 7))), lambda x, b, r: x + b + r),
    (
        Case("BiasSplitGelu", (floats(2, 5, 14), floats(14))),
        lambda x, b: (x + b)[..., :7] * gelu((x + b)[..., 7:]),
    ),
    (
        Case("BiasSoftmax", (floats(2, 3, 5, 7), floats(2, 1, 1, 7)), {"axis": 3, "is_inner_broadcast": 1}),
        lambda x, b: default("Softmax", x + b, axis=-1),
    ),
    (
        Case("GemmFastGelu", (floats(2, 5, 7), floats(7, 3), floats(3))),
        lambda x, w, b: gelu(x @ w + b, "FastGelu"),
    ),
    (Case("NhwcConv", (X, W, B), CONV), lambda x, w, b: last(default("Conv", first(x), w, b, **CONV))),
    (
        Case("NhwcFusedConv", (X, W, B, Z), {**CONV, "activation": "Relu"}),
        lambda x, w, b, z: np.maximum(last(default("Conv", first(x), w, b, **CONV)) + z, 0),
    ),
    (
        Case("GroupNorm", (floats(2, 5, 3, 6), floats(6), floats(6)), {"groups": 3, "activation": 1}),
        lambda x, w, b: silu(last(group_norm(first(x), w, b, 3))),
    ),
    (
        Case("GroupNorm", (floats(2, 6, 5, 3), floats(6), floats(6)), {"groups": 2, "activation": 0, "channels_last": 0}),
        lambda x, w, b: group_norm(x, w, b, 2),
    ),
    (
        Case("SkipGroupNorm", (floats(2, 5, 3, 6), floats(6), floats(6), floats(2, 6), floats(6)), {"groups": 3, "activation": 0}),
        lambda x, w, b, s, c: last(group_norm(first(x + s[:, None, None] + c), w, b, 3)),
    ),
    (
        Case("SkipGroupNorm", (floats(2, 6, 5, 3), floats(6), floats(6), floats(2, 6, 5, 3), floats(6)), {"groups": 2, "activation": 1, "channels_last": 0}),
        lambda x, w, b, s, c: silu(group_norm(x + s + c[:, None, None], w, b, 2)),
    ),
    (
        Case("QLinearReduceMean", (codes(3, 5, 7), scale(0.02), U8, scale(0.01), U8), {"axes": [1], "keepdims": 0}),
        lambda x, s, z, t, y: np.clip(np.rint((x.astype(np.float32) - z).mean(1) * s / t) + y, 0, 255).astype(np.uint8),
    ),
    (
        Case("ReduceSumInteger", (codes(3, 5, 7, dtype=np.int8),), {"axes": [-1], "keepdims": 1}),
        lambda x: x.astype(np.int32).sum(-1, keepdims=True),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("case", "define"), CASES, ids=[c.name for c, _ in CASES])
def test_an_op_of_gpus_equals_its_definition(case: Case, define: Callable[..., np.ndarray]) -> None:
    want = define(*case.operands)
    (got,) = ours(typed(case, [want]), feeds_of(case))
    assert differences(got, want) <= (1.0 if want.dtype == np.uint8 else 2e-5)
