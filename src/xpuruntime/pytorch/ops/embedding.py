"""embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from torch import Tensor

from ...errors import InputError
from ..formulas.embedding import EMBEDDING, EMBEDDING_BACKWARD
from ..numbered_policies import policy_number
from .library import TrainingOp, call, register
from .operands import float_operands, whole_number

__all__ = ["embedding"]


def embedding(indices: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Return the rows of weight [rows, size] at indices, as ``torch.nn.functional.embedding``.

    padding_idx: a row whose gradient stays 0. indices: int32 or int64, from 0 to rows - 1.
    """
    (weight,) = float_operands("embedding", weight)
    if not isinstance(indices, torch.Tensor):
        do = "Give torch.tensor(indices)."
        raise InputError(
            "pytorch.ops.embedding", "needs a tensor of indices", got=type(indices).__name__, do=do
        )
    if indices.dtype not in (torch.int32, torch.int64) or weight.dim() != 2:
        raise InputError(
            "pytorch.ops.embedding",
            "needs int32 or int64 indices and weight [rows, size]",
            got=f"{indices.dtype} and {list(weight.shape)}",
            do="Convert the indices with .long().",
        )
    rows = weight.shape[0]
    if padding_idx is not None:
        whole_number("embedding", "padding_idx", padding_idx)
    if indices.device != weight.device:
        got = f"{indices.device} and {weight.device}"
        do = "Move them to one first."
        raise InputError("pytorch.ops.embedding", "needs its operands on one device", got=got, do=do)
    if padding_idx is not None and not -rows <= padding_idx < rows:
        do = f"Give {-rows} to {rows - 1}."
        raise InputError("pytorch.ops.embedding", "has no such padding row", got=padding_idx, do=do)
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return call("embedding", weight, indices, padding, policy_number())[0]


def _embedding(weight: Tensor, indices: Tensor, padding_idx: int) -> list[Tensor]:
    return [F.embedding(indices, weight, None if padding_idx < 0 else padding_idx)]


def _embedding_backward(grad: Tensor, indices: Tensor, rows: int, padding_idx: int) -> list[Tensor]:
    wide = torch.promote_types(grad.dtype, torch.float32)
    flat, index = grad.to(wide).reshape(-1, grad.shape[-1]), indices.reshape(-1)
    if padding_idx >= 0:
        flat = flat * (index != padding_idx)[:, None]
    return [flat.new_zeros(rows, grad.shape[-1]).index_add(0, index, flat).to(grad.dtype)]


def _shapes(weight: Tensor, indices: Tensor, *_: Any) -> list[Sequence[int]]:
    return [(*indices.shape, weight.shape[1])]


def _gradient_shapes(grad: Tensor, indices: Tensor, rows: int, padding_idx: int) -> list[Sequence[int]]:
    return [(rows, grad.shape[-1])]


register(
    TrainingOp(
        name="embedding",
        family="embedding",
        forward=EMBEDDING,
        backward=EMBEDDING_BACKWARD,
        attributes={"padding_idx": "int"},
        eager=_embedding,
        eager_backward=_embedding_backward,
        shapes=_shapes,
        gradients=("weight",),
        gradient_shapes=_gradient_shapes,
        saved=("indices",),
        backward_attributes={"rows": "SymInt", "padding_idx": "int"},
        backward_values=lambda weight, indices, padding_idx: (weight.shape[0], padding_idx),
    )
)
