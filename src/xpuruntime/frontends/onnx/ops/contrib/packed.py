"""Lowerings of ONNX Runtime's ops on packed weights (``com.microsoft``): codes of a few bits, with a scale per block.

Weights become floats in recipes, once, when they are loaded. With a policy of ``weights: int4`` the native engine finds the same codes again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .....types import DType, TensorSpec
from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext, OpLowering, Results, may_equal, numbers

__all__ = ["LOWERINGS"]

_PER_BYTE = {2: 4, 4: 2, 8: 1}
"""Bits of a code -> codes per byte."""


def _codes(n: OnnxLoweringContext, packed: str, bits: int, kind: DType) -> str:
    """Return the codes of bytes as floats, the lowest bits first; the last dim grows by the codes per byte.

    Weight recipes have no shifts: a product that wraps around drops the upper bits, and the difference of two remainders is one code.
    """
    *front, last = n.spec_of(packed).shape
    count = _PER_BYTE[bits]
    fields, below = [], None
    for i in range(count):
        spare = 8 - bits * (i + 1)
        upper = n.b.mul(packed, 2**spare) if spare else packed
        rest = n.b.cast(upper, dtype=DType.FLOAT32)
        rest = n.b.mul(rest, 2.0**-spare) if spare else rest  # the byte modulo 2^(bits * (i + 1))
        field = rest if below is None else n.b.mul(n.b.sub(rest, below), 2.0 ** (-bits * i))
        fields.append(str(field))
        below = rest
    axis = len(front) + 1
    columns = [n.b.unsqueeze(v, dims=[axis]) for v in fields]
    joined = columns[0] if count == 1 else n.b.call("cat", *columns, dim=axis)
    return n.cast(str(n.b.view(joined, size=[*front, last * count])), kind)


def _bits(n: OnnxLoweringContext) -> int:
    bits = int(n.attr("bits", 4))
    if bits not in _PER_BYTE:
        raise NotLowered(f"codes of {bits} bits are not supported")
    return bits


def _first(n: OnnxLoweringContext, x: str, dim: int, count: int) -> str:
    """Return the first ``count`` of a dim."""
    have = n.spec_of(x).shape[dim]
    return x if have == count else str(n.b.call("slice", x, dim=dim, start=0, end=count, step=1))


# ── products ──


def _matmul(n: OnnxLoweringContext) -> Results:
    """Lower MatMulNBits: rows of codes in blocks along the inputs, or in the groups that ``g_idx`` names."""
    bits, kind = _bits(n), n.spec().dtype
    rows, size, block = (int(n.attr(a)) for a in ("N", "K", "block_size"))
    blocks = -(-size // block)
    n = _checked(n, bits, rows, blocks, block)
    codes = _codes(n, str(n.b.view(n.input(1), size=[rows, blocks * block * bits // 8])), bits, kind)
    scales = str(n.b.view(n.cast(n.input(2), kind), size=[rows, blocks]))
    zeros = _zero_points(n, bits, rows, blocks, kind)
    if n.opt(4) is not None:
        if bits != 4:
            raise NotLowered(
                f"g_idx next to codes of {bits} bits is not supported, since ONNX Runtime gives other results"
            )
        if n.opt(3) is not None and n.spec(3).dtype is DType.UINT8:
            raise NotLowered("ONNX Runtime ignores packed zero points next to g_idx, so results would differ")
        weight = _grouped(n, _first(n, codes, 1, size), scales, zeros, size)
    else:
        whole = str(n.b.view(codes, size=[rows, blocks, block]))
        columns = [n.b.view(v, size=[rows, blocks, 1]) if isinstance(v, str) else v for v in (zeros, scales)]
        scaled = n.b.mul(n.b.sub(whole, columns[0]), columns[1])
        weight = _first(n, str(n.b.view(scaled, size=[rows, blocks * block])), 1, size)
    return str(n.b.linear(n.x, weight, n.opt(5)))


def _checked(n: OnnxLoweringContext, bits: int, rows: int, blocks: int, block: int) -> OnnxLoweringContext:
    """Return the node with operands of the shapes that its attributes say. Raise NotLowered for another type or shape."""
    if block < 16 or block & (block - 1):
        raise NotLowered(f"blocks of {block} are not supported; their size is a power of two from 16 on")
    kind, size = n.spec().dtype, int(n.attr("K"))
    packed = n.opt(3) is not None and n.spec(3).dtype is DType.UINT8
    zeros = (rows, -(-blocks * bits // 8)) if packed else (rows, blocks)
    layouts: tuple[tuple[str, DType, tuple[tuple[int, ...], ...]], ...] = (
        ("codes", DType.UINT8, ((rows, blocks, block * bits // 8),)),
        ("scales", kind, _flat_or(rows, blocks)),
        ("zero points", DType.UINT8 if packed else kind, _flat_or(*zeros)),
        ("g_idx", DType.INT32, ((size,), (blocks * block,))),
        ("bias", kind, ((rows,),)),
    )
    for position, (name, dtype, shapes) in enumerate(layouts, 1):
        if n.opt(position) is not None:
            spec = n.spec(position)
            fitting = [shape for shape in shapes if may_equal(spec.shape, shape)]
            if spec.dtype is not dtype or not fitting:
                possible = " or ".join(str(TensorSpec(shape, dtype)) for shape in shapes)
                raise NotLowered(f"its {name} are {spec} instead of {possible}")
            n = n.with_operand(position, n.sized(n.input(position), fitting[0]))
    if not may_equal(n.spec().shape[-1:], (size,)):
        raise NotLowered(f"its operand has {n.spec().shape[-1]} columns, and K is {size}")
    return n


def _flat_or(rows: int, columns: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a matrix and of its elements in a row."""
    return (rows, columns), (rows * columns,)


