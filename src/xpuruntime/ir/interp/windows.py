"""Sliding windows over the last dims: what convolution, pooling and im2col share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from ..ops._shapes import pads, window
from .numbers import Array

__all__ = ["Windows", "last", "pad", "taps"]


def last(where: Iterable[Any]) -> Any:
    """Return the index that applies to the last dims."""
    return (..., *where)


class Windows:
    """Geometry of a window that slides over ``space``: sizes by PyTorch's and ONNX's formula, see ``ops._shapes.window``.

    size:   how many places it has along each dim.
    begins, ends: padding; with ceil_mode the last window may reach beyond it, by ``beyond``.
    """

    def __init__(
        self,
        space: Sequence[int],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        ceil_mode: bool = False,
    ) -> None:
        self.n = len(kernel)
        self.space, self.kernel = tuple(space), tuple(kernel)
        self.stride, self.dilation = tuple(stride), tuple(dilation)
        self.begins, self.ends = pads(padding, self.n)
        along = zip(space, kernel, stride, self.begins, self.ends, dilation, strict=True)
        self.size = tuple(cast(int, window(d, k, s, b, e, w, ceil_mode)) for d, k, s, b, e, w in along)
        self.beyond = tuple(
            max(0, (o - 1) * s + (k - 1) * w + 1 - (d + b + e))
            for d, k, s, b, e, w, o in zip(
                space, kernel, stride, self.begins, self.ends, dilation, self.size, strict=True
            )
        )

    def padded(self, x: Array, fill: Any) -> Array:
        """Pad x with ``fill`` (negative padding crops), also beyond the padding as far as windows reach."""
        return pad(pad(x, self.begins, self.ends, fill), [0] * self.n, self.beyond, fill)

    def taps(self) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Return each place in the kernel, and the slices of the padded operand that it reads in all windows."""
        return taps(self.kernel, self.size, self.stride, self.dilation)

    def view(self, x: Array, fill: Any) -> Array:
        """Return every window of x: [..., places, kernel]."""
        return self.over(self.padded(x, fill))

    def over(self, full: Array) -> Array:
        """Return every window of what is padded already."""
        span = tuple((k - 1) * w + 1 for k, w in zip(self.kernel, self.dilation, strict=True))
        axes = tuple(range(full.ndim - self.n, full.ndim))
        windows = np.lib.stride_tricks.sliding_window_view(full, span, axes)
        starts = [
            slice(0, (o - 1) * s + 1, s) if o else slice(0, 0)
            for o, s in zip(self.size, self.stride, strict=True)
        ]
        inside = [slice(None, None, w) for w in self.dilation]
        return np.asarray(windows[last([*starts, *inside])])

    def crop(self, padded: Array) -> Array:
        """Return the inverse of ``padded``: the part that is the operand."""
        inside = pad(padded, [0] * self.n, [-b for b in self.beyond], 0)
        return pad(inside, [-b for b in self.begins], [-e for e in self.ends], 0)


def taps(
    kernel: Sequence[int], size: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Return each place in a kernel with the strided slices that it reads."""
    for tap in np.ndindex(*kernel):
        yield (
            tap,
            tuple(
                slice(t * w, t * w + (o - 1) * s + 1, s) if o else slice(0, 0)
                for t, w, o, s in zip(tap, dilation, size, stride, strict=True)
            ),
        )


def pad(x: Array, begins: Sequence[int], ends: Sequence[int], fill: Any) -> Array:
    """Return the last dims of x enlarged by ``fill``, or cropped where a number is negative."""
    n = len(begins)
    space = x.shape[x.ndim - n :]
    shape = [d + b + e for d, b, e in zip(space, begins, ends, strict=True)]
    result = np.full((*x.shape[: x.ndim - n], *shape), fill, x.dtype)
    source = tuple(slice(max(-b, 0), d - max(-e, 0)) for d, b, e in zip(space, begins, ends, strict=True))
    target = tuple(slice(max(b, 0), s - max(e, 0)) for s, b, e in zip(shape, begins, ends, strict=True))
    result[last(target)] = x[last(source)]
    return result
