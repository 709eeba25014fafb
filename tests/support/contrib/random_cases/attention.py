"""Random cases of attention, caches and rotation."""

from __future__ import annotations

import numpy as np

from ..case import Case
from .draw import Draw, case, draws, trimmed


@draws("Attention", "QAttention")
def _attn(d: Draw, n: str) -> Case:
    d.special = False  # a query whose scores are all -inf is 0 here and NaN there
    b, length, i, heads, size = (
        d.pick(1, 2, 3),
        d.pick(1, 2, 5, 7),
        d.pick(3, 7, 8),
        d.pick(1, 2, 3),
        d.pick(1, 4, 5),
    )
    h = heads * size
    vs = d.pick(size, size, 3) if n == "Attention" else size
    past = d.pick(None, None, 0, 3) if vs == size else None
    total = length + (past or 0)
    at = {"num_heads": heads}
    if vs != size:
        at["qkv_hidden_sizes"] = [h, h, heads * vs]
    if d.chance(0.3):
        at["unidirectional"] = d.pick(0, 1)
    if d.chance(0.3):
        at["scale"] = d.pick(0.3, 1.0, 0.0)
    if d.chance(0.3):
        at["mask_filter_value"] = d.pick(-100.0, -3e38, -1e4)

    def mask():
        k = d.pick(0, 0, 1, 2, 3, 4)
        if k == 1:
            return d.random.integers(0, 2, (b, total)).astype(np.int32)
        if k == 2:
            return d.random.integers(0, total + 2, b).astype(np.int32)
        if k == 3:
            return np.concatenate(
                [d.random.integers(1, total + 1, b), d.random.integers(0, total, b)]
            ).astype(np.int32)
        if k == 4:
            return d.random.integers(0, 2, (b, length, total)).astype(np.int32)
        return None

    p = None if past is None else d.floats(2, b, heads, past, size)
    if n == "Attention":
        w = 2 * h + heads * vs
        bias = d.floats(d.pick(1, b), d.pick(1, heads), length, total) if d.chance(0.3) else None
        ops = [d.floats(b, length, i), d.floats(i, w), d.floats(w), mask(), p, bias]
        return case(n, trimmed(ops), at, (0, 1) if p is not None or d.chance(0.2) else (0,), weights=(1, 2))
    cols = d.chance(0.4)
    dt = d.byte()
    ops = [
        d.codes(b, length, i),
        d.codes(i, 3 * h, dtype=dt),
        d.floats(3 * h, fine=True),
        np.float32(0.02),
        d.scale(3 * h) / 3 if cols else np.float32(0.01),
        mask(),
        np.asarray(9, np.uint8) if d.chance(0.7) else None,
        (np.zeros(3 * h, dt) if cols else d.zero(dt)) if d.chance(0.7) else None,
        p,
    ]
    return case(n, trimmed(ops), at, (0, 1) if p is not None else (0,), weights=(1, 2, 3, 4, 6, 7))


@draws("MultiHeadAttention")
def _mha(d: Draw, n: str) -> Case:
    b, length, heads, size = d.pick(1, 2, 3), d.pick(1, 2, 5, 7), d.pick(1, 2, 3), d.pick(1, 4, 5)
    kl = d.pick(length, length, 3, 7)
    vs = d.pick(size, size, 3)
    past = d.pick(None, None, None, 0, 3)
    if past is not None:
        kl, vs = length, size
    total = kl + (past or 0)
    h = heads * size
    at = {"num_heads": heads}
    if d.chance(0.3):
        at["unidirectional"] = d.pick(0, 1)
    if d.chance(0.3):
        at["scale"] = d.pick(0.3, 0.0)
    if d.chance(0.3):
        at["mask_filter_value"] = d.pick(-100.0, -3e38)
    k = [d.floats(b, kl, h), d.floats(b, kl, heads * vs)]
    if d.chance(0.15) and past is None:
        k = [d.floats(b, heads, kl, size), d.floats(b, heads, kl, vs)]
    bias = d.floats(2 * h + heads * vs) if d.chance(0.4) else None
    m = d.pick(0, 0, 1, 2, 3, 4)
    mask = [
        None,
        d.random.integers(0, 2, (b, total)).astype(np.int32),
        d.random.integers(0, total + 2, b).astype(np.int32),
        d.random.integers(0, 2, (b, length, total)).astype(np.int32),
        np.concatenate([d.random.integers(1, total + 1, b), np.arange(b + 1), np.arange(b + 1)]).astype(
            np.int32
        ),
    ][m]
    ab = d.floats(d.pick(1, b), d.pick(1, heads), length, total) if d.chance(0.3) else None
    ops = [d.floats(b, length, h), *k, bias, mask, ab] + (
        [d.floats(b, heads, past, size) for _ in range(2)] if past is not None else []
    )
    return case(n, trimmed(ops), at, (0, 1, 2) if past is not None else d.pick((0,), (0, 1, 2)), weights=(3,))


