"""Op calls on which each kernel of the catalogue is checked: odd sizes, one row, broadcasts, known and unknown operands.

An operand is a text: ``"5x7"`` is a tensor of the call's dtype, ``"w 9x7"`` a tensor known before the run (a weight), ``"i<7 5"``
five indices from 0 to 6, ``"bool 5x7"`` booleans, ``"int8 5x7"`` a tensor of that dtype. A number is used unchanged; None is an absent operand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ir import Graph, GraphBuilder
from ...protocols import Array
from ...types import DType

__all__ = ["CALLS", "ConformanceCall"]

FLOATS = ("float32", "bfloat16", "float16")
SINGLE = ("float32",)


@dataclass(frozen=True)
class ConformanceCall:
    """One node. ``dtypes``: dtypes of operands without their own, one graph each; ``positive``: all values exceed zero; ``plain``: compile without
    passes, which would replace the node; ``forward``: the op of a gradient, computed first from all operands but the first, whose results are
    further operands.
    """

    op: str
    operands: tuple[Any, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = FLOATS
    outputs: int | None = None
    positive: bool = False
    plain: bool = False
    forward: str = ""

    def name(self, dtype: str) -> str:
        """Return op, operands and dtype as text."""
        operands = ", ".join("-" if o is None else str(o) for o in self.operands)
        attrs = "".join(f" {k}={v.name if isinstance(v, Graph) else v}" for k, v in self.attrs.items())
        return f"{self.op}({operands}){attrs} {dtype}"

    def graph(self, dtype: str, seed: int = 0) -> tuple[Graph, dict[str, Array], dict[str, Array]]:
        """Return the graph of one node, its inputs and its weights."""
        b, rng = GraphBuilder(self.op), np.random.default_rng(seed)
        feeds: dict[str, Array] = {}
        weights: dict[str, Array] = {}
        names: list[Any] = []
        for i, operand in enumerate(self.operands):
            if not isinstance(operand, str):
                names.append(operand)
                continue
            weight, array = operand.startswith("w "), self._array(operand, dtype, rng)
            spec = f"{DType.of(array.dtype)}[{', '.join(map(str, array.shape))}]"
            names.append((b.weight if weight else b.input)(f"x{i}", spec))
            (weights if weight else feeds)[f"x{i}"] = array
        if self.forward:
            names += b.call(self.forward, *names[1:], **self.attrs)
        results = b.call(self.op, *names, outputs=self.outputs, **self.attrs)
        for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
            b.output(f"y{i}", value)
        return b.build(), feeds, weights

    def _array(self, text: str, dtype: str, rng: np.random.Generator) -> Array:
        kind, _, sizes = text.removeprefix("w ").rpartition(" ")
        shape = tuple(int(s) for s in sizes.split("x")) if sizes else ()
        if kind.startswith("i<"):
            return rng.integers(0, int(kind[2:]), shape)
        array_dtype = DType(kind or dtype)
        if array_dtype is DType.BOOL:
            return rng.integers(0, 2, shape).astype(bool)
        if array_dtype.is_integer and array_dtype.bits < 8:
            return rng.integers(
                -(2 ** (array_dtype.bits - 1)) * array_dtype.is_signed, 2 ** (array_dtype.bits - 1), shape
            ).astype(array_dtype.numpy)
        if array_dtype.is_integer:
            return rng.integers(0 if not array_dtype.is_signed else -9, 10, shape).astype(array_dtype.numpy)
        values = rng.standard_normal(shape)
        if text.startswith("w ") and len(shape) > 1:  # keeps sums near one
            values /= math.sqrt(math.prod(shape[1:]))
        return (np.abs(values) + 0.1 if self.positive else values).astype(array_dtype.numpy)


def _conv(x: str, w: str, *bias_and_residual: str | None, **attrs: Any) -> ConformanceCall:
    op = "fused_convolution" if "act" in attrs or len(bias_and_residual) > 1 else "convolution"
    spatial = x.count("x") - 1
    usual = {"stride": [1] * spatial, "padding": [0] * spatial, "dilation": [1] * spatial}
    return ConformanceCall(op, (x, w, *(bias_and_residual or (None,))), usual | attrs)


def _pool(op: str, x: str, size: int, stride: int, padding: int, **attrs: Any) -> ConformanceCall:
    spatial = x.count("x") - 1
    return ConformanceCall(op, (x,), {"kernel_size": [size] * spatial, "stride": [stride] * spatial, "padding": [padding] * spatial,
                           "dilation": [1] * spatial} | attrs)  # fmt: skip


def _body(name: str, op: str, *, numbered: bool = False) -> Graph:
    """Return a branch of one op over float32[3, 5], or a loop's body that adds the number of the iteration to its result."""
    b = GraphBuilder(name)
    number = b.input("i", "int64[]") if numbered else ""
    result = b.call(op, b.input("x", "float32[3, 5]"))
    b.output("y", b.add(result, b.cast(number, dtype="float32")) if numbered else result)
    return b.build()


