"""Cross entropy of a linear layer's results, for some of the rows: losses and, in the same pass, the gradients of rows, weight and bias.

The logits of other rows are never computed. The weight may have more rows than the vocabulary has words, so that vector loads are aligned. The logits
of the additional rows count as -inf.
"""

from __future__ import annotations

import math

from .formula import Formula, Writer

__all__ = ["CROSS_ENTROPY", "CROSS_ENTROPY_GRADIENTS"]


def _losses(w: Writer) -> tuple[str, str, str, str, str]:
    """Return the sum of the losses, exp(logits - max), its row sums, a mask of the rows that are not ignored, and the one-hot targets."""
    b, words, ignored = w.b, w.attributes["words"], w.attributes["ignore_index"]
    narrow = b.linear(w["x"], w["weight"], w.optional("bias"))
    logits = w.wide(narrow)
    rows, columns = w.shape(logits)
    wide = w.spec(logits).dtype
    classes = b.view(b.arange(end=columns, dtype="int64"), size=[1, columns])
    if columns > words:
        logits = b.where(b.lt(classes, words), logits, -math.inf)
    largest = b.amax(logits, dim=[-1], keepdim=True)
    powers = b.exp(b.sub(logits, largest))
    sums = b.sum(powers, dim=[-1], keepdim=True)
    counts = b.ne(w["target"], ignored)
    target = b.view(b.where(counts, w["target"], 0), size=[rows, 1])
    hot = w.cast(b.eq(classes, target), wide)
    picked = w.wide(b.gather(narrow, target, dim=1))
    each = b.sub(b.add(largest, b.log(sums)), picked)
    mask = b.view(w.cast(counts, wide), size=[rows, 1])
    # The loss of an ignored row may be any number, also NaN, which a product with the mask would keep.
    loss = b.where(b.view(counts, size=[rows, 1]), each, 0.0)
    return b.sum(loss, dim=[0, 1]), powers, sums, mask, hot


def _cross_entropy(w: Writer) -> list[str]:
    return [_losses(w)[0]]


def _cross_entropy_gradients(w: Writer) -> list[str]:
    """Write the losses' sum, and with dlogits = (softmax - onehot) scale the gradients dlogits weight, dlogits^T x and sum(dlogits)."""
    b, wanted = w.b, w.attributes["wanted"]
    total, powers, sums, mask, hot = _losses(w)
    dlogits = w.like(b.mul(b.sub(b.div(powers, sums), hot), b.mul(mask, w["scale"])), "x")
    results = [total]
    if wanted[0]:
        results.append(b.matmul(dlogits, w["weight"]))
    if wanted[1]:
        results.append(w.wide(b.matmul(b.permute(dlogits, dims=[1, 0]), w["x"])))
    if wanted[2]:
        results.append(w.sum_leading(w.wide(dlogits)))
    return results


CROSS_ENTROPY = Formula(
    "linear_cross_entropy", ("x", "weight", "bias", "target"), ("words", "ignore_index"), _cross_entropy
)
CROSS_ENTROPY_GRADIENTS = Formula(
    "linear_cross_entropy_gradients",
    ("x", "weight", "bias", "target", "scale"),
    ("words", "ignore_index", "wanted"),
    _cross_entropy_gradients,
)
