"""Lowerings of ONNX Runtime's ops (``com.microsoft``) that its optimizers and exporters write in place of several ONNX ops: products and norms."""

from __future__ import annotations

import itertools

from .....types import DType
from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext, OpLowering, Results, may_equal
from ..conv import LOWERINGS as CONVOLUTIONS
from ..matmul import gemm
from .activation import activated

__all__ = ["DEFAULT_DOMAIN", "LOWERINGS", "embed_norm", "fused_conv"]


# ── products and convolutions ──


def _matmul(n: OnnxLoweringContext) -> Results:
    """Lower FusedMatMul: a product of matrices, either one transposed, times alpha."""
    if n.attr("transA", 0) and n.spec(0).rank > 1 and n.spec(1).rank == 1:
        raise NotLowered(
            "a transposed matrix times a vector is not supported: ONNX Runtime does not transpose it"
        )
    sides = []
    for position, name, batch in ((0, "transA", "transBatchA"), (1, "transB", "transBatchB")):
        value, rank = n.input(position), n.spec(position).rank
        if n.attr(batch, 0) and rank < 3:
            raise NotLowered(f"{batch} needs three dims or more, and there are {rank}")
        if n.attr(batch, 0):  # the first dim is the one of the rows
            value = str(n.b.permute(value, dims=[*range(1, rank - 1), 0, rank - 1]))
        if n.attr(name, 0) and rank > 1:
            value = str(n.b.permute(value, dims=[*range(rank - 2), rank - 1, rank - 2]))
        sides.append(value)
    y = str(n.b.matmul(*sides))
    alpha = float(n.attr("alpha", 1.0))
    return y if alpha == 1.0 else str(n.b.mul(y, alpha))


def _gemm_fast_gelu(n: OnnxLoweringContext) -> Results:
    y = n.b.matmul(n.x, n.input(1))
    if n.opt(2) is not None:
        y = n.b.add(y, n.input(2))
    return str(n.b.gelu(y, approximate="tanh"))


def _fused_gemm(n: OnnxLoweringContext) -> Results:
    names = ("activation_alpha", "activation_beta")
    params = [float(n.attrs[a]) for a in itertools.takewhile(n.attrs.__contains__, names)]
    if not n.attr("activation"):
        raise NotLowered("FusedGemm without an activation is not supported")
    return activated(n, str(gemm(n)), params, exact=False)


def fused_conv(convolution: OpLowering) -> OpLowering:
    """Return the lowering of FusedConv and its form with channels last: a convolution, an addend (the fourth operand) and an activation."""

    def lower(n: OnnxLoweringContext) -> Results:
        y = str(convolution(n.with_inputs(*n.inputs[:3], op="Conv")))
        if n.opt(3) is not None:
            y = str(n.b.add(y, n.input(3)))
        return activated(n, y, [float(v) for v in n.attr("activation_params", [])], exact=True)

    return lower


# ── normalizations ──


def _skip_norm(*, rms: bool) -> OpLowering:
    """Return the lowering of SkipLayerNormalization and its RMS form: the norm of x + skip + bias; the sum is the last output."""

    def lower(n: OnnxLoweringContext) -> Results:
        if n.has_readers(1) or n.has_readers(2):
            raise NotLowered("its statistics as outputs are not supported")
        x, skip, bias = n.spec().shape, n.spec(1).shape, 3 if rms else 4
        like = x
        if len(x) == 3 and (len(skip) == 2 or skip[:1] == (1,)):  # one example is added to all
            like = (*skip[:-2], *x[1:])
        if len(x) not in (2, 3) or not may_equal(skip, like):
            raise NotLowered(f"a skip {n.spec(1)} of an operand {n.spec()} is not supported")
        total, size, eps = n.b.add(n.x, n.sized(n.input(1), like)), x[-1], n.epsilon(1e-12)
        if n.opt(bias) is not None:
            total = n.b.add(total, n.vector(bias, size, "bias"))
        weight = n.vector(2, size, "gamma")
        if rms:
            y = n.b.rms_norm(total, weight, normalized_shape=[size], eps=eps)
        else:
            affine = [weight] if n.opt(3) is None else [weight, n.vector(3, size, "beta")]
            y = n.b.layer_norm(total, *affine, normalized_shape=[size], eps=eps)
        return [str(y), None, None, str(total)]

    return lower


