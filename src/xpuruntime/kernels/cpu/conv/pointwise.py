"""Convolutions with 1x1 kernels as matrix products: a pixel's channels are a row of the left side, which is read in place."""

from __future__ import annotations

from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....types import DType
from ...kernel import NodeCall
from ...spec.conv import act_of
from ...spec.conv_shape import ConvShape, strides_of
from ...spec.product import Product, Term, even_stride
from ..abi import isa_of
from ..matmul.gemm_tiling import by_tiles
from .tiling import ConvTiling

__all__ = ["pixels_apart", "pointwise"]

_STORED = {"F32": DType.FLOAT32, "F64": DType.FLOAT64, "Bf16Pairs": DType.BFLOAT16}
"""The dtype that each arithmetic multiplies without conversion."""
_WORD_BYTES = {"F32": 4, "F64": 8, "Bf16Pairs": 4}
"""Bytes of what the product multiplies at once: pixels in a concatenation with an odd number of bfloat16 channels are not whole pairs apart."""
_MAX_PIXEL_BYTES = 768
"""Maximum bytes of a pixel that are a single block of the depth (``tiling``)."""


def pixels_apart(shape: ConvShape, cut: ConvTiling, dtype: DType) -> int:
    """Return the bytes between pixels that the kernel reads in place (``PIXEL_BYTES`` of conv.h); 0 if it gathers them."""
    ones = (1, 1, 1)
    if shape.kernel != ones or shape.stride != ones or shape.size != shape.out or any(shape.begin):
        return 0
    if shape.groups != 1 or shape.transposed or shape.x[1] != 1 or cut.lines[0]:
        return 0
    rows = (shape.images, *shape.out)
    steps = [even_stride(rows, (v[0], *v[2:])) for v in (shape.x, shape.y, shape.r)]
    row_strides = [v[4] for v in (shape.x, shape.y, shape.r)]
    bytes_apart = shape.x[4] * dtype.bits // 8
    fits = (
        _STORED.get(cut.arithmetic) is dtype
        and cut.depth == shape.channels
        and 0 < bytes_apart <= _MAX_PIXEL_BYTES
        and bytes_apart % _WORD_BYTES[cut.arithmetic] == 0
    )
    return (
        bytes_apart
        if fits and steps == row_strides and cut.depth * dtype.bits // 8 <= _MAX_PIXEL_BYTES
        else 0
    )


def pointwise(call: NodeCall, shape: ConvShape, target: CodegenTarget) -> Product | None:
    """Return the product for AMX tiles; None if pixels are strided or padded, channels are strided, or AMX does not apply."""
    ones = (1, 1, 1)
    if (
        shape.kernel != ones
        or shape.stride != ones
        or shape.size != shape.out
        or shape.groups != 1
        or any(shape.begin)
    ):
        return None
    if shape.x[1] != 1 or shape.y[1] != 1 or shape.transposed:
        return None
    rows = (shape.images, *shape.out)

    def over(steps: tuple[int, ...]) -> tuple[int, ...]:  # n, c, d, h, w -> rows, then columns
        return (steps[0], *steps[2:], steps[1])

    w = call.tensor(1).spec.physical.strides
    terms = []
    if call.optional(2) is not None:
        terms.append(Term(2, call.tensor(2), (0, 0, 0, 0, 1)))
    if call.op == "fused_convolution" and call.optional(3) is not None:
        terms.append(Term(3, call.tensor(3), over(shape.r)))
    x = over(strides_of(call.tensor(0).spec, shape.rank))
    product = Product(
        0, 1, (), rows, shape.filters, shape.channels,
        (*x[:-1], 1), (w[1], w[0]), over(shape.y), tuple(terms), act=act_of(call),
    )  # fmt: skip
    isa: IsaLevel = isa_of(target)
    uses_amx = by_tiles(product, call.outputs[0].dtype, False, isa)
    return product if uses_amx and even_stride(rows, x[:-1]) is not None else None
