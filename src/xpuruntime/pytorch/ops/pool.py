"""max_pool and avg_pool of one to three spatial dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from torch import Tensor

from ...errors import InputError
from ..formulas.pool import AVG_POOL, AVG_POOL_BACKWARD, MAX_POOL, MAX_POOL_BACKWARD
from ..numbered_policies import policy_number
from .library import TrainingOp, call, register
from .operands import flag, float_operands, several_numbers, whole_number

__all__ = ["avg_pool", "max_pool"]

_Numbers = int | Sequence[int]
_MAX = (None, F.max_pool1d, F.max_pool2d, F.max_pool3d)
_AVG = (None, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)


def max_pool(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: _Numbers | None = None,
    padding: _Numbers = 0,
    dilation: _Numbers = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Return the maxima of windows of x [batch, channels, ...], as ``torch.nn.functional.max_pool1d``, 2d and 3d.

    kernel_size: one number per spatial dim. stride: by default kernel_size. Of equal elements the first one has the gradient.
    """
    return max_pool_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)[0]


def max_pool_with_indices(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: _Numbers | None = None,
    padding: _Numbers = 0,
    dilation: _Numbers = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the maxima, and the flat index of each within its channel, int64."""
    (x,) = float_operands("max_pool", x)
    window = _window("max_pool", x, kernel_size, stride, padding, dilation, ceil_mode)
    y, indices = call("max_pool", x, *map(list, window), ceil_mode, policy_number())
    return y, indices


def avg_pool(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: _Numbers | None = None,
    padding: _Numbers = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Return the means of windows of x [batch, channels, ...], as ``torch.nn.functional.avg_pool1d``, 2d and 3d.

    kernel_size: one number per spatial dim. stride: by default kernel_size. divisor_override: a divisor in place of the window's size.
    """
    (x,) = float_operands("avg_pool", x)
    flag("avg_pool", "count_include_pad", count_include_pad)
    if divisor_override is not None and whole_number("avg_pool", "divisor_override", divisor_override) == 0:
        raise InputError("pytorch.ops.avg_pool", "divisor_override must not be 0", got=0, do="Leave it out.")
    size, step, pads, _ = _window("avg_pool", x, kernel_size, stride, padding, 1, ceil_mode)
    options = (list(size), list(step), list(pads), ceil_mode, count_include_pad, divisor_override)
    return call("avg_pool", x, *options, policy_number())[0]


def _window(
    op: str, x: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any
) -> tuple[tuple[int, ...], ...]:
    """Return kernel_size, stride, padding and dilation per dim, after checking them as PyTorch does."""
    flag(op, "ceil_mode", ceil_mode)
    size = several_numbers(op, "kernel_size", kernel_size)
    n = len(size)
    if not 1 <= n <= 3 or x.dim() not in (n + 1, n + 2):
        got = f"{list(x.shape)} and kernel_size {list(size)}"
        do = "Give one number per spatial dim, 1 to 3 of them."
        raise InputError(f"pytorch.ops.{op}", "needs x [batch, channels, ...]", got=got, do=do)
    empty = stride is None or stride == () or stride == []
    step = size if empty else several_numbers(op, "stride", stride, n)
    pads, spread = (several_numbers(op, name, v, n) for name, v in (("padding", padding), ("dilation", dilation)))  # fmt: skip
    rows = [w * n if len(w) == 1 else w for w in (size, step, pads, spread)]
    for name, row, least in zip(("kernel_size", "stride", "padding", "dilation"), rows, (1, 1, 0, 1), strict=True):  # fmt: skip
        if len(row) != n or min(row) < least:
            do = f"Give one number, or {n}, of at least {least}."
            raise InputError(f"pytorch.ops.{op}", f"bad {name}", got=list(row), do=do)
    size, step, pads, spread = rows
    if any(2 * p > d * (k - 1) + 1 for p, k, d in zip(pads, size, spread, strict=True)):
        got = f"padding {list(pads)} and kernel_size {list(size)}"
        do = "Pad x with torch.nn.functional.pad."
        raise InputError(f"pytorch.ops.{op}", "padding is at most half of the window", got=got, do=do)
    if any(c < 1 for c in _counts(x, size, step, pads, spread, ceil_mode)):
        got = f"{list(x.shape)} and kernel_size {list(size)}"
        raise InputError(
            f"pytorch.ops.{op}",
            "the window is larger than the padded input",
            got=got,
            do="Use a smaller window, or more padding.",
        )
    return size, step, pads, spread


def _counts(
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> list[int]:
    """Return the number of windows per dim. With ceil_mode, a window starts inside the input or the padding before it."""
    counts = []
    for have, k, s, p, d in zip(x.shape[x.dim() - len(size) :], size, stride, padding, dilation, strict=True):
        free = have + 2 * p - d * (k - 1) - 1
        count = (-(-free // s) if ceil_mode else free // s) + 1
        counts.append(count - 1 if ceil_mode and (count - 1) * s >= have + p else count)
    return counts


def _shape(x: Tensor, counts: list[int]) -> Sequence[int]:
    return (*x.shape[: x.dim() - len(counts)], *counts)


def _max(x: Tensor, size: list[int], *window: Any) -> list[Tensor]:
    function = _MAX[len(size)]
    assert function is not None
    return list(function(x, size, *window, return_indices=True))


def _max_backward(grad: Tensor, x: Tensor, indices: Tensor, size: list[int], *_: Any) -> list[Tensor]:
    planes = x.dim() - len(size)
    wide = torch.promote_types(grad.dtype, torch.float32)
    flat, places = grad.to(wide).flatten(planes), indices.flatten(planes)
    total = flat.new_zeros((*x.shape[:planes], x.shape[planes:].numel())).scatter_add(-1, places, flat)
    return [total.reshape(x.shape).to(grad.dtype)]


def _max_shapes(x: Tensor, *window: Any) -> list[Sequence[int]]:
    return [_shape(x, _counts(x, *window))] * 2


def _max_dtypes(x: Tensor, *_: Any) -> list[torch.dtype]:
    return [x.dtype, torch.int64]


def _avg(
    x: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    ceil_mode: bool,
    include: bool,
    divisor: int | None,
) -> list[Tensor]:
    function = _AVG[len(size)]
    assert function is not None
    if len(size) == 1 and divisor is not None:
        y = F.avg_pool2d(
            x[..., None, :], [1, *size], [1, *stride], [0, *padding], ceil_mode, include, divisor
        )
        return [y.squeeze(-2)]
    more = () if len(size) == 1 else (divisor,)
    return [function(x, size, stride, padding, ceil_mode, include, *more)]


def _avg_backward(grad: Tensor, x: Tensor, *options: Any) -> list[Tensor]:
    """Differentiate the mean, which is linear in x, by PyTorch's autograd."""
    with torch.enable_grad():
        like = torch.zeros_like(x).requires_grad_()
        (y,) = _avg(like, *options)
    (dx,) = torch.autograd.grad(y, like, grad, create_graph=True)
    return [dx]


def _avg_shapes(
    x: Tensor, size: list[int], stride: list[int], padding: list[int], ceil_mode: bool, *_: Any
) -> list[Sequence[int]]:
    return [_shape(x, _counts(x, size, stride, padding, [1] * len(size), ceil_mode))]


def _gradient_shapes(grad: Tensor, x: Tensor, *_: Any) -> list[Sequence[int]]:
    return [x.shape]


register(
    TrainingOp(
        name="max_pool",
        family="pool",
        forward=MAX_POOL,
        backward=MAX_POOL_BACKWARD,
        attributes={
            "kernel_size": "SymInt[]", "stride": "SymInt[]", "padding": "SymInt[]", "dilation": "SymInt[]", "ceil_mode": "bool",
        },
        eager=_max,
        eager_backward=_max_backward,
        shapes=_max_shapes,
        dtypes=_max_dtypes,
        gradients=("x",),
        gradient_shapes=_gradient_shapes,
        saved=("x", "result1"),
        one_gradient=True,
    )
)  # fmt: skip
register(
    TrainingOp(
        name="avg_pool",
        family="pool",
        forward=AVG_POOL,
        backward=AVG_POOL_BACKWARD,
        attributes={
            "kernel_size": "SymInt[]", "stride": "SymInt[]", "padding": "SymInt[]", "ceil_mode": "bool", "count_include_pad": "bool", "divisor": "int?",
        },
        eager=_avg,
        eager_backward=_avg_backward,
        shapes=_avg_shapes,
        gradients=("x",),
        gradient_shapes=_gradient_shapes,
        saved=("x",),
    )
)  # fmt: skip
