"""Cases of ONNX Runtime's ops on packed weights: codes of 2, 4 and 8 bits, tables, and rows of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import RANDOM, Case, codes, floats, seeded

__all__ = ["CASES", "bits"]


def bits(
    width: int,
    rows: int,
    size: int,
    block: int,
    *,
    zeros: str = "",
    groups: bool = False,
    bias: bool = False,
    note: str,
    **attributes: Any,
) -> Case:
    """Return a case of MatMulNBits. ``zeros``: none, ``packed`` codes, or ``floats``."""
    blocks = -(-size // block)
    points: Any = None
    if zeros == "packed":
        points = codes(rows * -(-blocks * width // 8))
    elif zeros == "floats":
        points = RANDOM.uniform(0, 2**width - 1, (rows, blocks)).astype(np.float32)
    order = np.sort(RANDOM.integers(0, blocks, size)).astype(np.int32) if groups else None
    operands = (
        floats(2, 3, size),
        codes(rows, blocks, block * width // 8),
        np.abs(floats(rows, blocks)) / 8,
        points,
        order,
        floats(rows) if bias else None,
    )
    words = {"K": size, "N": rows, "bits": width, "block_size": block, **attributes}
    return Case("MatMulNBits", operands, words, note=note)


def table(kind: int, rows: int, size: int, block: int) -> Case:
    count = rows * size
    operands = (floats(3, size), codes(-(-count // 2)), np.abs(floats(-(-count // block))))
    words = {"K": size, "N": rows, "block_size": block, "quant_type": kind}
    return Case("MatMulBnb4", operands, words, note=f"table {kind}")


def rows_of(width: int, block: int, size: int, *, zeros: bool) -> Case:
    """Return a case of GatherBlockQuantized with a table of nine rows."""
    blocks = -(-size // block)
    operands = (
        codes(9, size * width // 8),
        RANDOM.integers(-9, 9, (2, 5)),
        np.abs(floats(9, blocks)),
        *((codes(9, -(-blocks * width // 8)),) if zeros else ()),
    )
    words = {"bits": width, "block_size": block, "quantize_axis": 1, "gather_axis": 0}
    return Case(
        "GatherBlockQuantized", operands, words, (1,), note=f"{width} bits{', zero points' if zeros else ''}"
    )


seeded(3)
CASES = [
    bits(4, 6, 64, 16, note="4 bits"),
    bits(4, 5, 96, 32, zeros="packed", note="4 bits, an odd number of zero points"),
    bits(4, 7, 80, 32, zeros="packed", bias=True, note="4 bits, a last block that is not full, bias"),
    bits(4, 5, 64, 32, zeros="floats", note="4 bits, zero points in floats"),
    bits(4, 5, 96, 32, zeros="packed", accuracy_level=4, note="4 bits, int8 activations"),
    bits(8, 5, 96, 32, zeros="packed", note="8 bits"),
    bits(8, 5, 80, 16, note="8 bits without zero points"),
    bits(2, 5, 96, 32, note="2 bits"),
    bits(2, 5, 96, 16, zeros="packed", note="2 bits, zero points"),
    bits(4, 5, 96, 32, groups=True, zeros="floats", note="4 bits, inputs that name their block"),
    table(0, 6, 32, 16),
    table(1, 5, 32, 64),
    rows_of(4, 16, 32, zeros=True),
    rows_of(4, 16, 48, zeros=False),
    rows_of(8, 32, 64, zeros=True),
]
