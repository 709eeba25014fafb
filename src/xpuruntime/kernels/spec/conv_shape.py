"""``ConvShape``: sizes and strides of convolutions and pools, read from a node and passed to C++ (``conv_shape.h``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...ir.ops._shapes import pads
from ...types import TensorSpec
from ..kernel import NodeCall

__all__ = ["TASKS", "ConvShape", "sizes", "strides_of"]

TASKS = 16
"""Minimum tasks of a large operation, so that every thread has work."""


def sizes(spec: TensorSpec) -> tuple[int, ...]:
    """Return a static shape as integers."""
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def strides_of(spec: TensorSpec, rank: int) -> tuple[int, ...]:
    """Return strides over n, c, d, h, w of a value whose last ``rank`` dims are spatial. Missing dims and dims of extent 1 have stride 0."""
    steps = tuple(0 if d == 1 else s for d, s in zip(sizes(spec), spec.physical.strides, strict=True))
    lead = (0,) * (rank + 2 - len(steps)) + steps[: len(steps) - rank]
    return (*lead, *(0,) * (3 - rank), *steps[len(steps) - rank :])


@dataclass(frozen=True, slots=True)
class ConvShape:
    """The fields of ``conv::Shape``, always with three spatial dims; ``rank`` is the node's number of them.

    x, y, r: strides over n, c, d, h, w of the input, the result, and the residual.
    channels, filters: per group.
    begin: padding before each spatial dim.
    """

    images: int
    groups: int
    channels: int
    filters: int
    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]
    x: tuple[int, ...]
    y: tuple[int, ...]
    r: tuple[int, ...] = (0,) * 5
    transposed: bool = False
    rank: int = 2

    @classmethod
    def of(cls, call: NodeCall) -> ConvShape:
        """Return the shape of a convolution."""
        x, weight, y = call.tensor(0).spec, call.tensor(1).spec, call.outputs[0]
        residual = call.optional(3) if call.op == "fused_convolution" else None
        groups, transposed = call.attrs["groups"], bool(call.attrs.get("transposed", False))
        w = sizes(weight)
        channels, filters = (w[0] // groups, w[1]) if transposed else (w[1], w[0] // groups)
        shape = cls.window(x, y, w[2:], call)
        return cls(
            shape.images, groups, channels, filters, shape.size, shape.out, shape.kernel, shape.stride, shape.dilation,
            shape.begin, shape.x, shape.y,
            (0,) * 5 if residual is None else _broadcast(residual.spec, shape.rank), transposed, shape.rank,
        )  # fmt: skip

    @classmethod
    def window(cls, x: TensorSpec, y: TensorSpec, kernel: Sequence[int], call: NodeCall) -> ConvShape:
        """Return the shape of a window that slides over each channel, with the node's stride, padding and dilation."""
        n = len(kernel)
        stride, dilation, begin = (
            call.attrs["stride"],
            call.attrs["dilation"],
            pads(call.attrs["padding"], n)[0],
        )
        lead = sizes(x)[: x.rank - n]
        return cls(
            math.prod(lead[:-1]), 1, lead[-1], lead[-1], _space(sizes(x)[-n:]), _space(sizes(y)[-n:]), _space(kernel),
            _space(stride), _space(dilation), _space(begin, 0),
            _channel_step(x, strides_of(x, n), n), _channel_step(y, strides_of(y, n), n), rank=n,
        )  # fmt: skip

    @classmethod
    def adaptive(cls, x: TensorSpec, y: TensorSpec, n: int) -> ConvShape:
        """Return the shape of nearly equal windows, one per output position."""
        lead = sizes(x)[: x.rank - n]
        size, out = _space(sizes(x)[-n:]), _space(sizes(y)[-n:])
        kernel = tuple(-(-a // b) if b else 1 for a, b in zip(size, out, strict=True))
        ones = (1, 1, 1)
        return cls(
            math.prod(lead[:-1]), 1, lead[-1], lead[-1], size, out, kernel, kernel, ones, (0, 0, 0),
            _channel_step(x, strides_of(x, n), n), _channel_step(y, strides_of(y, n), n), rank=n,
        )  # fmt: skip

    @property
    def taps(self) -> int:
        """The number of taps of a filter."""
        return math.prod(self.kernel)

    @property
    def pixels(self) -> int:
        """The number of output positions of all images."""
        return self.images * math.prod(self.out)

    def cut(self, rows: int, channels: int, unit: int) -> tuple[int, int, int]:
        """Return the rows of output pixels of a task, its channels (a multiple of ``unit`` if they are split), and the number of tasks.

        Channels are split where rows are few.
        """
        rows, all_rows = max(rows, 1), self.images * math.prod(self.out[:2])
        if -(-all_rows // rows) < TASKS:
            rows = 1
        row_tasks = -(-all_rows // rows)
        if row_tasks >= TASKS or channels <= unit:
            return rows, max(channels, 1), max(row_tasks, 1)
        parts = -(-TASKS // max(row_tasks, 1))
        each = -(-channels // (parts * unit)) * unit
        return rows, each, max(row_tasks * -(-channels // each), 1)

    def flops(self, per_tap: int) -> int:
        """Return arithmetic operations, including those of taps in the padding."""
        inputs = self.images * math.prod(self.size) if self.transposed else self.pixels
        return per_tap * inputs * self.groups * self.filters * self.taps * self.channels

    def bytes(self, call: NodeCall) -> int:
        """Return the minimum memory traffic in bytes: operands and results once."""
        specs = [t.spec for t in call.tensors] + list(call.outputs)
        return sum(s.size_bytes or 0 for s in specs)

    def about(self, call: NodeCall) -> str:
        """Return a comment with the op and its shapes. It has no node name, because equal texts become one function."""
        ins = ", ".join(str(t.spec) for t in call.tensors)
        return f"{call.op}: {ins} -> {call.outputs[0]}"


def _space(values: Sequence[int], fill: int = 1) -> tuple[int, ...]:
    return (*(fill,) * (3 - len(values)), *values)


def _channel_step(spec: TensorSpec, strides: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Return the strides with the true stride of the channel dim, also for a single channel, so that rows of channels are recognized."""
    return (strides[0], spec.physical.strides[spec.rank - rank - 1], *strides[2:])


def _broadcast(spec: TensorSpec, rank: int) -> tuple[int, ...]:
    """Return the strides of a value that broadcasts to [n, c, space]."""
    missing = rank + 2 - spec.rank
    steps = (0,) * missing + tuple(
        0 if d == 1 else s for d, s in zip(sizes(spec), spec.physical.strides, strict=True)
    )
    return (*steps[:2], *(0,) * (3 - rank), *steps[2:])