CALLS: tuple[ConformanceCall, ...] = (
    # products
    ConformanceCall("mm", ("33x37", "37x41")),
    ConformanceCall("mm", ("1x264", "264x130")),
    ConformanceCall("bmm", ("3x13x20", "3x20x17")),
    ConformanceCall("matmul", ("2x1x9x16", "3x16x7")),
    ConformanceCall("matmul", ("64x128", "w 128x72")),
    ConformanceCall("addmm", ("41", "5x37", "37x41")),
    ConformanceCall("mm_wide", ("5x37", "37x41"), dtypes=("bfloat16", "float16")),
    ConformanceCall("mm_wide", ("24x16", "16x40", "float32 24x40"), dtypes=("bfloat16", "float16")),
    ConformanceCall("linear", ("1x264", "w 130x264", "w 130")),
    ConformanceCall("linear", ("2x5x80", "w 48x80")),
    ConformanceCall("linear", ("65x512", "w 256x512", "w 256")),
    ConformanceCall("fused_linear", ("3x264", "w 136x264", "w 136", "3x136"), {"act": "relu"}),
    ConformanceCall("fused_linear", ("33x136", "w 200x136", "w 200"), {"act": "gelu"}),
    ConformanceCall("norm_linear", ("1x1x96", "w 64x96", "w 64", None, "w 96"), {"eps": 1e-5}),
    ConformanceCall("norm_linear", ("1x3x65", "w 96x65", None, None, "w 65"), {"eps": 1e-5, "act": "silu", "gated": True}),
    ConformanceCall("expert_linear", ("1x33", "w 5x40x33", "i<5 1x2"), {"act": "silu", "gated": True}),
    ConformanceCall("expert_linear", ("19x24", "w 3x17x24", "i<3 19x2"), {"act": "relu"}),
    ConformanceCall("expert_linear", ("40x2x24", "w 4x17x24", "i<4 40x2")),
    ConformanceCall("einsum", ("4x5x6", "4x6x3"), {"equation": "bij,bjk->bik"}, SINGLE),
    ConformanceCall("matmul_integer", ("uint8 5x9", "int8 9x7"), dtypes=SINGLE),
    # convolutions
    _conv("1x16x9x11", "w 24x16x3x3", "w 24", padding=[1, 1]),
    _conv("2x3x17x19", "w 8x3x7x7", stride=[2, 2], padding=[3, 3]),
    _conv("2x64x7x7", "w 32x64x1x1", "w 32"),
    _conv("1x32x14x14", "w 32x1x3x3", "w 32", None, padding=[1, 1], groups=32, act="relu6"),
    _conv("1x64x8x8", "w 64x16x3x3", "w 64", None, padding=[1, 1], groups=4, act="silu"),
    _conv("2x64x9x9", "w 64x64x3x3", "w 64", "2x64x9x9", padding=[1, 1], act="relu"),
    _conv("1x4x20", "w 6x4x5", stride=[2], padding=[2]),
    _conv("1x8x5x6", "w 8x4x3x3", transposed=True, stride=[2, 2], padding=[1, 1], output_padding=[1, 1]),
    ConformanceCall("deform_convolution", ("1x4x6x7", "w 5x4x3x3", "1x18x6x7"),
         {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}, SINGLE),
    # attention
    ConformanceCall("attention", ("2x4x33x64", "2x2x33x64", "2x2x33x64"), {"causal": True}),
    ConformanceCall("attention", ("1x4x130x64", "1x4x150x64", "1x4x150x64")),
    ConformanceCall("attention", ("2x12x1x128", "2x2x300x128", "2x2x300x128")),
    ConformanceCall("attention", ("1x2x19x40", "1x1x30x40", "1x1x30x24", "bool 1x1x19x30")),
    ConformanceCall("attention_train", ("2x4x33x64", "2x2x33x64", "2x2x33x64"), {"causal": True}),
    ConformanceCall("attention_train", ("1x2x70x40", "1x2x90x40", "1x2x90x24")),
    ConformanceCall("attention_backward", ("2x4x33x64", "2x4x33x64", "2x2x33x64", "2x2x33x64"), {"causal": True}, forward="attention_train"),
    ConformanceCall("attention_backward", ("1x2x70x24", "1x2x70x40", "1x2x90x40", "1x2x90x24"), forward="attention_train"),
    ConformanceCall("rope", ("2x4x9x32", "9x16", "9x16")),
    ConformanceCall("rope_append", ("2x4x1x32", "2x2x1x32", "2x2x1x32", "9x16", "9x16", "2x2x40x32", "2x2x40x32", "i<40 2x1", "i<9 2x1"), outputs=3),
    ConformanceCall("paged_attention", ("2x4x3x16", "16x2x16", "16x2x24", "i<4 2x2", "i<8 2x3"), {"block_size": 4}),
    ConformanceCall("paged_attention", ("1x6x1x64", "80x6x64", "80x6x64", "i<5 1x3", "i<48 1x1"), {"block_size": 16, "window": 20}),
    ConformanceCall("rope_attention", ("2x6x1x64", "2x2x1x64", "2x2x1x64", "9x32", "9x32", *["2x2x140x64"] * 2, "i<140 2x1", "i<9 2x1", "bool 2x1x1x140"),
         outputs=3),
    ConformanceCall("rope_attention", ("1x8x1x40", "1x8x1x40", "1x8x1x24", "1x16", "1x16", "1x8x300x40", "1x8x300x24", "i<300 1"), {"size": 32}, outputs=3),
    ConformanceCall("paged_attention", ("5x6x1x32", "48x2x32", "48x2x32", "i<12 5x5", "i<20 5x1"), {"block_size": 4}),
    ConformanceCall("paged_attention", ("2x8x3x40", "64x2x40", "64x2x24", "i<4 2x4", "i<64 2x3"), {"block_size": 16, "window": 9, "softcap": 5.0}),
    ConformanceCall("paged_attention", ("3x2x1x64", "96x1x64", "96x1x64", "i<3 3x40", "i<1280 3x1"), {"block_size": 32, "scale": 0.3}),
    ConformanceCall("paged_attention", ("2x4x2x40", "64x2x40", "64x2x24", "i<4 2x4", "i<64 2x2", "float32 4x9"), {"block_size": 16}),
    ConformanceCall("paged_attention", ("3x2x1x32", "48x2x32", "48x2x32", "i<12 3x9", "i<36 3x1", "float32 2x36"), {"block_size": 4, "by_key": True}),
    ConformanceCall("all_reduce", ("3x70",), {"ranks": 1}),
    ConformanceCall("peer_all_reduce", ("3x70", "i<1 2", "3x70"), {"ranks": 1}),
    ConformanceCall("all_gather", ("3x70",), {"ranks": 1}),
    ConformanceCall("reduce_scatter", ("3x70",), {"ranks": 1}),
    ConformanceCall("sample_token", ("6x300", "int32 6x300", "float32 6x6", "i<9 6x5"), outputs=2, positive=True),
    # rows
    ConformanceCall("layer_norm_backward", ("5x33", "5x33", "5x1", "5x1", "33", "33"), {"normalized_shape": [33]}, SINGLE, outputs=3, positive=True),
    ConformanceCall("layer_norm_backward_add", ("bfloat16 5x33", "5x33", "5x1", "5x1", "33", "5x33"), {"normalized_shape": [33], "narrow": DType.BFLOAT16},
                    SINGLE, outputs=4, positive=True),
    ConformanceCall("softmax", ("6x257",), {"dim": -1}),
    ConformanceCall("softmax", ("5x33x7",), {"dim": 1}),
    ConformanceCall("log_softmax", ("4x1000",), {"dim": 1}),
    ConformanceCall("layer_norm", ("5x9x96", "w 96", "w 96"), {"normalized_shape": [96]}),
    ConformanceCall("rms_norm", ("7x130", "w 130"), {"normalized_shape": [130]}),
    ConformanceCall("batch_norm", ("2x12x5x5", "w 12", "w 12", "w 12", "w 12"), positive=True, plain=True),
    ConformanceCall("group_norm", ("2x12x5x5", "w 12", "w 12"), {"groups": 3}),
    ConformanceCall("instance_norm", ("2x6x5x7", "w 6", "w 6")),
    ConformanceCall("local_response_norm", ("1x7x5x5",), {"size": 3}, SINGLE),
    ConformanceCall("sum", ("6x257",), {"dim": [1]}),
    ConformanceCall("mean", ("5x33x7",), {"dim": [0, 2], "keepdim": True}),
    ConformanceCall("amax", ("4x1000",), {"dim": [1]}),
    ConformanceCall("argmax", ("7x1003",), {"dim": 1}),
    ConformanceCall("var", ("6x33",), {"dim": [1]}),
    ConformanceCall("cumsum", ("5x40",), {"dim": 1}, SINGLE),
    ConformanceCall("cdist", ("3x5x7", "1x6x7"), {"p": 2.0}),
    ConformanceCall("cdist", ("5x7", "6x7"), {"p": 1.0}, SINGLE),
    ConformanceCall("cdist", ("5x7", "6x7"), {"p": 3.0}, SINGLE),
    ConformanceCall("sort", ("5x33",), {"dim": 1}, SINGLE),
    ConformanceCall("topk", ("5x33",), {"k": 4}, SINGLE),
    # pointwise ops
    ConformanceCall("add", ("520x9", "9")),
    ConformanceCall("mul", ("3x1x5", "4x1")),
    ConformanceCall("gelu", ("7x33",)),
    ConformanceCall("silu_mul", ("7x33", "7x33")),
    ConformanceCall("where", ("bool 5x7", "5x7", 0.5)),
    ConformanceCall("cast", ("33x65",), {"dtype": "int32"}),
    ConformanceCall("cast", ("33x65",), {"dtype": "float8_e4m3fn"}),
    ConformanceCall("cast", ("33x65",), {"dtype": "int4"}, SINGLE),
    # indexing
    ConformanceCall("clone", ("int4 5x7",), dtypes=SINGLE, plain=True),
    ConformanceCall("permute", ("5x6x7",), {"dims": [2, 0, 1]}),
    ConformanceCall("cat", ("3x5", "3x4"), {"dim": 1}),
    ConformanceCall("slice", ("9x11",), {"dim": 1, "start": 1, "end": 10, "step": 3}),
    ConformanceCall("pad", ("2x3x5",), {"pads": [0, 0, 0, 1, 0, 2]}, SINGLE),
    ConformanceCall("embedding", ("w 50x24", "i<50 3x5")),
    ConformanceCall("embedding_bag", ("w 30x8", "i<30 7", "i<1 1"), {"mode": "sum"}, SINGLE, outputs=1),
    ConformanceCall("index_select", ("9x5", "i<9 4"), {"dim": 0}),
    ConformanceCall("gather", ("9x5", "i<9 4x5"), {"dim": 0}),
    ConformanceCall("scatter", ("9x5", "i<9 1x5", "1x5"), {"dim": 0}, SINGLE),
    ConformanceCall("tensor_scatter", ("2x8x4", "2x1x4", "i<7 2"), dtypes=SINGLE),
    _pool("max_pool", "2x5x11x9", 3, 2, 1),
    _pool("avg_pool", "2x5x11x9", 3, 2, 1),
    ConformanceCall("adaptive_avg_pool", ("2x5x11x9",), {"output_size": [1, 1]}),
    ConformanceCall("roi_align", ("1x3x8x8", "2x4", "i<1 2"), {"output_size": [2, 2]}, SINGLE, positive=True),
    ConformanceCall("max_unpool", ("1x2x2x2", "i<1 1x2x2x2"), {"output_size": [4, 4]}, SINGLE),
    ConformanceCall("resize", ("1x3x5x6",), {"size": [1, 3, 10, 9], "mode": "linear"}, SINGLE),
    ConformanceCall("full", (), {"size": [3, 4], "value": 2.5, "dtype": "float32"}, SINGLE, plain=True),
    ConformanceCall("one_hot", ("i<6 3x5", "2"), {"depth": 6}, SINGLE),
    # others
    ConformanceCall("quantize_linear", ("5x7", "w 1", None), {"dtype": "int8", "axis": 0}, SINGLE, positive=True, plain=True),
    ConformanceCall("quantized_matmul", ("uint8 5x37", "w int8 37x19", *[None] * 7), {"dtype": "int32"}, SINGLE),
    ConformanceCall("quantized_matmul", ("int8 5x37", "w int8 37x19", "w ", None, "w 19", None, "w 19", None, None),
         {"dtype": "float32", "act": "relu"}, SINGLE, positive=True),
    ConformanceCall("quantized_convolution", ("uint8 1x5x9x8", "w int8 7x5x3x3", "w ", "w uint8 ", "w 7", None, None, None, None),
         {"dtype": "float32", "stride": [1, 1], "padding": [1, 1], "dilation": [1, 1]}, SINGLE, positive=True),
    ConformanceCall("lstm", ("5x2x6", "w 1x16x6", "w 1x16x4", "w 1x32"), {"hidden_size": 4}, SINGLE, outputs=3),
    ConformanceCall("dft", ("2x8x2",), {"dim": 1}, SINGLE),
    ConformanceCall("det", ("3x4x4",), {}, SINGLE),
    ConformanceCall("slogdet", ("3x4x4",), {}, SINGLE, outputs=2),
    ConformanceCall("solve", ("3x4x4", "3x4x2"), {}, SINGLE),
    ConformanceCall("cholesky", ("5x1x1",), {}, SINGLE, positive=True),
    ConformanceCall("cholesky", ("4x3x3",), {"upper": True}, SINGLE, outputs=2),
    ConformanceCall("solve_triangular", ("3x4x4", "3x4x2"), {"unitriangular": True}, SINGLE),
    ConformanceCall("cond", ("bool ", "3x5"), {"then_branch": _body("then", "relu"), "else_branch": _body("else", "neg")}, SINGLE),
    ConformanceCall("loop", ("i<4 ", None, "3x5"), {"body": _body("tanh", "tanh", numbered=True), "carried": 1}, SINGLE),
)  # fmt: skip
