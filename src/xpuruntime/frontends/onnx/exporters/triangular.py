"""Exporter of triangular systems: the matrix is inverted by blocks that double, and multiplied.

ONNX has no solver. The inverse of a lower triangular matrix of two blocks is made of the inverses ``p`` and ``q`` of the blocks on its
diagonal, and of ``-q @ block @ p``. All blocks of one size are inverted together, so that n rows take log2(n) steps.
"""

from __future__ import annotations

import numpy as np

from ....types import DType
from .graph_builder import Exporter, NodeExport

__all__ = ["EXPORTERS"]

_MAX_ROWS = 1024
"""Maximum rows: the blocks of a matrix are gathered by a table of indices."""


def _solve_triangular(e: NodeExport) -> None:
    a, n, dtype = e.spec(0), e.spec(0).shape[-1], e.node.spec.dtype
    if not isinstance(n, int) or not 0 < n <= _MAX_ROWS:
        raise e.no(f"a matrix of no rows, of more than {_MAX_ROWS} rows, or of a symbolic size")
    matrix = e.operand(0)
    swapped = [*range(a.rank - 2), a.rank - 1, a.rank - 2]
    if e["upper"]:
        matrix = e.add("Transpose", [matrix], perm=swapped)
    rows = 1 << (n - 1).bit_length()
    flat = e.add("Reshape", [matrix, e.builder.dims([*a.shape[:-2], n * n])])
    inverse, size = _pivots(e, flat, n, rows), 1
    while size < rows:
        inverse, size = _doubled(e, flat, inverse, n, size), 2 * size
    inverse = e.add("Squeeze", [inverse, e.ints([-3])])
    if rows != n:
        axes = e.ints([-2, -1])
        inverse = e.add("Slice", [inverse, e.ints([0, 0]), e.ints([n, n]), axes])
    if e["upper"]:
        inverse = e.add("Transpose", [inverse], perm=swapped)
    e.add("MatMul", [inverse, e.operand(1, dtype)], out=True)


def _pivots(e: NodeExport, flat: str, n: int, rows: int) -> str:
    """Return the inverses of blocks of one element, [..., rows, 1, 1]. Rows beyond the matrix have 1 on their diagonal."""
    dtype = e.spec(0).dtype
    if e["unitriangular"]:
        shape = e.builder.dims([*e.spec(0).shape[:-2], rows, 1, 1])
        return e.add("Expand", [e.constant(1, dtype), shape])
    diagonal = e.add("Gather", [flat, e.constant(np.arange(n) * (n + 1), DType.INT64)], axis=-1)
    if rows != n:
        diagonal = _padded(e, diagonal, rows - n, 1)
    return e.add("Unsqueeze", [e.add("Reciprocal", [diagonal]), e.ints([-1, -2])])


def _padded(e: NodeExport, value: str, count: int, fill: float) -> str:
    """Append elements to the last axis of a value of the rank of ``flat``, or of blocks, which have two axes more."""
    rank = e.spec(0).rank - 1 if fill else e.spec(0).rank + 1
    before_and_after = e.ints([*[0] * (2 * rank - 1), count])
    return e.add("Pad", [value, before_and_after, e.constant(fill, e.spec(0).dtype)])


def _doubled(e: NodeExport, flat: str, inverse: str, n: int, size: int) -> str:
    """Return the inverses of blocks of twice the size, [..., blocks / 2, 2 * size, 2 * size]."""
    rows = 1 << (n - 1).bit_length()
    begin = np.arange(0, rows, 2 * size)[:, None, None]
    row, column = begin + size + np.arange(size)[:, None], begin + np.arange(size)
    inside = (row < n) & (column < n)
    table = np.where(inside, row * n + column, 0)
    block = e.add("Gather", [flat, e.constant(table, DType.INT64)], axis=-1)
    if not inside.all():
        block = e.add("Where", [e.constant(inside, DType.BOOL), block, e.constant(0, e.spec(0).dtype)])
    even, odd = (
        e.add("Slice", [inverse, e.ints([k]), e.ints([rows]), e.ints([-3]), e.ints([2])]) for k in (0, 1)
    )
    below = e.add("Neg", [e.add("MatMul", [odd, e.add("MatMul", [block, even])])])
    return e.add("Concat", [_padded(e, even, size, 0), e.add("Concat", [below, odd], axis=-1)], axis=-2)


EXPORTERS: dict[str, Exporter] = {"solve_triangular": _solve_triangular}
