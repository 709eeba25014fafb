"""linear_cross_entropy: the loss of a language model's head, whose logits are never in memory as a whole."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from torch import Tensor

from ...errors import InputError, RunError
from ..formulas.cross_entropy import CROSS_ENTROPY, CROSS_ENTROPY_GRADIENTS
from ..numbered_policies import policy_number, policy_of
from ..programs import BACKWARD, FORWARD, FormulaCall, run
from ..step_record import note_skipped
from ..transforms import active_transform
from .library import define
from .operands import float_operands, whole_number

__all__ = ["linear_cross_entropy"]

_CHUNK_BYTES = 288 << 20  # of the logits of a chunk: 50,257 words and 8,192 rows are three chunks
_ALIGNED = 64  # rows of a weight, so that products read whole sectors
_LEAST_ROWS = 128


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    number: int | None = None,
) -> Tensor:
    """Return ``cross_entropy(linear(x, weight, bias), target)`` without the whole logits.

    x [..., size], weight [words, size] and bias [words] of one float dtype, target [...] of int64. Weight and bias may be wider than x: they are
    rounded to x's dtype for the products, and their gradients are not. The loss is float32 (float64 for float64 operands). A target that is neither ``ignore_index`` nor a word is undefined on CUDA and an InputError on the host.
    number: number of the policy; by default that of this thread.
    reduction: ``mean`` over the targets that are not ``ignore_index``, or ``sum``. Rows are computed in chunks; when gradients are wanted,
    each chunk computes them in the same pass, and backward only scales them. It has no gradients of second order.
    """
    who = "pytorch.ops.linear_cross_entropy"
    if not isinstance(target, Tensor):
        do = "Give torch.tensor(target)."
        raise InputError(who, "needs a tensor of targets", got=type(target).__name__, do=do)
    x, weight, bias = float_operands("linear_cross_entropy", x, weight, bias, optional=1, wider=True)
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1] or target.shape != x.shape[:-1]:
        got = f"{list(x.shape)}, {list(weight.shape)} and {list(target.shape)}"
        raise InputError(
            who, "needs x [..., size], weight [words, size] and target [...]", got=got, do="Check the shapes."
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        got = f"{list(bias.shape)} of {weight.shape[0]} words"
        raise InputError(who, "needs a bias [words]", got=got, do="Check the shapes.")
    if target.dtype is not torch.int64:
        raise InputError(who, "needs a target of int64", got=str(target.dtype), do="Convert it with .long().")
    whole_number("linear_cross_entropy", "ignore_index", ignore_index)
    if reduction not in ("mean", "sum"):
        raise InputError(who, "has no such reduction", got=repr(reduction), do="Use 'mean' or 'sum'.")
    if not torch.compiler.is_compiling() and (reason := active_transform()):
        note_skipped("linear_cross_entropy", "matmul", reason)
        narrow = (None if t is None else t.to(x.dtype) for t in (weight, bias))
        logits = F.linear(x, *narrow).to(_wide(x.dtype)).reshape(-1, weight.shape[0])
        return F.cross_entropy(logits, target.reshape(-1), ignore_index=ignore_index, reduction=reduction)
    rows, places = x.reshape(-1, x.shape[-1]), target.reshape(-1)
    scale = torch.ones((), dtype=_wide(x.dtype), device=x.device)
    if reduction == "mean":
        scale = scale / (places != ignore_index).sum()
    wanted = [t is not None and t.requires_grad and torch.is_grad_enabled() for t in (x, weight, bias)]
    number = policy_number() if number is None else number
    results = torch.ops.xpuruntime.linear_cross_entropy(
        rows, weight, bias, places, scale, ignore_index, wanted, number
    )
    return results[0]


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _chunk_rows(rows: int, words: int, bytes_each: int) -> int:
    """Return the rows of a chunk: as few chunks as the bound allows, of about equal size."""
    most = max(_LEAST_ROWS, _CHUNK_BYTES // (bytes_each * max(words, 1)))
    chunks = max(1, -(-rows // most))
    return max(1, -(-rows // chunks // _LEAST_ROWS) * _LEAST_ROWS)


def _compute(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scale: Tensor,
    ignore_index: int,
    wanted: list[bool],
    number: int,
) -> list[Tensor]:
    """Return the loss, then the gradients of x, weight and bias for a gradient of 1 (empty where they are not wanted)."""
    numbered, words = policy_of(number), weight.shape[0]
    wide = _wide(x.dtype)
    _check_targets(target, words, ignore_index)
    loss = torch.zeros((), dtype=wide, device=x.device)
    dx = x.new_empty(x.shape if wanted[0] else 0)
    dweight = dbias = None
    aligned = -words % _ALIGNED if x.device.type == "cuda" else 0
    padded = _padded(weight, aligned, x.dtype)
    padded_bias = None if bias is None else bias.to(x.dtype)
    if aligned:
        padded_bias = F.pad(
            x.new_zeros(words) if bias is None else bias.to(x.dtype), (0, aligned), value=-math.inf
        )
    step = _chunk_rows(x.shape[0], words, x.element_size())
    for first in range(0, x.shape[0], step):
        rows, places = x[first : first + step], target[first : first + step]
        operands = (rows, padded, padded_bias, places)
        if any(wanted):
            scaled = (*operands, scale.reshape(1, 1), dweight, dbias)
            call = FormulaCall(
                CROSS_ENTROPY_GRADIENTS, "matmul", BACKWARD, scaled, (ignore_index, tuple(wanted)), numbered
            )
        else:
            call = FormulaCall(CROSS_ENTROPY, "matmul", FORWARD, operands, (ignore_index,), numbered)
        results = run(call)
        if results is None:
            results = _eager(rows, padded, padded_bias, places, scale, ignore_index, wanted, (dweight, dbias))
        gradients = iter(results[1:])
        loss += results[0]
        if wanted[0]:
            dx[first : first + step] = next(gradients)
        dweight = next(gradients) if wanted[1] else None
        dbias = next(gradients) if wanted[2] else None
    totals = [
        _whole(dweight, weight, wanted[1]),
        _whole(dbias, weight[:, 0] if bias is None else bias, wanted[2]),
    ]
    return [loss * scale, dx, *totals]


def _padded(weight: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Return the weight in a dtype, with so many rows of zeros more, by one pass over memory."""
    if not rows:
        return weight.to(dtype)
    padded = weight.new_empty(weight.shape[0] + rows, weight.shape[1], dtype=dtype)
    padded[: weight.shape[0]].copy_(weight)
    padded[weight.shape[0] :].zero_()
    return padded


