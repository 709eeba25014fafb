"""Lowering of attention as one op, with grouped heads unchanged."""

from __future__ import annotations

from ....types import DimLike
from ...not_lowered import NotLowered
from .context import AtenLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]


def _four(n: AtenLoweringContext, value: str, lead: tuple[DimLike, ...]) -> str:
    """Return [..., heads, length, size] as rank 4: the dims before the heads become one."""
    shape = n.spec(value).shape
    if len(shape) == 4:
        return value
    batch: DimLike = 1
    for d in lead:
        batch = batch * d
    heads = shape[-3] if len(shape) > 2 else 1
    return str(n.b.view(value, size=[batch, heads, *shape[-2:]]))


def _attention(n: AtenLoweringContext) -> Results:
    """Lower scaled_dot_product_attention. Both PyTorch and the IR give 0 for a query whose mask hides every key.

    ``enable_gqa`` needs no attribute: the IR's op shares key heads among query heads whenever their numbers differ.
    """
    if n["dropout_p"] != 0.0:
        raise NotLowered("dropout is not supported")
    n.ignore("enable_gqa")
    q, k, v = n.t("query"), n.t("key"), n.t("value")
    lead = n.spec(q).shape[:-3]
    for value in (k, v):
        if n.spec(value).shape[:-3] != lead:
            raise NotLowered("broadcast batch dims are not supported")
    if not n.args["enable_gqa"] and not n.spec(q).shape[-3:-2] == n.spec(k).shape[-3:-2]:
        raise NotLowered("broadcast heads are not supported")
    if n.spec(k).shape[-3:-2] != n.spec(v).shape[-3:-2]:
        raise NotLowered("keys and values have different numbers of heads")
    mask, scale = n.opt("attn_mask"), n["scale"]
    if mask is not None and n.spec(q).rank != 4 and n.spec(mask).rank > 2:
        want = (*lead, *n.spec(q).shape[-3:-2])
        if n.spec(mask).shape[:-2] != want:
            raise NotLowered("its mask is broadcast over batch dims of another rank")
        mask = _four(n, mask, lead)
    if scale is None and n.spec(q).shape[-1] == 0:
        raise NotLowered("its head size is 0")
    y = n.b.attention(
        *(_four(n, t, lead) for t in (q, k, v)),
        mask,
        causal=n["is_causal"],
        scale=None if scale is None else float(scale),
    )
    output = str(y)
    shape = n.out().shape
    return output if len(shape) == 4 else str(n.b.view(output, size=shape))


LOWERINGS: dict[str, OpLowering] = {"scaled_dot_product_attention": _attention}
