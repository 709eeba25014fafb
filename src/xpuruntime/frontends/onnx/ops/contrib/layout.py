"""Lowerings of ONNX Runtime's ops with channels last (``com.microsoft``): the op of the default domain between two permutations."""

from __future__ import annotations

from ....not_lowered import NotLowered
from ..context import OnnxLoweringContext, OpLowering, Results
from ..conv import LOWERINGS as CONVOLUTIONS
from ..pool import LOWERINGS as POOLS
from .fused import fused_conv

__all__ = ["LOWERINGS", "channels_first", "channels_last"]


def channels_first(n: OnnxLoweringContext, x: str) -> str:
    """Return [batch, ..., channels] as [batch, channels, ...]."""
    rank = n.spec_of(x).rank
    return str(n.b.permute(x, dims=[0, rank - 1, *range(1, rank - 1)]))


def channels_last(n: OnnxLoweringContext, y: str) -> str:
    """Return [batch, channels, ...] as [batch, ..., channels]."""
    rank = n.spec_of(y).rank
    return str(n.b.permute(y, dims=[0, *range(2, rank), 1]))


def _last(lower: OpLowering) -> OpLowering:
    """Return the lowering of an op whose first operand and result have channels last."""

    def between(n: OnnxLoweringContext) -> Results:
        y = lower(n.with_inputs(channels_first(n, n.x), *n.inputs[1:]))
        return channels_last(n, str(y))

    return between


def _max_pool(n: OnnxLoweringContext) -> Results:
    if n.attr("auto_pad", "").startswith("SAME") and any(d != 1 for d in n.attr("dilations") or []):
        raise NotLowered("auto_pad SAME with dilations is not supported: ONNX Runtime does not count them")
    return _last(POOLS["MaxPool"])(n)


def _quantized_conv(n: OnnxLoweringContext) -> Results:
    lower = CONVOLUTIONS["QLinearConv"]
    return _last(lower)(n) if n.attr("channels_last", 0) else lower(n)


_GROUP_ACTIVATIONS = (0, 1)
"""``activation`` of GroupNorm: none, SiLU."""


def _group_norm(n: OnnxLoweringContext) -> Results:
    if n.attr("activation", 0) not in _GROUP_ACTIVATIONS:
        raise NotLowered(f"the activation {n.attr('activation')} is not supported")
    last = bool(n.attr("channels_last", 1))
    x = channels_first(n, n.x) if last else n.x
    affine = [n.cast(n.input(i), n.spec().dtype) for i in (1, 2)]
    y = str(n.b.group_norm(x, *affine, groups=n.attr("groups"), eps=float(n.attr("epsilon", 1e-5))))
    if n.attr("activation", 0):
        y = str(n.b.silu(y))
    return channels_last(n, y) if last else y


def _skip_group_norm(n: OnnxLoweringContext) -> Results:
    """Lower SkipGroupNorm: the norm of x + skip + bias; the sum is the last output."""
    skip, channel = n.input(3), -1 if n.attr("channels_last", 1) else 1
    spec = n.spec(3)
    if spec.rank == 2:  # [batch, channels]
        skip = str(n.b.unsqueeze(skip, dims=[1, 2] if channel == -1 else [2, 3]))
    total = n.b.add(n.x, skip)
    if n.opt(4) is not None:
        bias = n.input(4) if channel == -1 else n.b.unsqueeze(n.input(4), dims=[1, 2])
        total = n.b.add(total, bias)
    y = _group_norm(n.with_inputs(str(total), n.input(1), n.input(2)))
    return [str(y), str(total)]


LOWERINGS: dict[str, OpLowering] = {
    "GroupNorm": _group_norm,
    "NhwcConv": _last(CONVOLUTIONS["Conv"]),
    "NhwcFusedConv": fused_conv(_last(CONVOLUTIONS["Conv"])),
    "NhwcMaxPool": _max_pool,
    "QLinearConv": _quantized_conv,
    "SkipGroupNorm": _skip_group_norm,
}
