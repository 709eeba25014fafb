"""Cases of ONNX Runtime's attention ops: caches, windows, soft caps, sinks, rotation and packed operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Case, codes, floats, int32, scale, seeded

__all__ = ["CASES", "NORMED", "grouped", "multi", "quantized"]


def grouped(
    length: int,
    past: int | None,
    total: int,
    ends: tuple[int, ...],
    *,
    rotary: int = 0,
    packed: bool = False,
    bias: tuple[int, ...] | None = None,
    positions: bool = False,
    sink: bool = False,
    norms: bool = False,
    note: str,
    **attributes: Any,
) -> Case:
    """Return a case of GroupQueryAttention with six heads over two; ``ends``: the last key of each example."""
    batch, heads, kv_heads, size = len(ends), 6, 2, 16
    if packed:
        operands: list[Any] = [floats(batch, length, (heads + 2 * kv_heads) * size), None, None]
    else:
        operands = [floats(batch, length, h * size) for h in (heads, kv_heads, kv_heads)]
    caches = [None, None] if past is None else [floats(batch, kv_heads, past, size) for _ in range(2)]
    tables = [floats(total + 3, rotary) for _ in range(2)] if rotary else [None, None]
    first = np.array([[e + 1 - length] for e in ends]) if past else np.zeros((batch, 1), np.int64)
    places = (first + np.arange(length)).astype(np.int64) if positions else None
    added = None if bias is None else floats(*bias)
    sinks = floats(heads) if sink else None
    operands += [*caches, int32(*ends), np.asarray(total, np.int32), *tables, places, added, sinks]
    if norms:
        operands += [None, None, floats(size), floats(size)]
    fed = [i for i, o in enumerate(operands) if o is not None and i not in (6, 7, 8, 11, 14, 15)]
    words = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": int(bool(rotary)), **attributes}
    return Case("GroupQueryAttention", tuple(operands), words, tuple(fed), (0, 1, 2), note=note)


def multi(*operands: Any, note: str, outputs: tuple[int, ...] = (0,), **attributes: Any) -> Case:
    fed = [i for i, o in enumerate(operands) if o is not None and i != 3]
    return Case(
        "MultiHeadAttention", operands, {"num_heads": 3, **attributes}, tuple(fed), outputs, note=note
    )


def quantized(*rest: Any, columns: bool = False, note: str, **attributes: Any) -> Case:
    """Return a case of QAttention: two heads of five over seven inputs. ``rest``: the mask and the cache."""
    wide = np.abs(floats(30)) / 90 if columns else scale(0.01)
    zeros = codes(30, dtype=np.int8) if columns else np.asarray(2, np.int8)
    x, zero = codes(3, 5, 7), np.asarray(9, np.uint8)
    mask, past = (*rest, None, None)[:2]
    operands = (x, codes(7, 30, dtype=np.int8), floats(30), scale(0.02), wide, mask, zero, zeros, past)
    fed = [i for i in (0, 5, 8) if operands[i] is not None]
    outputs = (0, 1) if past is not None else (0,)
    return Case("QAttention", operands, {"num_heads": 2, **attributes}, tuple(fed), outputs, note=note)


FLAGS = np.array([[1, 1, 1, 0, 1], [1, 0, 1, 1, 1], [1, 1, 0, 0, 0]], np.int32)
LONG_FLAGS = np.array([[0, 1, 1, 1, 1, 1, 1], [1] * 7, [1, 1, 1, 1, 1, 0, 1]], np.int32)

seeded(1)
CASES = [
    grouped(5, None, 5, (4, 4, 4), note="prompt"),
    grouped(7, None, 7, (6,), rotary=8, note="prompt, rotated"),
    grouped(7, 0, 7, (6, 6), rotary=8, rotary_interleaved=1, packed=True, note="prompt, packed, interleaved, an empty cache"),
    grouped(5, 9, 5, (4, 4), rotary=8, note="prompt into a larger cache"),
    grouped(7, None, 7, (6, 6), local_window_size=3, softcap=5.0, note="prompt, window, soft cap"),
    grouped(5, None, 5, (4, 4), bias=(1, 6, 5, 5), scale=0.3, note="prompt, bias, scale"),
    grouped(5, None, 5, (4, 4), sink=True, note="prompt, sinks"),
    grouped(5, None, 5, (4, 4), smooth_softmax=1, local_window_size=2, note="prompt, smooth softmax, window"),
    grouped(1, 6, 7, (6, 6), rotary=8, note="one step"),
    grouped(1, 6, 7, (6, 3, 1), rotary=8, note="one step of examples of several lengths"),
    grouped(1, 11, 7, (6, 4), rotary=8, packed=True, note="one step in a larger cache"),
    grouped(1, 6, 7, (6, 5), rotary=8, positions=True, local_window_size=3, softcap=2.0, note="one step, positions, window, soft cap"),
    grouped(1, 6, 7, (6, 5), bias=(2, 1, 1, 7), note="one step, bias"),
    grouped(1, 11, 7, (6, 5), bias=(2, 1, 1, 7), sink=True, note="one step, bias, sinks, a larger cache"),
    grouped(3, 6, 9, (8,), rotary=8, note="several steps"),
    grouped(3, 11, 9, (8,), rotary=8, local_window_size=4, note="several steps in a larger cache, window"),
    multi(floats(2, 5, 9), floats(2, 7, 9), floats(2, 7, 12), note="values of another size"),
    multi(floats(2, 5, 9), floats(2, 7, 9), floats(2, 7, 9), floats(27), int32(5, 7), note="bias and lengths"),
    multi(floats(2, 5, 12), floats(2, 3, 7, 4), floats(2, 3, 7, 4), note="keys with heads"),
    multi(floats(2, 2, 12), floats(2, 2, 12), floats(2, 2, 12), floats(36), None, None, floats(2, 3, 5, 4), floats(2, 3, 5, 4), outputs=(0, 1, 2), note="cache"),
    multi(floats(3, 2, 12), floats(3, 2, 12), floats(3, 2, 12), None, LONG_FLAGS, floats(1, 3, 2, 7), floats(3, 3, 5, 4), floats(3, 3, 5, 4), outputs=(0, 1, 2), note="cache, flags, bias"),
    multi(floats(2, 3, 12), floats(2, 3, 12), floats(2, 3, 12), None, None, None, floats(2, 3, 4, 4), floats(2, 3, 4, 4), unidirectional=1, outputs=(0, 1, 2), note="cache, causal"),
    multi(floats(2, 5, 12), floats(2, 5, 12), floats(2, 5, 12), outputs=(0, 1, 2), unidirectional=1, note="causal, keys as outputs"),
    Case("Attention", (floats(3, 2, 7), floats(7, 30), floats(30), LONG_FLAGS, floats(2, 3, 2, 5, 5)), {"num_heads": 2}, (0, 3, 4), (0, 1), note="cache, flags"),
    Case("Attention", (floats(2, 3, 7), floats(7, 30), floats(30), None, floats(2, 2, 2, 4, 5)), {"num_heads": 2, "unidirectional": 1}, (0, 4), (0, 1), note="cache, causal"),
    Case("Attention", (floats(3, 5, 7), floats(7, 30), floats(30), int32(5, 4, 3, 1, 0, 2)), {"num_heads": 2}, (0, 3), note="ends and starts"),
    Case("Attention", (floats(3, 5, 7), floats(7, 26), floats(26), FLAGS), {"num_heads": 2, "qkv_hidden_sizes": [10, 10, 6]}, (0, 3), note="values of another size"),
    quantized(note="plain"),
    quantized(FLAGS, columns=True, note="scales of columns, flags"),
    quantized(int32(5, 4, 2), note="lengths"),
    quantized(None, floats(2, 3, 2, 4, 5), unidirectional=1, note="cache, causal"),
    Case("RotaryEmbedding", (floats(2, 4, 24), np.array([3], np.int64), floats(16, 4), floats(16, 4)), {}, (0, 1), note="one start"),
    Case("RotaryEmbedding", (floats(2, 5, 48), np.array([[0, 1, 2, 3, 9], [4, 5, 6, 7, 1]], np.int64), floats(16, 4), floats(16, 4)), {"rotary_embedding_dim": 8, "num_heads": 3}, (0, 1), note="a part of each head"),
    Case("Attention", (floats(2, 4, 8), floats(8, 24), floats(24)), {"num_heads": 2}, note="plain"),
    Case("Attention", (floats(2, 4, 8), floats(8, 24), floats(24), np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)), {"num_heads": 2}, (0, 3), note="flags"),
    Case("Attention", (floats(2, 4, 8), floats(8, 24), floats(24), np.array([3, 2], np.int32)), {"num_heads": 2}, (0, 3), note="lengths"),
    Case("Attention", (floats(2, 4, 8), floats(8, 24), floats(24)), {"num_heads": 4, "unidirectional": 1, "scale": 0.3}, note="causal, scale"),
    Case("MultiHeadAttention", (floats(2, 4, 8), floats(2, 5, 8), floats(2, 5, 8), floats(24), np.array([[1, 1, 1, 0, 1], [1, 1, 0, 0, 0]], np.int32)), {"num_heads": 2}, (0, 1, 2, 4), note="bias, flags"),
    Case("MultiHeadAttention", (floats(2, 4, 8), floats(2, 5, 8), floats(2, 5, 8), None, None, floats(1, 2, 4, 5)), {"num_heads": 2}, (0, 1, 2, 5), note="added bias"),
    Case("RotaryEmbedding", (floats(2, 3, 4, 8), np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.int64), floats(16, 4), floats(16, 4)), {"interleaved": 1}, (0, 1), note="interleaved"),
    Case("RotaryEmbedding", (floats(2, 4, 24), np.array([[0, 1, 2, 3], [4, 5, 6, 7]], np.int64), floats(16, 4), floats(16, 4)), {}, (0, 1), note="rows"),
]  # fmt: skip
NORMED = grouped(
    1, 6, 7, (6, 3), rotary=8, norms=True, qk_norm_epsilon=1e-3, note="norms of queries and keys"
)
"""A form without a kernel for CPUs in ONNX Runtime."""
