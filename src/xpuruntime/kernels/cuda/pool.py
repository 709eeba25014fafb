"""pool/generated on CUDA devices: windows reduced by the CPU's reducers (``templates/pool.h``).

Windows of one or two dims are specialized for their sizes, with one thread per pack of contiguous channels, else per element
(``templates/cuda/pool_window.cuh``). Three dims, windows of unequal sizes and indices of maxima use one thread per element.
"""

from __future__ import annotations

from ...codegen.loops.points import number
from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..kernel import Kernel, LoweredCall, NodeCall, Stage
from ..portable.text import braces, shape_text
from ..portable.windows.pool import places_text, reducer_of, windows_text
from ..spec.conv_shape import C_TYPES, ConvShape
from ..spec.pool import OPS, divisor_of, pool_shape, supported, window_ends
from .launch import Argument, LaunchConfig, blocks_for, cuda_stage
from .pointwise import index_type

__all__ = ["KERNELS"]

_PACK_BYTES = 16
_BUSY = 1 << 16
"""Threads that keep a device busy: below, neither channels nor lines are gathered."""


_GATHERED_BYTES = 192
"""Registers of a thread for what it reads before it reduces, so that no read waits for another."""


class Pool(Kernel):
    """Maxima, means and p-norms of windows, in any layout."""

    name: str = "pool/generated"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for the nodes that the CPU's kernel supports, up to 2**31 elements."""
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
    """Return whether all windows are of one size, in at most two dims, and only their values are requested."""
    flat = shape.size[0] == shape.out[0] == shape.kernel[0] == 1 and not shape.begin[0]
    even = "output_size" not in call.attrs or all(
        o and n % o == 0 for n, o in zip(shape.size, shape.out, strict=True)
    )
    return len(call.outputs) == 1 and flat and even


def _windows(call: NodeCall, shape: ConvShape, target: CodegenTarget) -> Stage:
    kind, threads = _kind(call), target.config.max_threadgroup_1d
    reducer, part = reducer_of(call, call.outputs[0].dtype)
    beside = shape.x[1] == 1 and shape.y[1] == 1 and shape.channels > 1
    width, elements = _width(call, shape) if beside else 1, shape.pixels * shape.channels
    item = width * max(call.outputs[0].dtype.bits // 8, 1)
    each = _lines(shape, item, elements // width)
    count = elements // width // max(shape.out[1], 1) * -(-shape.out[1] // each)
    work = f"pool::window<pool::{reducer}, {kind}, {{}}, {each}, KERNEL_sizes>(in0, out0, {{}}, windows);"
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
        lines if count else [], LaunchConfig.flat(blocks_for(count, threads), threads), before=_sizes(call, shape, beside, _gathered(shape, item, each)),
        parts=frozenset({part, "pool_window"}), flops=elements * shape.taps, bytes=shape.bytes(call),
    )  # fmt: skip


def _width(call: NodeCall, shape: ConvShape) -> int:
    """Return the channels of a pack: they fill 16 bytes and divide every step between pixels."""
    width = _PACK_BYTES * 8 // max(8, call.outputs[0].dtype.bits)
    steps = [shape.channels, *(s for own in (shape.x, shape.y) for i, s in enumerate(own) if i != 1)]
    while width > 1 and (any(s % width for s in steps) or shape.pixels * shape.channels // width < _BUSY):
        width //= 2
    return width


def _gathered(shape: ConvShape, item: int, lines: int) -> bool:
    """Return whether all that the windows of so many lines read fits a thread's registers."""
    rows = shape.kernel[1] + (lines - 1) * shape.stride[1]
    return rows * shape.kernel[2] * max(item, 4) <= _GATHERED_BYTES


def _lines(shape: ConvShape, item: int, threads: int) -> int:
    """Return the output lines of a thread: several where their windows share rows, or are so small that addressing dominates."""
    lines = 4 if shape.kernel[1] > shape.stride[1] else 2
    while lines > 1 and (
        shape.dilation[1] > 1
        or not _gathered(shape, item, lines)
        or threads // lines < _BUSY
        or shape.out[1] < 2 * lines
    ):
        lines //= 2
    return lines


def _sizes(call: NodeCall, shape: ConvShape, beside: bool, gathers: bool) -> list[str]:
    """Return the C++ type that gives ``pool::window`` its sizes."""
    (limit, counted), (padding, divisor) = window_ends(call, shape), divisor_of(call)
    steps = [(s[0], s[1], s[3], s[4]) for s in (shape.x, shape.y)]
    reach = [(shape.images, shape.channels, max(n[1], 1), max(n[2], 1)) for n in (shape.size, shape.out)]
    far = max(
        sum(abs(s) * n for s, n in zip(own, ns, strict=True)) for own, ns in zip(steps, reach, strict=True)
    )
    rows = {
        "out": shape.out[1:], "kernel": shape.kernel[1:], "stride": shape.stride[1:], "dilation": shape.dilation[1:],
        "begin": shape.begin[1:], "limit": limit[1:], "counted": counted[1:],
    }  # fmt: skip
    texts = ", ".join(f"{name}[2] = {braces(values)}" for name, values in rows.items())
    kind = "int" if index_type(far) == "uint32_t" else "int64_t"
    return [
        "struct KERNEL_sizes {",
        f"    typedef {kind} index;",
        f"    static constexpr int {texts};",
        f"    static constexpr int channels = {shape.channels}, along = {shape.channels if beside else 1};",
        f"    static constexpr int64_t x[4] = {braces(steps[0])}, y[4] = {braces(steps[1])};",
        f"    static constexpr bool padding_counts = {str(padding).lower()}, gathers = {str(gathers).lower()};",
        f"    static constexpr double divides = {number(divisor)};",
        "};",
    ]


def _points(call: NodeCall, shape: ConvShape, target: CodegenTarget) -> Stage:
    """Return the stage with one thread per output element and sizes computed at run time."""
    kind, threads = _kind(call), target.config.max_threadgroup_1d
    reducer, part = reducer_of(call, call.outputs[0].dtype)
    beside = str(shape.y[1] == 1).lower()
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
            f"pool::point_and_place<{kind}, {beside}>(shape, windows, places, in0, out0, out1, e);",
        ]
    else:
        lines.append(f"pool::point<pool::{reducer}, {kind}, {beside}>(shape, windows, in0, out0, e);")
    kinds = {"out0": kind, "out1": "int64_t"}
    arguments = [Argument("in0", "in0", kind), *(Argument(n, n, kinds[n], True) for n in names)]
    return cuda_stage(
        call.op, shape.about(call), arguments, lines if count else [], LaunchConfig.flat(blocks_for(count, threads), threads),
        parts=frozenset({part, "pool_point"}), flops=count * shape.taps, bytes=shape.bytes(call),
    )  # fmt: skip


KERNELS: tuple[Kernel, ...] = (Pool(),)
