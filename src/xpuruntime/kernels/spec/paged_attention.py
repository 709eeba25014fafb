"""``paged_attention``: its sizes and strides, supported calls, and how keys are split."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...decisions import Reason, Support
from ...types import DType
from ..kernel import NodeCall
from .product import sizes
from .support import FLOATS, refuse

__all__ = ["PagedShape", "supported"]

_MIN_KEYS_PER_SPLIT = 512
_MAX_SPLITS = 16
"""Limits of the splits of a text's keys. They depend on the table's size alone, so that a result does not depend on the other texts."""


@dataclass(frozen=True, slots=True)
class PagedShape:
    """Sizes and strides of a node. Strides are over [batch, head, position, element], those of caches over [row, head, element].

    group:  query heads per key head (GQA).
    blocks: blocks of the cache. listed: blocks of a table.
    places: biases of a head, 0 without. by_key: they are those of keys, not of distances.
    """

    batch: int
    kv_heads: int
    group: int
    length: int
    d: int
    dv: int
    blocks: int
    listed: int
    block_size: int
    window: int
    scale: float
    softcap: float
    dtype: DType
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    y: tuple[int, ...]
    tables: tuple[int, ...]
    positions: tuple[int, ...]
    places: int
    by_key: bool
    biases: tuple[int, ...]

    @classmethod
    def of(cls, call: NodeCall) -> PagedShape:
        q, k, v, tables, positions = (call.tensor(i).spec for i in range(5))
        (batch, heads, length, d), (rows, kv_heads, dv) = sizes(q), sizes(v)
        attrs, biases = call.attrs, call.optional(5)
        return cls(
            batch=batch,
            kv_heads=kv_heads,
            group=heads // max(kv_heads, 1),
            length=length,
            d=d,
            dv=dv,
            blocks=rows // attrs["block_size"],
            listed=sizes(tables)[1],
            block_size=attrs["block_size"],
            window=attrs["window"],
            scale=1 / math.sqrt(max(d, 1)) if attrs["scale"] is None else float(attrs["scale"]),
            softcap=float(attrs["softcap"]),
            dtype=q.dtype,
            q=q.physical.strides,
            k=k.physical.strides,
            v=v.physical.strides,
            y=call.outputs[0].physical.strides,
            tables=tables.physical.strides,
            positions=positions.physical.strides,
            places=0 if biases is None else sizes(biases.spec)[1],
            by_key=bool(attrs["by_key"]),
            biases=() if biases is None else biases.spec.physical.strides,
        )

    @property
    def empty(self) -> bool:
        return not self.batch * self.kv_heads * self.group * self.length * self.dv

    def bias(self, head: str, query: str, key: str) -> str:
        """Return the C++ text of the bias of a score: of a head, and of the positions of a query and a key."""
        place = key if self.by_key else f"{query} - {key}"
        step = f"({place} < {self.places - 1} ? {place} : {self.places - 1}) * {self.biases[1]}"
        return f"biases[({head}) * {self.biases[0]} + {step}]"

    @property
    def keys(self) -> int:
        """Positions that a table covers."""
        return self.listed * self.block_size

    @property
    def keys_per_split(self) -> int:
        """Keys of a split, a multiple of the block size."""
        least = max(_MIN_KEYS_PER_SPLIT, math.ceil(self.keys / _MAX_SPLITS))
        return math.ceil(least / self.block_size) * self.block_size

    @property
    def splits(self) -> int:
        return max(1, math.ceil(self.keys / self.keys_per_split))

    @property
    def flops(self) -> int:
        """Operations if every query sees all positions that a table covers."""
        seen = min(self.keys, self.window or self.keys)
        return 2 * self.batch * self.kv_heads * self.group * self.length * seen * (self.d + self.dv)


def supported(call: NodeCall) -> Support:
    """Return yes for floats whose rows have contiguous elements."""
    q, k, v = (call.tensor(i).spec for i in range(3))
    if q.dtype not in FLOATS:
        return refuse(q.dtype, call.op)
    if not sizes(k)[0] or not sizes(q)[3] or not sizes(call.tensor(3).spec)[1]:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "a cache without rows, or heads without elements")
    if any(s.physical.strides[-1] != 1 and sizes(s)[-1] != 1 for s in (k, v)):
        return Support.no(Reason.SHAPE_UNSUPPORTED, "the last dim of the caches must be contiguous")
    return Support.yes()
