"""attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from torch import Tensor

from ...errors import InputError
from ..formulas.attention import ATTENTION, ATTENTION_BACKWARD
from ..numbered_policies import policy_number
from .library import TrainingOp, call, register
from .operands import float_operands

__all__ = ["attention", "obstacle"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    attn_mask: Tensor | None = None,
    *,
    number: int | None = None,
) -> Tensor:
    """Return softmax(q k^T scale + mask) v, as ``torch.nn.functional.scaled_dot_product_attention`` without dropout.

    q [..., heads, queries, size], k and v [..., heads, keys, size], of one float dtype. scale: by default 1 / sqrt(size).
    causal:     query i sees keys 0 to i.
    enable_gqa: k and v may have fewer heads, which divide those of q.
    attn_mask:  bool (True: the key is seen) or float (added), broadcast to [..., heads, queries, keys]. It has no gradient.
    number:     number of the policy; None: that of the current policy.
    """
    q, k, v = float_operands("attention", q, k, v)
    reason = obstacle(q, k, v, attn_mask, causal, enable_gqa)
    if reason:
        what, got, do = reason
        raise InputError("pytorch.ops.attention", what, got=got, do=do)
    shape, number = (*q.shape[:-1], v.shape[-1]), policy_number() if number is None else number
    mask = None if attn_mask is None else _mask_of_heads(attn_mask, q, k)
    y = call("attention", *map(_of_heads, (q, k, v)), mask, causal, scale, number)[0]
    return y if y.shape == shape else y.reshape(shape)


def obstacle(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, enable_gqa: bool
) -> tuple[str, str, str] | None:
    """Return why these operands cannot be computed: what is wrong, the value, what to do. None if they can."""
    shown = ", ".join(str(list(t.shape)) for t in (q, k, v))
    if min(q.dim(), k.dim(), v.dim()) < 2 or not q.dim() == k.dim() == v.dim():
        return "needs q, k and v [..., length, size] of one rank", shown, "Check the shapes."
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        return "needs q and k of one size, k and v of one length", shown, "Check the shapes."
    heads, groups = (t.shape[-3] if t.dim() > 2 else 1 for t in (q, k))
    if enable_gqa and (q.dim() < 4 or not groups or heads % groups):
        return "enable_gqa needs [batch, heads, length, size], and heads of k and v that divide those of q", shown, "Check the shapes."  # fmt: skip
    lead = -3 if enable_gqa else -2
    if q.shape[:lead] != k.shape[:lead] or k.shape[:-2] != v.shape[:-2]:
        return "needs q, k and v of one batch and one number of heads", shown, "Expand them first, or give enable_gqa=True."  # fmt: skip
    if mask is None:
        return None
    if causal:
        return "takes a mask or causal=True", "both", "Put the causal mask into attn_mask."
    if mask.dtype is not torch.bool and not mask.is_floating_point():
        return "needs a mask of bool or float", f"a tensor of {mask.dtype}", "Convert it first."
    if mask.requires_grad and torch.is_grad_enabled():
        return "has no gradient of the mask", "attn_mask.requires_grad", "Call scaled_dot_product_attention of PyTorch, or detach the mask."  # fmt: skip
    want = (*q.shape[:-1], k.shape[-2])
    have = tuple(mask.shape)
    if len(have) > len(want) or any(
        h not in (1, w) for h, w in zip(reversed(have), reversed(want), strict=False)
    ):
        return (
            "needs a mask that broadcasts to the scores",
            f"{list(have)} to {list(want)}",
            "Check the shapes.",
        )
    return None


def _of_heads(x: Tensor) -> Tensor:
    """Return a tensor as [batch, heads, length, size]."""
    if x.dim() == 4:
        return x
    return x.reshape(-1, 1, *x.shape[-2:]) if x.dim() < 4 else x.reshape(-1, *x.shape[-3:])


def _mask_of_heads(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    if mask.dim() <= 2 or q.dim() == 4:
        return mask
    return _of_heads(mask.expand(*q.shape[:-1], k.shape[-2]))


def _weights(
    q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Return the weights and the scores' log-sum-exp, in float32 at least."""
    repeats = q.shape[1] // max(k.shape[1], 1)
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    scores = q @ k.repeat_interleave(repeats, 1).mT * factor
    if mask is not None:
        scores = torch.where(mask, scores, -math.inf) if mask.dtype is torch.bool else scores + mask
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
        scores = torch.where(seen, scores, -math.inf)
    lse = torch.logsumexp(scores, -1) if k.shape[2] else scores.sum(-1) - math.inf
    blind = lse == -math.inf
    # Both branches are finite, so that the derivative of the one that is not taken is 0 and not NaN.
    shift = torch.where(blind, 0.0, lse)[..., None]
    return torch.where(blind[..., None], 0.0, torch.exp(scores - shift)), lse


def _attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None
) -> list[Tensor]:
    y = F.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    _, lse = _weights(_wide(q), _wide(k), mask, causal, scale)
    return [y, lse]


def _attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    y: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float | None,
) -> list[Tensor]:
    """Compute gradients from q, k and v alone, so that autograd sees every path from them."""
    wide_grad, wide_q, wide_k, wide_v = map(_wide, (grad, q, k, v))
    factor = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    repeats = q.shape[1] // max(k.shape[1], 1)
    weights, _ = _weights(wide_q, wide_k, mask, causal, scale)
    slopes = wide_grad @ wide_v.repeat_interleave(repeats, 1).mT
    slopes = weights * (slopes - (weights * slopes).sum(-1, keepdim=True)) * factor
    shape = (*k.shape[:2], repeats)
    grad_q = slopes @ wide_k.repeat_interleave(repeats, 1)
    grad_k = (slopes.mT @ wide_q).reshape(*shape, *k.shape[2:]).sum(2)
    grad_v = (weights.mT @ wide_grad).reshape(*shape, *v.shape[2:]).sum(2)
    return [grad_q.to(q.dtype), grad_k.to(k.dtype), grad_v.to(v.dtype)]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _shapes(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[Sequence[int]]:
    return [(*q.shape[:3], v.shape[3]), q.shape[:3]]


def _dtypes(q: Tensor, *_: Any) -> list[torch.dtype]:
    return [q.dtype, torch.promote_types(q.dtype, torch.float32)]


def _gradient_shapes(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> list[Sequence[int]]:
    return [q.shape, k.shape, v.shape]


register(
    TrainingOp(
        name="attention",
        family="attention",
        forward=ATTENTION,
        backward=ATTENTION_BACKWARD,
        attributes={"causal": "bool", "scale": "float?"},
        eager=_attention,
        eager_backward=_attention_backward,
        shapes=_shapes,
        dtypes=_dtypes,
        gradients=("q", "k", "v"),
        gradient_shapes=_gradient_shapes,
        saved=("q", "k", "v", "result0", "result1", "mask"),
        one_gradient=True,
    )
)