def _simplified_norm(n: OnnxLoweringContext) -> Results:
    """Lower SimplifiedLayerNormalization: an RMS norm over the dims from ``axis`` on."""
    if n.has_readers(1):
        raise NotLowered("its statistics as outputs are not supported")
    shape, kinds = n.spec().shape[n.axis(-1) :], (n.spec().dtype, n.spec(1).dtype)
    wide = max(kinds, key=lambda kind: kind.bits)
    x, weight = n.cast(n.x, wide), n.cast(n.input(1), wide)
    return n.cast(str(n.b.rms_norm(x, weight, normalized_shape=shape, eps=n.epsilon(1e-5))), kinds[1])


def _embed_norm(n: OnnxLoweringContext) -> Results:
    """Lower EmbedLayerNormalization: the norm of the sum of word, position and segment embeddings."""
    tables = [n.opt(i) for i in range(2, 7)]
    return embed_norm(n, tables, mask=7, positions=n.opt(8))


def embed_norm(
    n: OnnxLoweringContext, tables: list[str | None], *, mask: int, positions: str | None
) -> Results:
    """Return the results for tables of words, positions, segments, and the norm's weight and bias."""
    words, places, parts, weight, bias = tables
    if positions is None:
        first = n.b.call("slice", places, dim=0, start=0, end=n.spec().shape[1], step=1)
        at = n.b.unsqueeze(first, dims=[0])
    else:
        at = _rows(n, places, positions)
    total = n.b.add(_rows(n, words, n.x), at)
    if n.opt(1) is not None and parts is not None:
        total = n.b.add(total, _rows(n, parts, n.input(1)))
    shape, affine = n.spec_of(str(total)).shape[-1:], []
    for name, value in (("gamma", weight), ("beta", bias)):
        if value is None or not may_equal(n.spec_of(value).shape, shape):
            raise NotLowered(f"its {name} is not one dim of {shape[0]}")
        affine.append(n.sized(value, shape))
    y = n.b.layer_norm(total, *affine, normalized_shape=shape, eps=n.epsilon(1e-12))
    count = None
    if n.opt(mask) is not None and not may_equal(n.spec(mask).shape, n.spec().shape):
        raise NotLowered(f"a mask {n.spec(mask)} of words {n.spec()} is not supported")
    if n.has_readers(1):
        if n.opt(mask) is None:
            count = str(n.b.full(size=[n.spec().shape[0]], value=0, dtype=DType.INT32))
        else:
            flags = n.sized(n.input(mask), n.spec().shape)
            count = str(n.b.cast(n.b.sum(flags, dim=[1], keepdim=False), dtype=DType.INT32))
    return [str(y), count, str(total)]


def _rows(n: OnnxLoweringContext, table: str | None, indices: str) -> str:
    """Return rows of a table. The run reports an index that is negative or behind the last row."""
    assert table is not None
    return str(n.b.index_select(table, indices, dim=0, wrap=False))


LOWERINGS: dict[str, OpLowering] = {
    "EmbedLayerNormalization": _embed_norm,
    "FusedConv": fused_conv(CONVOLUTIONS["Conv"]),
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _matmul,
    "GemmFastGelu": _gemm_fast_gelu,
    "SimplifiedLayerNormalization": _simplified_norm,
    "SkipLayerNormalization": _skip_norm(rms=False),
    "SkipSimplifiedLayerNormalization": _skip_norm(rms=True),
    "TransposeMatMul": _matmul,
}

DEFAULT_DOMAIN: dict[str, OpLowering] = {"SimplifiedLayerNormalization": _simplified_norm}
"""Ops that ONNX Runtime's optimizer writes in the default domain, although ONNX does not define them."""
