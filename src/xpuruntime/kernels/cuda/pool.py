"""``pool/generated`` on CUDA devices: maxima, means and p-norms of windows (``templates/pool.h``).

Windows of one or two dims are specialized for their sizes (``templates/cuda/pool_window.cuh``): a thread loads a pack of contiguous channels
(coalesced), and several output lines if their windows overlap. Three dims, windows of unequal sizes and indices of maxima use one thread
per element. Pools are bandwidth-bound.
"""

from __future__ import annotations

from ...codegen.c_types import C_TYPES
from ...codegen.loops.points import number
from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..kernel import Kernel, LoweredCall, NodeCall, Stage
from ..portable.text import braces, shape_text
from ..portable.windows.pool import places_text, reducer_of, windows_text
from ..spec.conv_shape import ConvShape
from ..spec.pool import OPS, divisor_of, pool_shape, supported, window_ends
from .launch import Argument, LaunchConfig, blocks_for, cuda_stage
from .pointwise import index_type

__all__ = ["KERNELS"]

_PACK_BYTES = 16
"""Bytes of the widest vector load."""
_MIN_THREADS = 1 << 16
"""Threads that occupy a device. Below, a thread has one channel and one line."""


_MAX_PREFETCH_BYTES = 192
"""Maximum bytes that a thread loads into registers before it reduces them, so that all loads are in flight at once."""


class Pool(Kernel):
    """Maxima, means and p-norms of windows, in any layout."""

    name: str = "pool/generated"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for the nodes of ``spec.pool`` with fewer than 2**31 elements."""
        answer = supported(call)
        if answer.ok and pool_shape(call).pixels * pool_shape(call).channels >= 2**31:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "more than 2**31 elements")
        return answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        dtype, shape = call.outputs[0].dtype, pool_shape(call)
        stage = (_windows if _regular(call, shape) else _points)(call, shape, target)
        wide = "float64" if dtype is DType.FLOAT64 else "float32" if dtype.is_float else "int64"
        return LoweredCall((stage,), accumulates=wide)


def _kind(call: NodeCall) -> str:
    dtype = call.outputs[0].dtype
    return "uint8_t" if dtype is DType.BOOL else C_TYPES[dtype]


def _regular(call: NodeCall, shape: ConvShape) -> bool:
    """Return whether all windows have one size, in at most two dims, and no indices are requested."""
    two_dims = shape.size[0] == shape.out[0] == shape.kernel[0] == 1 and not shape.begin[0]
    equal = "output_size" not in call.attrs or all(
        o and n % o == 0 for n, o in zip(shape.size, shape.out, strict=True)
    )
    return len(call.outputs) == 1 and two_dims and equal


def _windows(call: NodeCall, shape: ConvShape, target: CodegenTarget) -> Stage:
    kind, threads = _kind(call), target.config.max_threadgroup_1d
    reducer, part = reducer_of(call, call.outputs[0].dtype)
    contiguous = shape.x[1] == 1 and shape.y[1] == 1 and shape.channels > 1
    width, elements = _width(call, shape) if contiguous else 1, shape.pixels * shape.channels
    item = width * max(call.outputs[0].dtype.bits // 8, 1)
    lines_each = _lines(shape, item, elements // width)
    count = elements // width // max(shape.out[1], 1) * -(-shape.out[1] // lines_each)
    work = (
        f"pool::window<pool::{reducer}, {kind}, {{}}, {lines_each}, KERNEL_sizes>(in0, out0, {{}}, windows);"
    )
    lines = [f"const uint32_t e = blockIdx.x * {threads} + threadIdx.x;"]
    if count % threads:
        lines.append(f"if (e >= {count}) return;")
    lines.append(f"const pool::Windows windows = {windows_text(call, shape)};")
    if width == 1:
        lines.append(work.format(1, "e"))
    else:
        lines += [
            f"if (fits<{width}>(in0) && fits<{width}>(out0)) {work.format(width, 'e')}",
            "else",
            "#pragma unroll 1",
            f"  for (int u = 0; u < {width}; ++u) {work.format(1, f'e * {width} + u')}",
        ]
    return cuda_stage(
        call.op, shape.about(call), [Argument("in0", "in0", kind), Argument("out0", "out0", kind, True)],
        lines if count else [], LaunchConfig.flat(blocks_for(count, threads), threads), before=_sizes(call, shape, contiguous, _prefetches(shape, item, lines_each)),
        parts=frozenset({part, "pool_window"}), flops=elements * shape.taps, bytes=shape.bytes(call),
    )  # fmt: skip


def _width(call: NodeCall, shape: ConvShape) -> int:
    """Return the channels of a vector load: they fill 16 bytes and divide every stride between pixels."""
    width = _PACK_BYTES * 8 // max(8, call.outputs[0].dtype.bits)
    steps = [
        shape.channels,
        *(stride for strides in (shape.x, shape.y) for i, stride in enumerate(strides) if i != 1),
    ]
    while width > 1 and (
        any(stride % width for stride in steps) or shape.pixels * shape.channels // width < _MIN_THREADS
    ):
        width //= 2
    return width


def _prefetches(shape: ConvShape, item: int, lines: int) -> bool:
    """Return whether the input of the windows of ``lines`` output lines fits a thread's registers."""
    rows = shape.kernel[1] + (lines - 1) * shape.stride[1]
    return rows * shape.kernel[2] * max(item, 4) <= _MAX_PREFETCH_BYTES


