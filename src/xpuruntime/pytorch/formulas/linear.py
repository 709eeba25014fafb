"""Linear layers with bias and activation, and plain matrix products."""

from __future__ import annotations

from .activations import activated, derivative
from .formula import Formula, Writer

__all__ = ["LINEAR", "LINEAR_BACKWARD", "MATMUL", "MATMUL_BACKWARD"]


def _linear(w: Writer) -> list[str]:
    """Write y = act(z) and, with an activation, z = x weight^T + bias, which backward reads."""
    z = w.b.linear(w["x"], w["weight"], w.optional("bias"))
    word = w.attributes["activation"]
    return [z] if word == "none" else [w.like(activated(w, word, w.wide(z)), "x"), z]


def _linear_backward(w: Writer) -> list[str]:
    """Write dx = dz weight, dweight = dz^T x and dbias = sum(dz), with dz = grad act'(z)."""
    b, word = w.b, w.attributes["activation"]
    dz = w["grad"]
    if word != "none":
        dz = w.like(b.mul(w.wide(dz), derivative(w, word, w.wide(w["z"]))), "grad")
    results = []
    if w.attributes["wanted"][0]:
        results.append(b.matmul(dz, w["weight"]))
    if w.attributes["wanted"][1]:
        results.append(b.matmul(b.permute(w.rows(dz), dims=[1, 0]), w.rows(w["x"])))
    if w.attributes["wanted"][2]:
        results.append(w.like(w.sum_leading(w.wide(dz)), "grad"))
    return results


def _matmul(w: Writer) -> list[str]:
    return [w.b.matmul(w["a"], w["b"])]


def _swapped(w: Writer, value: str) -> str:
    rank = w.spec(value).rank
    result: str = w.b.permute(value, dims=[*range(rank - 2), rank - 1, rank - 2])
    return result


def _reduced(w: Writer, value: str, operand: str) -> str:
    """Return the sum of a gradient over the dims that broadcasting added to an operand."""
    have, want = w.shape(value), w.shape(w[operand])
    padded = (1,) * (len(have) - len(want)) + want
    dims = [i for i, (h, p) in enumerate(zip(have, padded, strict=True)) if h != p]
    if dims:
        value = w.cast(w.b.sum(w.wide(value), dim=dims, keepdim=True), w.spec(value).dtype)
    result: str = value if w.shape(value) == want else w.b.view(value, size=list(want))
    return result


def _matmul_backward(w: Writer) -> list[str]:
    """Write da = grad b^T and db = a^T grad, for operands of at least two dims."""
    results = []
    if w.attributes["wanted"][0]:
        results.append(_reduced(w, w.b.matmul(w["grad"], _swapped(w, w["b"])), "a"))
    if w.attributes["wanted"][1]:
        results.append(_reduced(w, w.b.matmul(_swapped(w, w["a"]), w["grad"]), "b"))
    return results


LINEAR = Formula("linear", ("x", "weight", "bias"), ("activation",), _linear)
LINEAR_BACKWARD = Formula(
    "linear_backward", ("grad", "x", "weight", "z"), ("activation", "wanted"), _linear_backward
)
MATMUL = Formula("matmul", ("a", "b"), (), _matmul)
MATMUL_BACKWARD = Formula("matmul_backward", ("grad", "a", "b"), ("wanted",), _matmul_backward)
