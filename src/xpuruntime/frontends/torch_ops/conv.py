"""Convolutions of any rank, and the columns that they are made of."""

from __future__ import annotations

from .site import Results, Row, Site, listed

__all__ = ["ROWS"]

_WINDOW = ("kernel_size", "stride", "padding", "dilation")


def _convolution(n: Site) -> Results:
    rank = n.spec(n.t("weight")).rank - 2
    attrs = {k: listed(n[k], rank) for k in ("stride", "padding", "dilation")}
    transposed = n["transposed"]
    if transposed:
        attrs["output_padding"] = listed(n["output_padding"], rank)
    n.ignore("output_padding")
    made = n.b.convolution(
        n.x, n.t("weight"), n.opt("bias"), groups=n["groups"], transposed=transposed, **attrs
    )
    return str(made)


def _im2col(n: Site) -> Results:
    return str(n.b.im2col(n.x, **{k: listed(n[k], 2) for k in _WINDOW}))


def _col2im(n: Site) -> Results:
    size = listed(n["output_size"], 2)
    return str(n.b.col2im(n.x, output_size=size, **{k: listed(n[k], 2) for k in _WINDOW}))


ROWS: dict[str, Row] = {"col2im": _col2im, "convolution": _convolution, "im2col": _im2col}