def _zero_points(n: OnnxLoweringContext, bits: int, rows: int, blocks: int, kind: DType) -> Any:
    """Return the zero point of each block, [rows, blocks], or the one of all of them."""
    if n.opt(3) is None:
        return float(2 ** (bits - 1))
    if n.spec(3).dtype is not DType.UINT8:
        return str(n.b.view(n.cast(n.input(3), kind), size=[rows, blocks]))
    width = -(-blocks // _PER_BYTE[bits])
    packed = str(n.b.view(n.input(3), size=[rows, width]))
    return _first(n, _codes(n, packed, bits, kind), 1, blocks)


def _grouped(n: OnnxLoweringContext, codes: str, scales: str, zeros: Any, size: int) -> str:
    """Return the weight if each input names its block."""
    groups = _first(n, n.input(4), 0, size)
    scale = n.b.index_select(scales, groups, dim=1)
    zero = n.b.index_select(zeros, groups, dim=1) if isinstance(zeros, str) else zeros
    return str(n.b.mul(n.b.sub(codes, zero), scale))


_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_TABLES = {0: (*_FP4, *(-v for v in _FP4)), 1: _NF4}
"""``quant_type`` -> the value of each code, as a share of the block's largest one: 4-bit floats and the quantiles of a normal distribution."""


def _matmul_bnb4(n: OnnxLoweringContext) -> Results:
    """Lower MatMulBnb4: codes name values of a table, the upper half of a byte first; blocks run over the flattened rows."""
    kind, table = int(n.attr("quant_type", 1)), n.spec().dtype
    rows, size, block = (int(n.attr(a)) for a in ("N", "K", "block_size"))
    if not n.attr("transB", 1) or kind not in _TABLES:
        raise NotLowered("only rows of outputs and quant_type 0 and 1 are supported")
    count, blocks = rows * size, -(-rows * size // block)
    halves = str(n.b.view(_codes(n, n.input(1), 4, DType.FLOAT32), size=[-(-count // 2), 2]))
    codes = n.cast(str(n.b.view(n.b.flip(halves, dims=[1]), size=[-(-count // 2) * 2])), DType.INT32)
    values = n.b.constant(np.asarray(_TABLES[kind], table.numpy))
    flat = str(n.b.index_select(values, _first(n, codes, 0, count), dim=0))
    if blocks * block != count:
        flat = str(n.b.pad(flat, pads=[0, blocks * block - count]))
    scales = n.b.view(n.cast(n.input(2), table), size=[blocks, 1])
    scaled = n.b.view(n.b.mul(n.b.view(flat, size=[blocks, block]), scales), size=[blocks * block])
    weight = n.b.view(_first(n, str(scaled), 0, count), size=[rows, size])
    return str(n.b.linear(n.x, weight))


# ── rows of a table ──


def _gather_blocks(n: OnnxLoweringContext) -> Results:
    """Lower GatherBlockQuantized: rows of codes, then their floats."""
    spec, rank = n.spec(), n.spec().rank
    bits = _bits(n) if spec.dtype is DType.UINT8 else spec.dtype.bits
    gather, quantize = (int(n.attr(a, d)) for a, d in (("gather_axis", 0), ("quantize_axis", 1)))
    if gather not in (0, -rank) or quantize not in (-1, rank - 1):
        raise NotLowered("only rows of the first dim with blocks along the last one are supported")
    kind, block = n.spec(2).dtype, int(n.attr("block_size", 128))
    (width,) = numbers(spec.shape[-1:], "the number of columns")
    packed = spec.dtype is DType.UINT8
    size = width * _PER_BYTE[bits] if packed else width
    if block < 16 or block & (block - 1):
        raise NotLowered(f"blocks of {block} are not supported; their size is a power of two from 16 on")
    table = (*spec.shape[:-1], -(-size // block))
    if not may_equal(n.spec(2).shape, table):
        raise NotLowered(f"scales {n.spec(2)} of {size} columns in blocks of {block} are not supported")
    n = n.with_operand(2, n.sized(n.input(2), table))

    def row(position: int) -> str:
        codes = str(n.b.index_select(n.input(position), n.input(1), dim=0))
        return _codes(n, codes, bits, kind) if packed else n.cast(codes, kind)

    codes, scales = row(0), str(n.b.index_select(n.input(2), n.input(1), dim=0))
    front, (blocks,) = n.spec_of(codes).shape[:-1], numbers(n.spec_of(scales).shape[-1:], "the blocks")
    if n.opt(3) is None:
        zeros: Any = float(2 ** (bits - 1)) if spec.dtype is DType.UINT8 else 0.0
    else:
        zeros = str(n.b.unsqueeze(_first(n, row(3), len(front), blocks), dims=[len(front) + 1]))
    if blocks * block != size:
        codes = str(n.b.pad(codes, pads=[*[0] * (2 * len(front) + 1), blocks * block - size]))
    whole = n.b.view(codes, size=[*front, blocks, block])
    scaled = n.b.mul(n.b.sub(whole, zeros), n.b.unsqueeze(scales, dims=[len(front) + 1]))
    return _first(n, str(n.b.view(scaled, size=[*front, blocks * block])), len(front), size)


LOWERINGS: dict[str, OpLowering] = {
    "GatherBlockQuantized": _gather_blocks,
    "MatMulBnb4": _matmul_bnb4,
    "MatMulNBits": _matmul,
}
