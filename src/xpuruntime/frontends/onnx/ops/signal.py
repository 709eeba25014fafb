"""Lowerings of Fourier transforms on pairs of reals."""

from __future__ import annotations

from .context import OnnxLoweringContext, OpLowering, Results

__all__ = ["LOWERINGS"]


def _dft(n: OnnxLoweringContext) -> Results:
    """Lower DFT; the axis is an attribute (default 1) in opset 17, an input (default -2) from 20 on."""
    if n.opset >= 20:
        dim = int(n.number(2, "axis")) if n.opt(2) else -2
    else:
        dim = n.attr("axis", 1)
    length = n.dims(1, "length")[0] if n.opt(1) else None
    flags = {"inverse": bool(n.attr("inverse", 0)), "onesided": bool(n.attr("onesided", 0))}
    return str(n.b.dft(n.x, dim=dim, length=length, **flags))


def _stft(n: OnnxLoweringContext) -> Results:
    step = int(n.number(1, "frame step"))
    if n.opt(3):
        length = int(n.number(3, "frame length"))
    else:
        (length,) = (int(d) for d in n.spec(2).shape if isinstance(d, int))
    return str(
        n.b.stft(n.x, n.opt(2), frame_length=length, frame_step=step, onesided=bool(n.attr("onesided", 1)))
    )


LOWERINGS: dict[str, OpLowering] = {"DFT": _dft, "STFT": _stft}
