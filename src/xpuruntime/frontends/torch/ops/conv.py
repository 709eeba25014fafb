"""Lowerings of convolutions of any rank, im2col and col2im."""

from __future__ import annotations

from typing import Any

from .context import AtenLoweringContext, OpLowering, Results, per_dim

__all__ = ["LOWERINGS", "layout"]

_WINDOW = ("kernel_size", "stride", "padding", "dilation")


def layout(n: AtenLoweringContext, rank: int) -> dict[str, Any]:
    """Return the attributes of a convolution's window."""
    attrs: dict[str, Any] = {k: per_dim(n[k], rank) for k in ("stride", "padding", "dilation")}
    extra = per_dim(n["output_padding"], rank)
    if n["transposed"]:
        attrs["output_padding"] = extra
    return attrs | {"groups": n["groups"], "transposed": n["transposed"]}


def _convolution(n: AtenLoweringContext) -> Results:
    rank = n.spec(n.t("weight")).rank - 2
    return str(n.b.convolution(n.x, n.t("weight"), n.opt("bias"), **layout(n, rank)))


def _im2col(n: AtenLoweringContext) -> Results:
    return str(n.b.im2col(n.x, **{k: per_dim(n[k], 2) for k in _WINDOW}))


def _col2im(n: AtenLoweringContext) -> Results:
    size = per_dim(n["output_size"], 2)
    return str(n.b.col2im(n.x, output_size=size, **{k: per_dim(n[k], 2) for k in _WINDOW}))


LOWERINGS: dict[str, OpLowering] = {"col2im": _col2im, "convolution": _convolution, "im2col": _im2col}
