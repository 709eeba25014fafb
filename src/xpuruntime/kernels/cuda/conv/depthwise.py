"""``conv/depthwise`` on CUDA: one or more filters per channel, with bias, residual and activation (``templates/cuda/depthwise.cuh``).

It is bandwidth-bound, because each input element contributes to only a few outputs. A thread loads 16 bytes of adjacent channels
(coalesced) and computes a small tile of output pixels, whose windows share their input in registers. With several filters per channel (a channel multiplier), its results share the channels that it loads.
It supports constant filters of at most 11 taps per dim, one or two spatial dims, and contiguous channels.
"""

from __future__ import annotations

from ....codegen.c_types import accumulator
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....program.program import RecipeStep
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Packed, Stage
from ...portable.text import braces
from ...spec.conv import FLOATS, OPS, act_of, stem_of, supported
from ...spec.conv_shape import ConvShape
from ..heavy import about, bytes_of
from ..launch import LaunchConfig, blocks_for, cuda_stage
from ..matmul.text import parts_of
from .text import arguments_of, finish_text

__all__ = ["Depthwise"]

_PACK_BYTES = 16
"""Bytes of the widest vector load."""
_THREADS = 128
"""Threads of a block."""
_MAX_TAPS = 11
"""Maximum taps per dim, because the loops over a window are fully unrolled."""
_MAX_FILTERS, _MAX_PRODUCT_TAPS = 8, 25
"""Maximum filters per channel, and the taps of a filter up to which any number is supported. Above both, a channel is a product with k = taps that is
worth tensor cores. With few taps, writing results takes as long as the FMAs, whatever the number of filters.
"""
_MIN_THREADS = 1 << 16
"""Threads that occupy a device. Tiles are smaller where larger ones would leave fewer threads."""
_TILES = ((2, 4), (1, 4), (1, 2), (1, 1))
"""Output rows and columns of a thread, largest first."""
_MAX_REGS = 112
"""Maximum registers of a thread for its accumulators and one line of input."""


class Depthwise(Kernel):
    """Depthwise convolution of groups of one input channel and one or more output channels, with contiguous channels."""

    name: str = "conv/depthwise"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats, one or two spatial dims, and constant filters of at most 11 taps per dim; not transposed."""
        answer = supported(call, FLOATS)
        if not answer:
            return answer
        s = ConvShape.of(call)

        def no(reason: str) -> Support:
            return Support.no(Reason.SHAPE_UNSUPPORTED, reason)

        if s.channels != 1 or s.groups == 1:
            return no("only depthwise convolutions, which have one input channel per group, are supported")
        if s.filters > _MAX_FILTERS and s.taps > _MAX_PRODUCT_TAPS:
            return no(
                f"more than {_MAX_FILTERS} filters per channel are supported only with at most {_MAX_PRODUCT_TAPS} taps"
            )
        if call.attrs["transposed"] or s.rank > 2 or max(s.kernel) > _MAX_TAPS:
            return no(
                f"only non-transposed convolutions of one or two spatial dims with at most {_MAX_TAPS} taps per dim are supported"
            )
        if not call.tensor(1).is_weight or not call.tensor(1).spec.is_dense:
            return no("the filters must be constant and dense")
        if s.x[1] != 1 or s.y[1] != 1:
            return no("channels must be contiguous")
        if s.pixels * _outputs(s) >= 2**31:
            return no("more than 2**31 results")
        return answer

    def view_alignment(self, call: NodeCall, target: CodegenTarget) -> int:
        """Return the bytes of a vector load."""
        dtype = call.outputs[0].dtype
        return _width(ConvShape.of(call), dtype) * dtype.bits // 8

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage over filters packed as [tap, output channel]."""
        s, spec = ConvShape.of(call), call.tensor(1).spec
        if not s.pixels * _outputs(s):
            return LoweredCall(())
        steps = (
            RecipeStep("reshape", ("%in",), {"shape": [_outputs(s), s.taps]}),
            RecipeStep("permute", ("%0",), {"order": [1, 0]}),
        )
        packed = Packed(steps, TensorSpec((s.taps, _outputs(s)), spec.dtype))
        wide = "float64" if spec.dtype is DType.FLOAT64 else "float32"
        return LoweredCall((_stage(call, s),), weights={1: packed}, accumulates=wide)


