"""Queries of quantized values: what a DequantizeLinear reads, contents of scales and zero points, and weights without zero points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ir import Const, Editor, Node
from ...types import DType
from ..context import PassContext
from .pattern_utils import producer_of, spec_of

__all__ = ["Dequantized", "QuantizedValues"]

_BYTES = (DType.INT8, DType.UINT8)


@dataclass(frozen=True, slots=True)
class Dequantized:
    """A float32 value as (codes - zero) * scale. ``axis``: of a scale with one value per index; None for one scale."""

    codes: str
    scale: str
    zero: str | None
    axis: int | None


class QuantizedValues:
    """Queries during one sweep of a rewrite."""

    def __init__(self, editor: Editor, context: PassContext) -> None:
        self.editor = editor
        self._peek = context.peek
        self._weights = {w.name: w for w in editor.graph.weights}

    def dequantized(self, value: Any, dtypes: tuple[DType, ...] = _BYTES) -> Dequantized | None:
        """Return what a value is dequantized from; None if no DequantizeLinear to float32 with whole scales produces it."""
        node = producer_of(self.editor, value)
        if node is None or node.op != "dequantize_linear" or node.attrs["block_size"]:
            return None
        codes, scale, zero = (*node.inputs, None)[:3]
        x, s, y = (spec_of(self.editor, v) for v in (codes, scale, value))
        if x is None or s is None or y is None or not isinstance(codes, str) or not isinstance(scale, str):
            return None
        if x.dtype not in dtypes or s.dtype is not DType.FLOAT32 or y.dtype is not DType.FLOAT32:
            return None
        single = all(d == 1 for d in s.shape)
        if not single and s.rank != 1:
            return None
        axis = None if single else int(node.attrs["axis"]) % max(x.rank, 1)
        return Dequantized(codes, scale, zero if isinstance(zero, str) else None, axis)

    def content(self, value: str | None) -> NDArray[Any] | None:
        """Return the elements of a constant or of a weight that is available; None for others."""
        if value is None:
            return None
        node = producer_of(self.editor, value)
        if node is None:
            weight = self._weights.get(value)
            return None if weight is None else self._peek(weight)
        if node.op in ("view", "squeeze", "unsqueeze") and isinstance(node.inputs[0], str):
            inner = self.content(node.inputs[0])
            return None if inner is None else inner.reshape(-1)
        if node.op != "constant":
            return None
        const: Const = node.attrs["value"]
        return const.numpy()

    def same(self, a: str | None, b: str | None) -> bool:
        """Return whether two optional operands have the same known content."""
        if a == b:
            return True
        first, second = self.content(a), self.content(b)
        # An absent zero point is 0.
        if a is None or b is None:
            present = second if a is None else first
            return present is not None and not present.any()
        if first is None or second is None or first.size != second.size:
            return False
        return bool(np.array_equal(first.reshape(-1), second.reshape(-1)))

    def positive(self, scale: str) -> bool:
        """Return whether a scale is known to be positive, so that order is preserved."""
        content = self.content(scale)
        return content is not None and bool((content.astype(np.float32) > 0).all())

    def weight(self, at: Node, q: Dequantized, axis: int) -> str:
        """Return the codes of a constant weight minus its zero points: int8 if it has that range, else int16.

        at: the node before which new nodes are inserted. axis: the axis of output channels, along which zero points may change.
        """
        spec = spec_of(self.editor, q.codes)
        assert spec is not None
        content = self.content(q.zero)
        zero_is = (
            (lambda n: content is not None and bool((content == n).all())) if q.zero else lambda n: n == 0
        )
        if spec.dtype is DType.INT8 and zero_is(0):
            return q.codes
        insert = self.editor.insert
        wide = insert(at, "cast", q.codes, dtype=DType.INT16)
        if spec.dtype is DType.UINT8 and zero_is(128):
            moved = insert(at, "sub", wide, Const(np.array(128, np.int16)))
            return str(insert(at, "cast", moved, dtype=DType.INT8))
        if q.zero is None:
            return str(wide)
        zero = insert(at, "cast", q.zero, dtype=DType.INT16)
        zero_spec = spec_of(self.editor, zero)
        assert zero_spec is not None
        count = math.prod(int(d) for d in zero_spec.shape if isinstance(d, int))
        shape = [1] * spec.rank
        if count > 1:
            shape[axis] = count
        return str(insert(at, "sub", wide, insert(at, "view", zero, size=tuple(shape))))

    def bias_in_sums(self, bias: Dequantized, x_scale: str, weight_scale: str) -> bool:
        """Return whether a bias in int32 has the scale of the sums, so that it can be added to them."""
        if bias.zero is not None and not self.same(bias.zero, None):
            return False
        scales = [self.content(v) for v in (bias.scale, x_scale, weight_scale)]
        if any(s is None for s in scales):
            return False
        own, x, weight = (np.asarray(s, np.float64).reshape(-1) for s in scales)
        return (
            bool(np.allclose(own, x * weight, rtol=1e-6, atol=0.0)) if own.size in (1, weight.size) else False
        )
