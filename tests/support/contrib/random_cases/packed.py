"""Random cases of packed weights."""

from __future__ import annotations

import numpy as np

from ..case import Case
from .draw import Draw, case, draws, trimmed


@draws("MatMulNBits")
def _nbits(d: Draw, n: str) -> Case:
    w = d.pick(2, 4, 4, 8)
    block = d.pick(16, 32, 64, 128)
    k = d.pick(block, block * 2, block * 3, block + 16, 48, 80)
    rows = d.pick(1, 3, 5, 16)
    blocks = -(-k // block)
    z = d.pick("", "", "packed", "floats")
    dt = d.pick(np.float32, np.float32, np.float32, np.float16)
    points = None
    if z == "packed":
        points = d.codes(rows, -(-blocks * w // 8)) if d.chance() else d.codes(rows * -(-blocks * w // 8))
    if z == "floats":
        points = d.random.uniform(0, 2**w - 1, (rows, blocks)).astype(dt)
    order = (np.arange(k) // block).astype(np.int32) if d.chance(0.2) else None
    if order is not None and d.chance():
        d.random.shuffle(order)
    bias = d.floats(rows, dtype=dt) if d.chance(0.4) else None
    sc = np.abs(d.floats(rows, blocks, dtype=dt, fine=True)) / 8
    if d.chance():
        sc = sc.reshape(-1)
    cdt = np.uint8 if d.chance(0.93) else np.int8
    at = {"K": k, "N": rows, "block_size": block}
    if w != 4 or d.chance():
        at["bits"] = w
    if d.chance(0.3):
        at["accuracy_level"] = d.pick(0, 1)
    return case(
        n,
        trimmed(
            [
                d.floats(*d.shape(d.pick(1, 1, 2)), k, dtype=dt),
                d.codes(rows, blocks, block * w // 8, dtype=cdt),
                sc,
                points,
                order,
                bias,
            ]
        ),
        at,
        weights=(1, 2, 3, 4, 5),
    )


@draws("MatMulBnb4")
def _bnb(d: Draw, n: str) -> Case:
    rows, k, block = d.pick(1, 3, 5, 8), d.pick(16, 32, 48, 7), d.pick(16, 32, 64)
    c = rows * k
    return case(
        n,
        [
            d.floats(*d.shape(d.pick(1, 2)), k),
            d.codes(-(-c // 2)),
            np.abs(d.floats(-(-c // block), fine=True)),
        ],
        {"K": k, "N": rows, "block_size": block, "quant_type": d.pick(0, 1)},
        weights=(1, 2),
    )


@draws("GatherBlockQuantized")
def _gbq(d: Draw, n: str) -> Case:
    w = d.pick(4, 4, 8, 2)
    block = d.pick(16, 32)
    blocks = d.pick(1, 2, 3)
    size = blocks * block
    idt = d.pick(np.int32, np.int64)
    ops = [
        d.codes(9, size * w // 8),
        d.random.integers(-9, 9, d.shape(d.pick(0, 1, 2))).astype(idt),
        np.abs(d.floats(9, blocks, fine=True, dtype=d.pick(np.float32, np.float16))),
    ]
    if d.chance():
        ops.append(d.codes(9, -(-blocks * w // 8)))
    at = {"block_size": block, "quantize_axis": d.pick(1, -1), "gather_axis": 0}
    if w != 4 or d.chance():
        at["bits"] = w
    if d.chance(0.2):
        at["gather_axis"] = d.pick(1, -2)
    return case(n, ops, at, weights=(0, 2, 3))