def _stage(call: NodeCall, s: ConvShape) -> Stage:
    width = _width(s, call.outputs[0].dtype)
    lines, columns = _tile(s, width)
    count = _outputs(s) // width * -(-s.out[2] // columns) * -(-s.out[1] // lines) * s.images
    arguments = arguments_of(call)
    sums, kind = accumulator(call.outputs[0].dtype), arguments[0].ctype

    def work(v: int, item: str) -> str:
        sizes = "KERNEL_sizes" if s.filters == 1 else f"KERNEL_sizes, {s.filters}"
        return f"depthwise::run<{kind}, {v}, {lines}, {columns}, {sizes}>(x, filters, y, {item}, finish);"

    body = [
        f"const uint32_t e = blockIdx.x * {_THREADS} + threadIdx.x;",
        *([f"if (e >= {count}) return;"] if count % _THREADS else []),
        f"const KERNEL_finish finish = {{{', '.join(a.name for a in arguments[2:])}}};",
    ]
    if width == 1:
        body.append(work(1, "e"))
    else:  # the caller's buffer may have any alignment
        body += [
            f"if (fits<{_loads(s, width)[1]}>(x) && fits<{width}>(y)) {work(width, 'e')}",
            "else",
            "#pragma unroll 1",
            f"    for (int u = 0; u < {width}; ++u) {work(1, f'e * {width} + u')}",
        ]
    return cuda_stage(
        stem_of("depthwise", s), about(call, f"{width} channels of {lines} x {columns} pixels a thread"), arguments, body,
        LaunchConfig.flat(blocks_for(count, _THREADS), _THREADS), before=[*_sizes(s, sums), *finish_text(call, s, arguments, sums)],
        parts=parts_of(act_of(call), "depthwise"), flops=s.flops(2), bytes=bytes_of([*(t.spec for t in call.tensors), call.outputs[0]]),
    )  # fmt: skip


def _width(s: ConvShape, dtype: DType) -> int:
    """Return the output channels of a thread: they fill 16 bytes, and vector accesses of x and y divide every stride between pixels."""
    width = _PACK_BYTES * 8 // dtype.bits
    x, y = ([stride for i, stride in enumerate(strides) if i != 1] for strides in (s.x, s.y))
    while width > 1:
        elements = _loads(s, width)[1]
        if not any(step % width for step in (_outputs(s), *y)) and not any(step % elements for step in x):
            break
        width //= 2
    return width


def _outputs(s: ConvShape) -> int:
    """Return the number of output channels."""
    return s.groups * s.filters


def _loads(s: ConvShape, width: int) -> tuple[int, int]:
    """Return the elements of a pixel that ``width`` output channels load, and those of one load. ``SHARE`` of the template is the same rule."""
    share = min(s.filters & -s.filters, width)
    elements = width // share
    return elements, elements if share == s.filters else 1


def _tile(s: ConvShape, width: int) -> tuple[int, int]:
    """Return the output rows and columns of a thread: the largest tile that fits its registers and leaves enough threads."""
    for lines, columns in _TILES:
        threads = _outputs(s) // width * -(-s.out[2] // columns) * -(-s.out[1] // lines) * s.images
        line = (columns - 1) * s.stride[2] + (s.kernel[2] - 1) * s.dilation[2] + 1
        values = lines * columns * width + line * _loads(s, width)[0]
        fits = values <= _MAX_REGS and lines <= s.out[1] and columns <= s.out[2]
        reuses_rows = lines == 1 or s.kernel[1] > s.stride[1]
        if threads >= _MIN_THREADS and fits and reuses_rows:
            return lines, columns
    return 1, 1


def _sizes(s: ConvShape, sums: str) -> list[str]:
    """Return the C++ type that passes sizes to the template."""
    rows = {
        "size": s.size[1:], "out": s.out[1:], "kernel": s.kernel[1:], "stride": s.stride[1:], "dilation": s.dilation[1:],
        "begin": s.begin[1:],
    }  # fmt: skip
    texts = ", ".join(f"{name}[2] = {braces(values)}" for name, values in rows.items())
    steps = ", ".join(
        f"{name}[3] = {braces((strides[0], strides[3], strides[4]))}"
        for name, strides in (("x", s.x), ("y", s.y))
    )
    return [
        "struct KERNEL_sizes {",
        f"    typedef {sums} sum;",
        f"    static constexpr int channels = {_outputs(s)}, {texts};",
        f"    static constexpr int64_t {steps};",
        "};",
    ]
