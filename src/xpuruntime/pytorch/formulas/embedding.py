"""Rows of a table by index. Backward adds each gradient row to its row of the table."""

from __future__ import annotations

from .formula import Formula, Writer

__all__ = ["EMBEDDING", "EMBEDDING_BACKWARD"]


def _embedding(w: Writer) -> list[str]:
    # The IR counts negative indices from the end; PyTorch has none, so they become one that is an error.
    b, indices = w.b, w["indices"]
    rows = w.shape(w["weight"])[0]
    return [b.embedding(w["weight"], b.where(b.lt(indices, 0), rows, indices))]


def _embedding_backward(w: Writer) -> list[str]:
    b = w.b
    rows, padding = w.attributes["rows"], w.attributes["padding_idx"]
    grad = w.wide(w.rows(w["grad"]))
    count, size = w.shape(grad)
    indices = b.view(w["indices"], size=[count])
    if padding >= 0:
        keep = b.view(w.cast(b.ne(indices, padding), w.spec(grad).dtype), size=[count, 1])
        grad = b.mul(grad, keep)
    zeros = b.full(size=[rows, size], value=0.0, dtype=w.spec(grad).dtype.value)
    return [w.like(b.index_put(zeros, grad, indices, accumulate=True), "grad")]


EMBEDDING = Formula("embedding", ("weight", "indices"), ("padding_idx",), _embedding)
EMBEDDING_BACKWARD = Formula(
    "embedding_backward", ("grad", "indices"), ("rows", "padding_idx", "wanted"), _embedding_backward
)
