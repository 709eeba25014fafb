"""The op ``convolution``, also transposed, with one to three spatial dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from torch import Tensor

from ...errors import InputError
from ..formulas.convolution import CONVOLUTION, CONVOLUTION_BACKWARD
from ..numbered_policies import policy_number
from .library import TrainingOp, call, register
from .operands import flag, float_operands, several_numbers, whole_number

__all__ = ["convolution"]

_Numbers = int | Sequence[int]


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Numbers = 1,
    padding: _Numbers | str = 0,
    dilation: _Numbers = 1,
    groups: int = 1,
    transposed: bool = False,
    output_padding: _Numbers = 0,
) -> Tensor:
    """Return the convolution of x [batch, channels, ...] with 1 to 3 spatial dims, as ``torch.nn.functional.conv1d``, ``conv2d`` and ``conv3d``.

    weight [outputs, channels / groups, ...]; transposed: [channels, outputs / groups, ...], as of ``conv_transpose2d``. bias [outputs].
    padding: numbers for both sides, ``valid`` or ``same``. x may lack the batch dim.
    """
    x, weight, bias = float_operands("convolution", x, weight, bias, optional=1)
    flag("convolution", "transposed", transposed)
    n = weight.dim() - 2
    if not 1 <= n <= 3 or x.dim() not in (n + 1, n + 2):
        raise _error("needs x [batch, channels, ...] and a weight of 3 to 5 dims", x, weight)
    if x.dim() == n + 1:
        return convolution(
            x[None], weight, bias, stride, padding, dilation, groups, transposed, output_padding
        )[0]
    steps = _per_dim("stride", stride, n, 1)
    dilations = _per_dim("dilation", dilation, n, 1)
    extra = _per_dim("output_padding", output_padding, n, 0)
    if any(extra) and not transposed:
        do = "Leave it out."
        raise InputError("pytorch.ops.convolution", "output_padding needs transposed=True", got=list(extra), do=do)  # fmt: skip
    pads = _padding(padding, weight, steps, dilations, transposed)
    whole_number("convolution", "groups", groups)
    _check_sizes(x, weight, bias, groups, transposed)
    shape = _sizes(x, weight, steps, pads, dilations, groups, transposed, extra)
    if min(shape[2:]) < 1 and not isinstance(min(shape[2:]), torch.SymInt):
        raise _error("the window is larger than the padded input", x, weight)
    if any(o >= max(s, d) for o, s, d in zip(extra, steps, dilations, strict=True)):
        do = "Give numbers below the stride or the dilation."
        raise InputError("pytorch.ops.convolution", "output_padding is too large", got=list(extra), do=do)
    options = (list(steps), list(pads), list(dilations), groups, transposed, list(extra))
    return call("convolution", x, weight, bias, *options, policy_number())[0]


def _error(what: str, x: Tensor, weight: Tensor) -> InputError:
    got = f"{list(x.shape)} and {list(weight.shape)}"
    return InputError("pytorch.ops.convolution", what, got=got, do="Check the shapes.")


def _per_dim(name: str, value: Any, n: int, least: int) -> tuple[int, ...]:
    numbers = several_numbers("convolution", name, value, n)
    numbers = numbers * n if len(numbers) == 1 else numbers
    if len(numbers) != n or min(numbers) < least:
        do = f"Give one number, or {n}, of at least {least}."
        raise InputError("pytorch.ops.convolution", f"bad {name}", got=repr(value), do=do)
    return numbers


def _padding(
    padding: Any, weight: Tensor, stride: tuple[int, ...], dilation: tuple[int, ...], transposed: bool
) -> tuple[int, ...]:
    """Return one number per dim for both sides, or two if they differ (``same``, even window): those of the begins, then of the ends."""
    n = len(stride)
    if padding == "valid":
        return (0,) * n
    if padding != "same":
        return _per_dim("padding", padding, n, 0)
    if transposed or set(stride) != {1}:
        do = "Give numbers."
        raise InputError("pytorch.ops.convolution", "padding 'same' needs stride 1 and a plain convolution", got=f"stride {list(stride)}", do=do)  # fmt: skip
    totals = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
    begins, ends = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return tuple(begins) if begins == ends else (*begins, *ends)


def _check_sizes(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, transposed: bool) -> None:
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    outputs = weight.shape[1] * groups if transposed else weight.shape[0]
    if groups < 1 or weight.shape[0] % groups or x.shape[1] != channels:
        what = "the channels of x and weight do not fit" + (f" {groups} groups" if groups != 1 else "")
        raise _error(what, x, weight)
    if bias is not None and tuple(bias.shape) != (outputs,):
        got = f"{list(bias.shape)} and {outputs} outputs"
        raise InputError("pytorch.ops.convolution", "needs a bias [outputs]", got=got, do="Check the shapes.")


def _both(padding: Sequence[int], n: int) -> tuple[Sequence[int], Sequence[int]]:
    return (padding, padding) if len(padding) == n else (padding[:n], padding[n:])


def _sizes(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    transposed: bool,
    output_padding: Sequence[int],
) -> tuple[int, ...]:
    """Return the shape of the result."""
    space = []
    begins, ends = _both(padding, len(stride))
    for i, s in enumerate(stride):
        size, span = x.shape[2 + i], dilation[i] * (weight.shape[2 + i] - 1) + 1
        around = begins[i] + ends[i]
        if transposed:
            space.append((size - 1) * s - around + span + output_padding[i])
        else:
            space.append((size + around - span) // s + 1)
    return (x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0], *space)


def _eager(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    transposed: bool,
    output_padding: list[int],
) -> list[Tensor]:
    x, padding = _padded(x, padding, len(stride))
    return [torch.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)]


def _padded(x: Tensor, padding: list[int], n: int) -> tuple[Tensor, list[int]]:
    """Return x and its padding. If the two sides differ, which PyTorch's operator does not support, x is padded here."""
    begins, ends = _both(padding, n)
    if begins == ends:
        return x, list(begins)
    sides = [p for pair in zip(reversed(begins), reversed(ends), strict=True) for p in pair]
    return F.pad(x, sides), [0] * n


def _eager_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    transposed: bool,
    output_padding: list[int],
) -> list[Tensor]:
    n = len(stride)
    padded, rest = _padded(x, padding, n)
    options = (stride, rest, dilation, transposed, output_padding, groups, [True, True, True])
    dx, dweight, dbias = torch.ops.aten.convolution_backward(grad, padded, weight, [grad.shape[1]], *options)
    for dim, begin in enumerate(_both(padding, n)[0] if padded is not x else ()):
        dx = dx.narrow(2 + dim, begin, x.shape[2 + dim])
    return [dx, dweight, dbias]


def _shapes(x: Tensor, weight: Tensor, bias: Tensor | None, *options: Any) -> list[Sequence[int]]:
    return [_sizes(x, weight, *options)]


def _gradient_shapes(grad: Tensor, x: Tensor, weight: Tensor, *_: Any) -> list[Sequence[int]]:
    return [x.shape, weight.shape, (grad.shape[1],)]


register(
    TrainingOp(
        name="convolution",
        family="conv",
        forward=CONVOLUTION,
        backward=CONVOLUTION_BACKWARD,
        attributes={
            "stride": "SymInt[]", "padding": "SymInt[]", "dilation": "SymInt[]", "groups": "SymInt", "transposed": "bool", "output_padding": "SymInt[]",
        },
        eager=_eager,
        eager_backward=_eager_backward,
        shapes=_shapes,
        gradients=("x", "weight", "bias"),
        gradient_shapes=_gradient_shapes,
        saved=("x", "weight"),
    )
)  # fmt: skip
