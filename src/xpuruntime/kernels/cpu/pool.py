"""``pool/generated`` on CPUs: maxima (with indices), means and p-norms of windows in any layout (``templates/pool.h``).

Vectors run along channels if these are contiguous (NHWC), and along rows of outputs if those are (NCHW) and windows are up to four elements apart.
Otherwise outputs are computed one at a time. Pools are bandwidth-bound.
Maxima of 16-bit floats without indices are maxima of 16-bit integers, so they need no conversion and fill whole vectors.
"""

from __future__ import annotations

import math

from ...codegen.c_types import C_TYPES
from ...codegen.cpp.isa import IsaLevel
from ...codegen.target import CodegenTarget
from ...decisions import Support
from ...types import HALF_FLOATS, DType
from ..kernel import Kernel, LoweredCall, NodeCall, Stage
from ..portable.text import shape_text
from ..portable.windows.pool import places_text, reducer_of, windows_text
from ..spec.conv_shape import ConvShape
from ..spec.pool import ADAPTIVE_OPS, OPS, pool_shape, supported, window_ends
from .abi import function, isa_of

__all__ = ["KERNELS", "CpuPool"]  # fmt: skip

_MAX_STRIDE = 4
"""Maximum elements between windows of a row, which ``gather`` reads by shuffles."""

_MIN_LANES = 4
"""Minimum lanes of vectors along rows."""

_GRAIN_BYTES = 1 << 16
"""Bytes of operands per thread at least: they take some microseconds to read."""


class CpuPool(Kernel):
    """Pools of windows that are clipped to the input."""

    name: str = "pool/generated"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return the answer of ``spec.pool``."""
        return supported(call)

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage."""
        double = call.outputs[0].dtype is DType.FLOAT64
        return LoweredCall(
            (_stage(call, target),),
            accumulates="float64" if double else "float32" if call.outputs[0].dtype.is_float else "int64",
        )


def _outputs_in_row(call: NodeCall, shape: ConvShape) -> int:
    """Return the outputs of a row whose taps are all inside, if vectors of them read adjacent or every second to fourth element; else 0."""
    stride, begin = shape.stride[2], shape.begin[2]
    if shape.x[4] != 1 or shape.y[4] != 1 or call.op in ADAPTIVE_OPS or stride > _MAX_STRIDE:
        return 0
    room = window_ends(call, shape)[0][2] - (shape.kernel[2] - 1) * shape.dilation[2] + begin
    return max(0, min(shape.out[2], math.ceil(room / stride)) - max(0, math.ceil(begin / stride)))


def _stage(call: NodeCall, target: CodegenTarget) -> Stage:
    isa: IsaLevel = isa_of(target)
    dtype = call.outputs[0].dtype
    shape = pool_shape(call)
    kind = "uint8_t" if dtype is DType.BOOL else C_TYPES[dtype]
    reducer, part = reducer_of(call, dtype)
    half, indices = dtype in HALF_FLOATS, len(call.outputs) > 1
    item = 4 if half else max(dtype.bits // 8, 1)
    if half and reducer == "Max" and not indices:
        reducer, kind, item = f"MaxOfHalves<{kind}>", "uint16_t", 2
    contiguous = shape.x[1] == 1 and shape.y[1] == 1 and reducer != "Mean"
    in_row = 0 if contiguous or indices or reducer == "Mean" else _outputs_in_row(call, shape)
    along_rows = in_row >= _MIN_LANES
    lanes = isa.lanes(item) if contiguous else 1
    if along_rows:
        lanes = min(isa.lanes(item), 1 << in_row.bit_length() - 1)
    unit = 1 if along_rows else 4 * isa.lanes(item)
    rows, channels, tasks = shape.cut(target.config.max_threadgroup_3d_z, shape.channels, unit)
    blocks = -(-shape.channels // channels) if channels else 1
    lines = [
        f"static const conv::Shape shape = {shape_text(shape)};",
        f"static const pool::Windows windows = {windows_text(call, shape)};",
        f"static const pool::Tasks tasks = {{{rows}, {channels}, {blocks}}};",
    ]
    args: tuple[str, ...] = ("in0", "out0")
    common = f"shape, windows, tasks, {{}}(const {kind} *)args[0], ({kind} *)args[1], "
    if indices:
        args = (*args, "out1")
        lines.append(f"static const pool::Places places = {places_text(call, shape)};")
        run = f"run_with_places<{kind}, {lanes}>({common.format('places, ')}(int64_t *)args[2], begin, end);"
    elif along_rows:
        run = f"run_along_rows<pool::{reducer}, {kind}, {lanes}, {shape.stride[2]}>({common.format('')}begin, end);"
    else:
        run = f"run<pool::{reducer}, {kind}, {lanes}>({common.format('')}begin, end);"
    lines.append(f"pool::{run}")
    size = shape.bytes(call)
    return Stage(
        stem=call.op,
        source=function("\n".join(f"  {line}" for line in lines), shape.about(call)),
        args=args,
        tasks=tasks,
        grain=max(1, _GRAIN_BYTES * tasks // max(size, 1)),
        parts=frozenset({part}),
        flops=shape.pixels * shape.channels * shape.taps,
        bytes=size,
    )


KERNELS: tuple[Kernel, ...] = (CpuPool(),)
