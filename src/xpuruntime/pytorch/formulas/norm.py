"""Layer norm and RMS norm over the last ``dims`` dims.

Forward is the IR's own op, so that training computes what a session computes. Backward reads the operand again and recomputes its
statistics: the row is in registers anyway, and nothing but the operand is saved.
"""

from __future__ import annotations

from .formula import Formula, Writer

__all__ = ["LAYER_NORM", "LAYER_NORM_BACKWARD", "RMS_NORM", "RMS_NORM_BACKWARD"]


def _normalized(w: Writer) -> list[int]:
    shape = w.shape(w["x"])
    return list(shape[len(shape) - w.attributes["dims"] :])


def _mean(w: Writer, value: str) -> str:
    result: str = w.b.mean(value, dim=list(range(-w.attributes["dims"], 0)), keepdim=True)
    return result


def _scaled(w: Writer, grad: str) -> str:
    """Return the gradient times the weight, if there is one."""
    weight = w.optional("weight")
    result: str = grad if weight is None else w.b.mul(grad, w.wide(weight))
    return result


def _layer_norm(w: Writer) -> list[str]:
    weight, bias = w.optional("weight"), w.optional("bias")
    y = w.b.layer_norm(
        w["x"], weight, bias, normalized_shape=_normalized(w), eps=w.attributes["eps"], outputs=1
    )
    return [y]


def _layer_norm_backward(w: Writer) -> list[str]:
    """Write dx = rstd (h - mean(h) - xhat mean(h xhat)) with h = grad weight, and the sums over rows for weight and bias."""
    b, wanted, dims = w.b, w.attributes["wanted"], w.attributes["dims"]
    grad, x = w.wide(w["grad"]), w.wide(w["x"])
    centered = b.sub(x, _mean(w, x))
    rstd = b.rsqrt(b.add(_mean(w, b.mul(centered, centered)), w.attributes["eps"]))
    xhat = b.mul(centered, rstd)
    results = []
    if wanted[0]:
        h = _scaled(w, grad)
        dx = b.mul(b.sub(b.sub(h, _mean(w, h)), b.mul(xhat, _mean(w, b.mul(h, xhat)))), rstd)
        results.append(w.like(dx, "x"))
    if wanted[1]:
        results.append(w.like(w.sum_leading(b.mul(grad, xhat), dims), "weight"))
    if wanted[2]:
        results.append(w.like(w.sum_leading(grad, dims), "bias"))
    return results


def _rms_norm(w: Writer) -> list[str]:
    y = w.b.rms_norm(
        w["x"],
        w.optional("weight"),
        normalized_shape=_normalized(w),
        eps=w.attributes["eps"],
        outputs=1,
    )
    return [y]


def _rms_norm_backward(w: Writer) -> list[str]:
    """Write dx = rstd (h - xhat mean(h xhat)) with h = grad weight, and the sum over rows for weight."""
    b, wanted = w.b, w.attributes["wanted"]
    grad, x = w.wide(w["grad"]), w.wide(w["x"])
    rstd = b.rsqrt(b.add(_mean(w, b.mul(x, x)), w.attributes["eps"]))
    xhat = b.mul(x, rstd)
    results = []
    if wanted[0]:
        h = _scaled(w, grad)
        results.append(w.like(b.mul(b.sub(h, b.mul(xhat, _mean(w, b.mul(h, xhat)))), rstd), "x"))
    if wanted[1]:
        results.append(w.like(w.sum_leading(b.mul(grad, xhat), w.attributes["dims"]), "weight"))
    return results


_ATTRIBUTES = ("dims", "eps")

LAYER_NORM = Formula("layer_norm", ("x", "weight", "bias"), _ATTRIBUTES, _layer_norm)
LAYER_NORM_BACKWARD = Formula(
    "layer_norm_backward",
    ("grad", "x", "weight", "bias"),
    (*_ATTRIBUTES, "wanted"),
    _layer_norm_backward,
)
RMS_NORM = Formula("rms_norm", ("x", "weight"), _ATTRIBUTES, _rms_norm)
RMS_NORM_BACKWARD = Formula(
    "rms_norm_backward", ("grad", "x", "weight"), (*_ATTRIBUTES, "wanted"), _rms_norm_backward
)
