"""Operands with symbolic dims: a symbol may be any size, and a run with a size that the op does not allow is an error."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from support.contrib import packed
from support.contrib.case import Case, differences, floats, int32, model_of, ours, theirs

from xpuruntime import InferenceSession
from xpuruntime.errors import XpuError

BITS = packed.bits(4, 5, 128, 32, zeros="packed", bias=True, note="")
WORDS = (
    int32(1, 2, 3, 4, 5, 6, 7, 8, 9, 0).reshape(2, 5), None, floats(10, 8), floats(6, 8), None, floats(8), floats(8),
    int32(1, 1, 1, 0, 0, 1, 1, 1, 1, 0).reshape(2, 5),
)  # fmt: skip
TABLES = (floats(11, 4), floats(11, 4))
NORM = (floats(8), floats(8), floats(8))


class Dynamic(NamedTuple):
    """A case, the dims of its inputs, and an operand of a size that is not allowed."""

    case: Case
    dims: dict[int, tuple[Any, ...]]
    wrong: dict[int, np.ndarray]


DYNAMIC = {
    "columns": Dynamic(BITS, {0: ("b", "s", "k")}, {0: floats(2, 3, 64)}),
    "codes": Dynamic(
        BITS._replace(inputs=(0, 1)),
        {0: ("b", "s", "k"), 1: ("n", "blocks", "bytes")},
        {1: np.ascontiguousarray(BITS.operands[1].transpose(1, 0, 2))},
    ),
    "bias": Dynamic(Case("BiasGelu", (floats(2, 5), floats(5))), {0: ("b", "h")}, {0: floats(2, 1)}),
    "fed bias": Dynamic(
        Case("FastGelu", (floats(2, 5), floats(5)), {}, (0, 1)), {0: ("b", "h"), 1: ("g",)}, {1: floats(1)}
    ),
    "skip of one example": Dynamic(
        Case("SkipLayerNormalization", (floats(2, 3, 8), floats(1, 3, 8), *NORM), {}, (0, 1)),
        {0: ("b", "s", 8), 1: (1, 3, 8)},
        {0: floats(2, 1, 8)},
    ),
    "skip of as many examples": Dynamic(
        Case("SkipSimplifiedLayerNormalization", (floats(2, 3, 8), floats(2, 3, 8), *NORM[:2]), {}, (0, 1)),
        {0: ("b", "s", 8), 1: (2, 3, 8)},
        {0: floats(1, 3, 8)},
    ),
    "width of a norm": Dynamic(
        Case("SkipLayerNormalization", (floats(2, 3, 8), floats(2, 3, 8), *NORM), {}, (0, 1)),
        {0: ("b", "s", "h"), 1: ("b", "s", "h")},
        {0: floats(2, 3, 1), 1: floats(2, 3, 1)},
    ),
    "mask": Dynamic(
        Case("EmbedLayerNormalization", WORDS, {}, (0, 7), (0, 1)),
        {0: ("b", "s"), 7: ("b", 5)},
        {0: WORDS[0][:, :3]},
    ),
    "heads": Dynamic(
        Case("RotaryEmbedding", (floats(2, 4, 3, 8), np.array([1]), *TABLES), {}, (0, 1)),
        {0: ("b", 4, "s", "d")},
        {0: floats(2, 4, 3, 16)},
    ),
    "filter": Dynamic(
        Case("Conv", (floats(1, 4, 7, 7), floats(4, 4, 3, 3)), {"kernel_shape": [3, 3]}, (0, 1), domain=""),
        {1: (4, 4, 3, "k")},
        {1: floats(4, 4, 3, 5)},
    ),
    "rows of codes": Dynamic(
        packed.rows_of(4, 16, 32, zeros=False)._replace(inputs=(0, 1, 2)),
        {2: ("rows", "blocks")},
        {2: floats(3, 9)},
    ),
    "rows of a bias": Dynamic(
        Case("Gemm", (floats(5, 3), floats(3, 4), floats(5, 4)), {"alpha": 0.5, "beta": 2.0}, (0, 2), domain=""),
        {0: ("n", 3)},
        {0: floats(3, 3)},
    ),
    "a column as a bias": Dynamic(
        Case("Gemm", (floats(5, 3), floats(4, 3), floats(5, 1)), {"transB": 1}, domain=""),
        {0: ("n", 3)},
        {0: floats(3, 3)},
    ),
    "a bias of one of several rows": Dynamic(
        Case("Gemm", (floats(2, 3), floats(3, 4), floats(2, 4)), {}, (0, 2), domain=""),
        {0: ("n", 3)},
        {0: floats(1, 3)},
    ),
}  # fmt: skip


LENIENT = "skip of as many examples"
"""ONNX Runtime reads the first examples of a longer skip, which it documents nowhere."""


def with_symbols(model: bytes, dims: dict[int, tuple[Any, ...]]) -> bytes:
    """Return the model with these dims of its inputs, and results of any size."""
    proto = onnx.ModelProto.FromString(model)
    for value in proto.graph.input:
        kind = value.type.tensor_type
        for dim, size in zip(kind.shape.dim, dims.get(int(value.name[1:]), ()), strict=False):
            dim.CopyFrom(
                onnx.TensorShapeProto.Dimension(
                    **{"dim_param" if isinstance(size, str) else "dim_value": size}
                )
            )
    for value in proto.graph.output:
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{i}"
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_symbol_may_be_any_size(name: str) -> None:
    case, dims, wrong = DYNAMIC[name]
    static, feeds = model_of(case)
    model = with_symbols(static, dims)
    want = theirs(model, feeds)
    for got, expected in zip(ours(model, feeds), want, strict=True):
        assert differences(got, expected) <= 1e-4
    bad = {**feeds, **{f"i{at}": value for at, value in wrong.items()}}
    if name != LENIENT:
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            theirs(model, bad)
    with pytest.raises(XpuError):
        ours(model, bad)
    with InferenceSession(model, engine="native", device="cpu") as sess:
        for got, expected in zip(sess.run(feeds).values(), want, strict=True):
            assert differences(got, expected) <= 1e-4
        with pytest.raises(XpuError):
            sess.run(bad)
