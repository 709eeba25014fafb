"""Batch norm: by the batch's statistics, which also update the running ones, or by given statistics."""

from __future__ import annotations

from .formula import Formula, Writer

__all__ = [
    "BATCH_NORM",
    "BATCH_NORM_BACKWARD",
    "BATCH_NORM_INFERENCE",
    "BATCH_NORM_INFERENCE_BACKWARD",
]


def _batch_norm(w: Writer) -> list[str]:
    """Write the result and, if there are running statistics, those after the step."""
    running = w.optional("running_mean"), w.optional("running_var")
    tracked = running[0] is not None
    results = w.b.batch_norm_train(
        w["x"],
        w.optional("weight"),
        w.optional("bias"),
        *running,
        momentum=w.attributes["momentum"],
        eps=w.attributes["eps"],
        outputs=5 if tracked else 1,
    )
    return [results[0], *results[3:]] if tracked else [results]


def _batch_norm_backward(w: Writer) -> list[str]:
    """Write dx = weight rstd (grad - mean(grad) - xhat mean(grad xhat)), and the sums of grad xhat and grad by channel."""
    b, wanted = w.b, w.attributes["wanted"]
    grad, x = w.wide(w["grad"]), w.wide(w["x"])
    dims = _dims(w)
    centered = b.sub(x, b.mean(x, dim=dims, keepdim=True))
    var = b.mean(b.mul(centered, centered), dim=dims, keepdim=True)
    rstd = b.rsqrt(b.add(var, w.attributes["eps"]))
    xhat = b.mul(centered, rstd)
    product = b.mul(grad, xhat)
    results = []
    if wanted[0]:
        mean_grad = b.mean(grad, dim=dims, keepdim=True)
        slope = b.mul(xhat, b.mean(product, dim=dims, keepdim=True))
        dx = b.mul(b.sub(b.sub(grad, mean_grad), slope), rstd)
        results.append(w.like(_scaled(w, dx), "x"))
    return results + _parameters(w, product, grad)


def _batch_norm_inference(w: Writer) -> list[str]:
    operands = w.optional("weight"), w.optional("bias"), w["mean"], w["var"]
    return [w.b.batch_norm(w["x"], *operands, eps=w.attributes["eps"])]


def _batch_norm_inference_backward(w: Writer) -> list[str]:
    """Write dx = weight rstd grad, and the sums of grad xhat and grad by channel."""
    b = w.b
    grad, x = w.wide(w["grad"]), w.wide(w["x"])
    rstd = b.rsqrt(b.add(_by_channel(w, "var"), w.attributes["eps"]))
    results = []
    if w.attributes["wanted"][0]:
        results.append(w.like(_scaled(w, b.mul(grad, rstd)), "x"))
    product = grad
    if w.attributes["wanted"][1]:
        product = b.mul(grad, b.mul(b.sub(x, _by_channel(w, "mean")), rstd))
    return results + _parameters(w, product, grad)


def _dims(w: Writer) -> list[int]:
    return [0, *range(2, w.spec(w["x"]).rank)]


def _by_channel(w: Writer, operand: str) -> str:
    """Return values of channels in a shape that broadcasts to x."""
    rank = w.spec(w["x"]).rank
    result: str = w.b.view(w.wide(w[operand]), size=[1, w.shape(w[operand])[0], *[1] * (rank - 2)])
    return result


def _scaled(w: Writer, value: str) -> str:
    result: str = value if w.optional("weight") is None else w.b.mul(value, _by_channel(w, "weight"))
    return result


def _parameters(w: Writer, product: str, grad: str) -> list[str]:
    """Return the gradients of weight and bias that are wanted, in float32 at least."""
    return [
        w.b.sum(value, dim=_dims(w))
        for value, wanted in zip((product, grad), w.attributes["wanted"][1:], strict=True)
        if wanted
    ]


BATCH_NORM = Formula(
    "batch_norm", ("x", "weight", "bias", "running_mean", "running_var"), ("momentum", "eps"), _batch_norm
)
BATCH_NORM_BACKWARD = Formula(
    "batch_norm_backward", ("grad", "x", "weight"), ("eps", "wanted"), _batch_norm_backward
)
BATCH_NORM_INFERENCE = Formula(
    "batch_norm_inference", ("x", "weight", "bias", "mean", "var"), ("eps",), _batch_norm_inference
)
BATCH_NORM_INFERENCE_BACKWARD = Formula(
    "batch_norm_inference_backward",
    ("grad", "x", "weight", "mean", "var"),
    ("eps", "wanted"),
    _batch_norm_inference_backward,
)
