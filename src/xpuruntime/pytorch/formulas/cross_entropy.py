"""Cross entropy of a linear layer's results, for some of the rows: losses and, in the same pass, the gradients of rows, weight and bias.

The logits of other rows are never computed. The weight may have more rows than the vocabulary has words, so that vector loads are aligned. Their
bias is -inf, so that their logits change no sum.
"""

from __future__ import annotations

from ...types import DType
from .formula import Formula, Writer

__all__ = ["CROSS_ENTROPY", "CROSS_ENTROPY_GRADIENTS"]

_SMALL = 1 << 16


def _losses(w: Writer) -> tuple[str, str, str, str, str]:
    """Return the sum of the losses, exp(logits - max), its row sums, which rows are not ignored, and where the targets are."""
    b, ignored = w.b, w.attributes["ignore_index"]
    narrow = b.linear(w["x"], w["weight"], w.optional("bias"))
    logits = w.wide(narrow)
    rows, columns = w.shape(logits)
    largest = b.amax(logits, dim=[-1], keepdim=True)
    powers = b.exp(b.sub(logits, largest))
    sums = b.sum(powers, dim=[-1], keepdim=True)
    counts = b.ne(w["target"], ignored)
    target = b.view(b.where(counts, w["target"], 0), size=[rows, 1])
    # Each row compares all numbers of words with its target: narrow numbers are read faster.
    number = DType.UINT16 if columns <= _SMALL else DType.INT32
    words = b.view(b.arange(end=columns, dtype=number.value), size=[1, columns])
    hot = b.eq(words, w.cast(target, number))
    picked = w.wide(b.gather(narrow, target, dim=1))
    each = b.sub(b.add(largest, b.log(sums)), picked)
    counts = b.view(counts, size=[rows, 1])
    # The loss of an ignored row may be any number, also NaN, which a product with 0 would keep.
    return b.sum(b.where(counts, each, 0.0), dim=[0, 1]), powers, sums, counts, hot


def _cross_entropy(w: Writer) -> list[str]:
    return [_losses(w)[0]]


def _cross_entropy_gradients(w: Writer) -> list[str]:
    """Write the losses' sum, and with dlogits = (softmax - onehot) scale the gradients dlogits weight, dlogits^T x and sum(dlogits).

    The gradients of weight and bias are added to those of earlier rows, if there are any.
    """
    b, wanted = w.b, w.attributes["wanted"]
    total, powers, sums, counts, hot = _losses(w)
    factor = b.mul(w.cast(counts, w.spec(sums).dtype), w["scale"])
    dlogits = w.like(b.sub(b.mul(powers, b.div(factor, sums)), b.where(hot, factor, 0.0)), "x")
    results = [total]
    if wanted[0]:
        results.append(b.matmul(dlogits, w["weight"]))
    if wanted[1]:
        results.append(_added(w, "dweight", w.wide(b.matmul(b.permute(dlogits, dims=[1, 0]), w["x"]))))
    if wanted[2]:
        results.append(_added(w, "dbias", w.sum_leading(w.wide(dlogits))))
    return results


def _added(w: Writer, earlier: str, value: str) -> str:
    before = w.optional(earlier)
    return value if before is None else w.b.add(before, value)


CROSS_ENTROPY = Formula(
    "linear_cross_entropy", ("x", "weight", "bias", "target"), ("ignore_index",), _cross_entropy
)
CROSS_ENTROPY_GRADIENTS = Formula(
    "linear_cross_entropy_gradients",
    ("x", "weight", "bias", "target", "scale", "dweight", "dbias"),
    ("ignore_index", "wanted"),
    _cross_entropy_gradients,
)