@draws("RotaryEmbedding")
def _rot(d: Draw, n: str) -> Case:
    b, length, heads, size = d.pick(1, 2), d.pick(1, 3, 5), d.pick(1, 2, 3), d.pick(2, 4, 8, 6)
    half = size // 2
    at = {}
    part = d.chance(0.3) and size > 2
    if part:
        half = d.pick(*range(1, half)) if half > 1 else half
        at |= {"rotary_embedding_dim": 2 * half, "num_heads": heads}
    elif d.chance(0.4):
        at["num_heads"] = heads
    if d.chance():
        at["interleaved"] = d.pick(0, 1)
    if d.chance(0.2):
        at["scale"] = d.pick(1.0, 2.0)
    if d.chance(0.1):
        at["is_packed_batching"] = d.pick(0, 1)
    x = d.floats(b, heads, length, size) if d.chance(0.4) else d.floats(b, length, heads * size)
    pos = d.random.integers(0, 11, (b, length)) if d.chance(0.6) else d.random.integers(0, 11 - length, (1,))
    return case(n, [x, pos, d.floats(11, half), d.floats(11, half)], at, weights=(2, 3))


@draws("GroupQueryAttention")
def _gqa(d: Draw, n: str) -> Case:
    kv, g, size = d.pick(1, 2, 3), d.pick(1, 2, 3), d.pick(16, 32)
    heads = kv * g
    b = d.pick(1, 2, 3)
    stage = d.pick("prompt", "prompt", "step", "steps", "buffer")
    if stage == "prompt":
        (
            length,
            past,
        ) = d.pick(1, 2, 5, 7), d.pick(None, 0, 9)
        total = length
    elif stage == "step":
        length, past = 1, d.pick(1, 6, 11)
        total = d.pick(past + 1, *([past, past - 1] if past > 2 else []))
    elif stage == "buffer":
        length, past = 1, 9
        total = d.pick(2, 5, 9)
    else:
        b, length, past = 1, d.pick(2, 3), d.pick(5, 11)
        total = d.pick(past + length, past)
    slots = max(past or 0, total)
    packed = d.chance(0.3)
    at = {"num_heads": heads, "kv_num_heads": kv}
    rot = d.pick(0, 0, 16, size)
    if rot:
        at |= {"do_rotary": 1}
        at |= {"rotary_interleaved": d.pick(0, 1)} if d.chance() else {}
    if d.chance(0.3):
        at["local_window_size"] = d.pick(-1, 1, 2, 4)
    if d.chance(0.3):
        at["softcap"] = d.pick(0.0, 2.0)
    if d.chance(0.3):
        at["scale"] = d.pick(0.3, 0.0)
    if d.chance(0.2):
        at["smooth_softmax"] = d.pick(0, 1)
    if d.chance(0.15):
        at["causal"] = d.pick(0, 1)
    f = d.floats
    d.special = False
    ops = (
        [f(b, length, (heads + 2 * kv) * size), None, None]
        if packed
        else [f(b, length, x * size) for x in (heads, kv, kv)]
    )
    ops += [None, None] if past is None else [d.floats(b, kv, past, size, fine=True) for _ in range(2)]
    low = 0 if stage == "prompt" else length - 1
    high = length if stage == "prompt" else slots
    ends = d.random.integers(low, high, b).astype(np.int32)
    if d.chance(0.2):
        ends[0] = d.pick(-1, slots, slots - 1, low - 1, high)
    ops += [ends, np.asarray(total, np.int32)]
    rows = max(total, slots) + d.pick(0, 3)
    ops += [d.floats(rows, rot // 2, fine=True) for _ in range(2)] if rot else [None, None]
    ops += [d.random.integers(0, rows, (b, length)) if rot and d.chance(0.3) else None]
    ops += [f(1, d.pick(1, heads), length, total) if d.chance(0.2) else None]
    ops += [d.floats(heads, fine=True) if d.chance(0.2) and not at.get("smooth_softmax") else None]
    return case(
        n,
        trimmed(ops),
        at,
        d.pick((0, 1, 2), (0,)) if past is None else (0, 1, 2),
        weights=(6, 7, 8, 11) + ((5,) if d.chance(0.2) else ()),
    )
