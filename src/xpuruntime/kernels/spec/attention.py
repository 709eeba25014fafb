"""The shape of attention and of its gradients: sizes, strides over heads and positions, and supported dtypes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...decisions import Reason, Support
from ...types import DType
from ..kernel import NodeCall, Operand
from .product import sizes, strides_in
from .support import FLOATS

__all__ = ["AttentionGradients", "AttentionShape", "arguments", "mask_of", "moved_bytes", "supported"]

BACKWARD = "attention_backward"
"""The op of gradients. Its operands are grad, q, k, v, y, lse and the mask."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes and strides of a node of attention, of attention in training, or of its gradients. Strides are over [batch, head, position, element].

    group:   query heads per key head (GQA).
    d, dv:   elements of a head of queries and keys, and of values.
    offset:  with a causal mask, query i attends to keys up to i + offset.
    softcap: 0: none.
    lse:     strides of the log-sum-exp over [batch, head, position]; empty for the op ``attention``, which has none.
    """

    batch: int
    kv_heads: int
    group: int
    queries: int
    keys: int
    d: int
    dv: int
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    y: tuple[int, ...]
    mask: tuple[int, ...]
    causal: bool
    offset: int
    scale: float
    softcap: float
    dtype: DType
    mask_dtype: DType | None
    lse: tuple[int, ...] = ()

    @classmethod
    def of(cls, call: NodeCall) -> AttentionShape:
        first = 1 if call.op == BACKWARD else 0
        q, k, v = (call.tensor(first + i).spec for i in range(3))
        y = call.tensor(4).spec if first else call.outputs[0]
        results = (y, call.tensor(5).spec) if first else call.outputs
        (batch, heads, queries, d), (_, kv_heads, keys, dv) = sizes(q), sizes(v)
        mask = mask_of(call)
        scale = call.attrs["scale"]
        return cls(
            batch=batch,
            kv_heads=kv_heads,
            group=heads // max(kv_heads, 1),
            queries=queries,
            keys=keys,
            d=d,
            dv=dv,
            q=q.physical.strides,
            k=k.physical.strides,
            v=v.physical.strides,
            y=y.physical.strides,
            mask=strides_in(mask.spec, (batch, heads, queries, keys)) if mask else (),
            causal=call.attrs["causal"],
            offset=int(call.attrs["causal_offset"]),
            scale=1 / math.sqrt(max(d, 1)) if scale is None else float(scale),
            softcap=float(call.attrs.get("softcap", 0.0)),
            dtype=q.dtype,
            mask_dtype=None if mask is None else mask.spec.dtype,
            lse=results[1].physical.strides if len(results) > 1 else (),
        )

    @property
    def empty(self) -> bool:
        return not self.batch * self.kv_heads * self.group * self.queries * self.dv

    @property
    def flops(self) -> int:
        """Operations of both products, including the pairs that a causal mask skips."""
        return 2 * self.batch * self.kv_heads * self.group * self.queries * self.keys * (self.d + self.dv)


@dataclass(frozen=True, slots=True)
class AttentionGradients:
    """Strides of a node of gradients over [batch, head, position, element]: the gradient of y, and the results."""

    y: tuple[int, ...]
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]

    @classmethod
    def of(cls, call: NodeCall) -> AttentionGradients:
        return cls(*(s.physical.strides for s in (call.tensor(0).spec, *call.outputs)))


def mask_of(call: NodeCall) -> Operand | None:
    """Return the mask of a node, or None."""
    return call.optional(6 if call.op == BACKWARD else 3)


def supported(call: NodeCall) -> Support:
    """Return yes for floats, with a mask of bools or floats. In training, heads must have elements."""
    dtype = call.outputs[0].dtype
    if dtype not in FLOATS:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"attention in {dtype.value} is not supported")
    s = AttentionShape.of(call)
    if s.lse and not s.d * s.dv * s.group:
        got = f"{s.kv_heads * s.group} heads of {s.d} and {s.dv} elements"
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"training needs heads with elements, got {got}")
    mask = mask_of(call)
    if mask is not None and mask.spec.dtype not in {DType.BOOL, *FLOATS}:
        return Support.no(
            Reason.DTYPE_UNSUPPORTED, f"the mask must be bool or float, not {mask.spec.dtype.value}"
        )
    return Support.yes()


def arguments(call: NodeCall) -> tuple[str, ...]:
    """Return the arguments: queries, keys, values, and the mask if present."""
    return ("in0", "in1", "in2", *(("in3",) if call.optional(3) else ()))


def moved_bytes(call: NodeCall) -> int:
    """Return the minimum memory traffic in bytes: operands and results once."""
    return sum(s.size_bytes or 0 for s in (*(o.spec for o in call.tensors), *call.outputs))
