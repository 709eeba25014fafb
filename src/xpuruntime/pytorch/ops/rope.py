"""rope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ..formulas.rope import ROPE, ROPE_BACKWARD
from ..numbered_policies import policy_number
from .library import TrainingOp, call, register
from .operands import flag, float_operands

__all__ = ["rope"]


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """Return x [..., length, size] with pairs of its last dim rotated by the angles of cos and sin [length, size / 2].

    interleaved: pairs are neighbors; by default the first half is paired with the second. The tables have no gradient.
    """
    x, cos, sin = float_operands("rope", x, cos, sin)
    flag("rope", "interleaved", interleaved)
    want = (x.shape[-2], x.shape[-1] // 2) if x.dim() >= 2 else ()
    if x.dim() < 2 or x.shape[-1] % 2 or tuple(cos.shape) != want or tuple(sin.shape) != want:
        raise InputError(
            "pytorch.ops.rope",
            "needs x [..., length, size] of an even size, and cos and sin [length, size / 2]",
            got=f"{list(x.shape)}, {list(cos.shape)} and {list(sin.shape)}",
            do="Cut the tables to the length of x.",
        )
    return call("rope", x, cos, sin, interleaved, policy_number())[0]


def _rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> list[Tensor]:
    wide = torch.promote_types(x.dtype, torch.float32)
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    a, b, c, s = a.to(wide), b.to(wide), cos.to(wide), sin.to(wide)
    first, second = a * c - b * s, b * c + a * s
    joined = torch.stack((first, second), -1).flatten(-2) if interleaved else torch.cat((first, second), -1)
    return [joined.to(x.dtype)]


def _rope_backward(grad: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> list[Tensor]:
    return _rope(grad, cos, -sin, interleaved)


def _shapes(x: Tensor, *_: Any) -> list[Sequence[int]]:
    return [x.shape]


register(
    TrainingOp(
        name="rope",
        family="rope",
        forward=ROPE,
        backward=ROPE_BACKWARD,
        attributes={"interleaved": "bool"},
        eager=_rope,
        eager_backward=_rope_backward,
        shapes=_shapes,
        gradients=("x",),
        gradient_shapes=_shapes,
        saved=("cos", "sin"),
    )
)