def _lines(shape: ConvShape, item: int, threads: int) -> int:
    """Return the output lines of a thread: several where their windows overlap, or are so small that addressing dominates."""
    lines = 4 if shape.kernel[1] > shape.stride[1] else 2
    while lines > 1 and (
        shape.dilation[1] > 1
        or not _prefetches(shape, item, lines)
        or threads // lines < _MIN_THREADS
        or shape.out[1] < 2 * lines
    ):
        lines //= 2
    return lines


def _sizes(call: NodeCall, shape: ConvShape, contiguous: bool, gathers: bool) -> list[str]:
    """Return the C++ type that passes sizes to ``pool::window``."""
    (limit, divisor_end), (padding, divisor) = window_ends(call, shape), divisor_of(call)
    steps = [(s[0], s[1], s[3], s[4]) for s in (shape.x, shape.y)]
    extents = [(shape.images, shape.channels, max(n[1], 1), max(n[2], 1)) for n in (shape.size, shape.out)]
    reach_ = max(
        sum(abs(s) * n for s, n in zip(strides, ns, strict=True))
        for strides, ns in zip(steps, extents, strict=True)
    )
    rows = {
        "out": shape.out[1:], "kernel": shape.kernel[1:], "stride": shape.stride[1:], "dilation": shape.dilation[1:],
        "begin": shape.begin[1:], "limit": limit[1:], "divisor_end": divisor_end[1:],
    }  # fmt: skip
    texts = ", ".join(f"{name}[2] = {braces(values)}" for name, values in rows.items())
    kind = "int" if index_type(reach_) == "uint32_t" else "int64_t"
    return [
        "struct KERNEL_sizes {",
        f"    typedef {kind} index;",
        f"    static constexpr int {texts};",
        f"    static constexpr int channels = {shape.channels}, along = {shape.channels if contiguous else 1};",
        f"    static constexpr int64_t x[4] = {braces(steps[0])}, y[4] = {braces(steps[1])};",
        f"    static constexpr bool padding_counts = {str(padding).lower()}, gathers = {str(gathers).lower()};",
        f"    static constexpr double divides = {number(divisor)};",
        "};",
    ]


def _points(call: NodeCall, shape: ConvShape, target: CodegenTarget) -> Stage:
    """Return the stage with one thread per output element and sizes read at run time."""
    kind, threads = _kind(call), target.config.max_threadgroup_1d
    reducer, part = reducer_of(call, call.outputs[0].dtype)
    contiguous = str(shape.y[1] == 1).lower()
    count = shape.pixels * shape.channels
    lines = [
        f"const uint32_t e = blockIdx.x * {threads} + threadIdx.x;",
        f"if (e >= {count}) return;",
        f"const conv::Shape shape = {shape_text(shape)};",
        f"const pool::Windows windows = {windows_text(call, shape)};",
    ]
    names = ["out0"]
    if len(call.outputs) > 1:
        names.append("out1")
        lines += [
            f"const pool::Places places = {places_text(call, shape)};",
            f"pool::point_and_place<{kind}, {contiguous}>(shape, windows, places, in0, out0, out1, e);",
        ]
    else:
        lines.append(f"pool::point<pool::{reducer}, {kind}, {contiguous}>(shape, windows, in0, out0, e);")
    kinds = {"out0": kind, "out1": "int64_t"}
    arguments = [Argument("in0", "in0", kind), *(Argument(n, n, kinds[n], True) for n in names)]
    return cuda_stage(
        call.op, shape.about(call), arguments, lines if count else [], LaunchConfig.flat(blocks_for(count, threads), threads),
        parts=frozenset({part, "pool_point"}), flops=count * shape.taps, bytes=shape.bytes(call),
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (Pool(),)
