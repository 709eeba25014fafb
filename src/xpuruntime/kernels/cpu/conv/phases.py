"""Transposed convolutions as ordinary ones: output positions a stride apart use the same taps.

With stride s, output position ``q * s + phase`` uses tap t at input ``(q * s + phase + begin - t * dilation) / s`` where that is an integer, which is
every s-th tap. So each phase is a convolution of stride 1 with its part of the taps in reverse, and its results are s positions apart. Nothing
is scattered or computed twice (Shi et al. 2016, "Is the deconvolution layer the same as a convolutional layer?", arXiv:1609.07009). Neighboring
phases of a row that read the same input positions become one convolution with more filters, if their results are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import NodeCall, Packed
from ...spec.conv import strides_of_weight
from ...spec.conv_shape import ConvShape

__all__ = ["Phase", "phases", "repeated_bias"]


@dataclass(frozen=True, slots=True)
class _Line:
    """A phase along one dim: its ``count`` taps ``first``, ``first + step`` ..., and the convolution over them."""

    phase: int
    first: int
    step: int
    count: int
    begin: int
    dilation: int
    out: int

    @property
    def signature(self) -> tuple[int, int, int]:
        """The fields that two phases must share to become one convolution."""
        return self.count, self.begin, self.out


@dataclass(frozen=True, slots=True)
class Phase:
    """One ordinary convolution of a transposed one.

    y, r:   offsets of its first result and residual, in elements.
    merged: phases of a row that it computes at once, each with all filters.
    """

    shape: ConvShape
    lines: tuple[_Line, ...]
    y: int
    r: int
    merged: int = 1

    def filters(self, transposed: ConvShape, dtype: DType, weight: TensorSpec) -> list[RecipeStep]:
        """Return steps from the node's [in, out / groups, taps] to [groups, filters, channels, taps] of the phase."""
        s, steps = transposed, list[RecipeStep]()

        def step(op: str, *inputs: str, **attrs: object) -> str:
            steps.append(RecipeStep(op, inputs or ((f"%{len(steps) - 1}" if steps else "%in"),), attrs))
            return f"%{len(steps) - 1}"

        if weight.dtype is not dtype:
            step("cast", dtype=dtype.value)
        step("reshape", shape=[s.groups, s.channels, s.filters, *s.kernel])
        step("permute", order=[0, 2, 1, 3, 4, 5])
        taps = [-(-k // line.step) for k, line in zip(s.kernel, self.lines, strict=True)]
        padding = [n * line.step - k for n, k, line in zip(taps, s.kernel, self.lines, strict=True)]
        step("pad", begin=[0] * 6, end=[0, 0, 0, *padding])
        split = [x for n, line in zip(taps, self.lines, strict=True) for x in (n, line.step)]
        all_taps = step("reshape", shape=[s.groups, s.filters, s.channels, *split])
        phase_filters = []
        for tap in (
            range(self.lines[2].first, self.lines[2].first + self.merged) if self.merged > 1 else (None,)
        ):
            at = all_taps
            for d, line in enumerate(self.lines):
                first = line.first if tap is None or d < 2 else tap
                at = step("slice", at, dim=3 + 2 * d, begin=0, end=line.count)
                at = step("slice", at, dim=4 + 2 * d, begin=first, end=first + 1)
            phase_filters.append(at)
        if self.merged > 1:
            step("concat", *phase_filters, dim=1)
        kernel = [line.count for line in self.lines]
        step("reshape", shape=[s.groups, s.filters * self.merged, s.channels, *kernel])
        step("flip", dims=[3, 4, 5])
        return steps

    def strides_of_filters(self, transposed: ConvShape, weight: TensorSpec) -> tuple[int, tuple[int, ...]]:
        """Return the offset of the phase's last taps, and the strides of filter, channel, kernel dims and group from there, of filters that are computed."""
        filter_, channel, *space, group = strides_of_weight(transposed, weight)
        last = [line.first + (line.count - 1) * line.step for line in self.lines]
        taps = [-step * line.step for step, line in zip(space, self.lines, strict=True)]
        return sum(tap * step for tap, step in zip(last, space, strict=True)), (
            filter_,
            channel,
            *taps,
            group,
        )


def phases(call: NodeCall, shape: ConvShape) -> tuple[Phase, ...] | None:
    """Return the ordinary convolutions of a transposed one; None if a phase has no tap, or a strided dim is dilated."""
    if not shape.transposed or not shape.pixels or not shape.filters:
        return None
    depth, height, width = (_lines(shape, d) for d in range(3))
    if depth is None or height is None or width is None:
        return None
    runs = _runs(width) if _mergeable(call, shape) else [(line, 1) for line in width]
    return tuple(_phase(shape, (d, h, w), merged) for d in depth for h in height for w, merged in runs)


def repeated_bias(call: NodeCall, split_phases: Sequence[Phase]) -> Packed | None:
    """Return the bias repeated for each phase of the largest merged one, of which the others read the beginning; None if the node's own bias fits."""
    bias = call.optional(2)
    phase = max(split_phases, key=lambda p: p.merged)
    if bias is None or phase.merged == 1:
        return None
    count, filters = phase.merged, phase.shape.filters // phase.merged
    steps = (
        RecipeStep("reshape", ("%in",), {"shape": [1, filters]}),
        RecipeStep("expand", ("%0",), {"shape": [count, filters]}),
        RecipeStep("reshape", ("%1",), {"shape": [count * filters]}),
    )
    return Packed(steps, TensorSpec((count * filters,), bias.spec.dtype))


def _lines(shape: ConvShape, d: int) -> tuple[_Line, ...] | None:
    """Return the phases of a dim that have output positions; None if one has no tap, or the strided dim is dilated."""
    kernel, stride, dilation, begin = shape.kernel[d], shape.stride[d], shape.dilation[d], shape.begin[d]
    if stride == 1:
        return (_Line(0, 0, 1, kernel, (kernel - 1) * dilation - begin, dilation, shape.out[d]),)
    if dilation != 1:
        return None
    lines = []
    for phase in range(min(stride, shape.out[d])):
        first = (phase + begin) % stride
        count = len(range(first, kernel, stride))
        if not count:
            return None
        base = (phase + begin - first) // stride  # input position of the phase's first tap at q = 0
        out = len(range(phase, shape.out[d], stride))
        lines.append(_Line(phase, first, stride, count, count - 1 - base, 1, out))
    return tuple(lines)


def _runs(lines: Sequence[_Line]) -> list[tuple[_Line, int]]:
    """Return the runs of consecutive phases that read the same positions with consecutive taps: the first phase of each, and their number."""
    runs: list[tuple[_Line, int]] = []
    for line in lines:
        if runs:
            first, count = runs[-1]
            if line.signature == first.signature and line.first == first.first + count:
                runs[-1] = (first, count + 1)
                continue
        runs.append((line, 1))
    return runs


def _mergeable(call: NodeCall, shape: ConvShape) -> bool:
    """Return whether the filters are constant, the results of the phases of a row contiguous in filter order, and the bias can be repeated."""
    bias = call.optional(2)
    known = bias is None or (bias.is_weight and bias.spec.rank == 1)
    residual = call.op == "fused_convolution" and call.optional(3) is not None
    steps = [shape.y, *([shape.r] if residual else [])]
    dense = all(s[4] == shape.filters * s[1] or shape.filters == 1 for s in steps)
    return call.tensor(1).is_weight and known and dense and shape.groups == 1


def _phase(shape: ConvShape, lines: Sequence[_Line], merged: int) -> Phase:
    output_step = [line.step for line in lines]

    def spread(steps: tuple[int, ...]) -> tuple[int, ...]:
        channel = steps[4] if merged > 1 and shape.filters == 1 else steps[1]
        return (steps[0], channel, *(s * n for s, n in zip(steps[2:], output_step, strict=True)))

    def first(steps: tuple[int, ...]) -> int:
        return sum(line.phase * s for line, s in zip(lines, steps[2:], strict=True))

    ordinary = replace(
        shape, filters=shape.filters * merged, out=tuple(line.out for line in lines), kernel=tuple(line.count for line in lines),
        stride=(1, 1, 1), dilation=tuple(line.dilation for line in lines), begin=tuple(line.begin for line in lines),
        y=spread(shape.y), r=spread(shape.r), transposed=False,
    )  # fmt: skip
    return Phase(ordinary, tuple(lines), first(shape.y), first(shape.r), merged)