def _whole(total: Tensor | None, like: Tensor, wanted: bool) -> Tensor:
    """Return the sum over all chunks in the dtype of ``like``; zeros if there is no chunk, nothing if it is not wanted."""
    if not wanted:
        return like.new_empty(0)
    return like.new_zeros(like.shape) if total is None else total[: like.shape[0]].to(like.dtype)


def _check_targets(target: Tensor, words: int, ignore_index: int) -> None:
    """Raise InputError for a target that is no word, on the host only: on a device it would wait for the device."""
    if target.device.type != "cpu" or not target.numel():
        return
    wrong = ((target < 0) | (target >= words)) & (target != ignore_index)
    if wrong.any():
        got = f"{int(target[wrong][0])} of {words} words"
        do = f"Use words, or ignore_index={ignore_index}."
        raise InputError("pytorch.ops.linear_cross_entropy", "has a target that is no word", got=got, do=do)


def _eager(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scale: Tensor,
    ignore_index: int,
    wanted: list[bool],
    earlier: tuple[Tensor | None, Tensor | None],
) -> list[Tensor]:
    """Compute a chunk on PyTorch's operators. earlier: the gradients of weight and bias of the chunks before it."""
    logits = F.linear(x, weight, bias).to(scale.dtype)
    loss = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction="sum")
    counts = target != ignore_index
    dlogits = torch.softmax(logits, -1)
    dlogits[torch.arange(x.shape[0], device=x.device), target.where(counts, 0)] -= 1
    dlogits = (dlogits * (counts[:, None] * scale)).to(x.dtype)
    gradients = [dlogits @ weight] if wanted[0] else []
    sums = [(dlogits.t() @ x).to(scale.dtype)] if wanted[1] else []
    sums += [dlogits.sum(0, dtype=scale.dtype)] if wanted[2] else []
    before = [t for t, w in zip(earlier, wanted[1:], strict=True) if w]
    gradients += [new if old is None else old + new for old, new in zip(before, sums, strict=True)]
    return [loss, *gradients]


def _fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scale: Tensor,
    ignore_index: int,
    wanted: list[bool],
    number: int,
) -> list[Tensor]:
    operands = zip((x, weight, weight[:, 0] if bias is None else bias), wanted, strict=True)
    gradients = [t.new_empty(t.shape if w else 0) for t, w in operands]
    return [torch.empty_like(scale), *gradients]


def _save(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.wanted = inputs[6]


def _scaled(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    if torch.is_grad_enabled():
        raise RunError(
            "pytorch.ops.linear_cross_entropy",
            "has no gradients of second order",
            do="Use torch.nn.functional.cross_entropy of a linear layer.",
        )
    grad = grads[0]
    results: list[Any] = [None] * 8
    for i, gradient in enumerate(ctx.saved_tensors):
        if ctx.wanted[i] and grad is not None:
            results[i] = gradient * grad.to(gradient.dtype)
    return tuple(results)


define(
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, Tensor target, Tensor scale, int ignore_index, bool[] wanted, int policy) -> Tensor[]",
    _compute,
    _fake,
    _scaled,
    _save,
)
