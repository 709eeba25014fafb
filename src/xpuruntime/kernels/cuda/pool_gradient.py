"""``pool/gather`` on CUDA devices: the gradient of maxima of windows (``templates/cuda/pool_gradient.cuh``).

A thread loads a pack of contiguous channels of one element (coalesced), and compares it with the maxima of the windows around it. The elements
of these windows come from the L1 cache, so the kernel is bandwidth-bound.
"""

from __future__ import annotations

import math

from ...codegen.c_types import C_TYPES
from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..kernel import Kernel, LoweredCall, NodeCall
from ..portable.text import braces
from ..spec.conv_shape import ConvShape
from ..spec.pool import window_ends
from .launch import Argument, LaunchConfig, blocks_for, cuda_stage
from .pointwise import index_type

__all__ = ["KERNELS", "PoolGradient"]

_PACK_BYTES = 16
"""Bytes of the widest vector load."""
_FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)
_Strides = tuple[int, ...]


class PoolGradient(Kernel):
    """The gradient of maxima, in any layout. It adds in one order."""

    name: str = "pool/gather"
    ops: tuple[str, ...] = ("max_pool_value_backward",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats with fewer than 2**31 elements in at most three spatial dims."""
        spec = call.outputs[0]
        if spec.dtype not in _FLOATS:
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"{call.op} of {spec.dtype.value}")
        space = len(call.attrs["kernel_size"])
        if space > 3:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"{space} spatial dims; at most 3 are supported")
        if math.prod(n for n in spec.shape if isinstance(n, int)) >= 2**31:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "more than 2**31 elements")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the call to one stage."""
        grad, x, y = (call.tensor(i).spec for i in range(3))
        dtype, kernel = call.outputs[0].dtype, call.attrs["kernel_size"]
        shape = ConvShape.window(x, y, kernel, call)
        other = ConvShape.window(call.outputs[0], grad, kernel, call)
        strides = {"grad": other.y, "x": shape.x, "y": shape.y, "dx": other.x}
        contiguous = shape.channels > 1 and all(s[1] == 1 for s in strides.values())
        elements = shape.images * shape.channels * math.prod(shape.size)
        width = _width(shape, dtype, [*strides.values()]) if contiguous else 1
        kind, threads = C_TYPES[dtype], target.config.max_threadgroup_1d
        count = elements // width
        work = "pool::gradient_of_max<{}, {}, KERNEL_sizes>(in0, in1, in2, out0, {});"
        lines = [f"const uint32_t e = blockIdx.x * {threads} + threadIdx.x;", f"if (e >= {count}) return;"]
        if width == 1:
            lines.append(work.format(kind, 1, "e"))
        else:
            aligned = " && ".join(f"fits<{width}>({name})" for name in ("in0", "in1", "in2", "out0"))
            lines += [
                f"if ({aligned}) {work.format(kind, width, 'e')}",
                "else",
                "#pragma unroll 1",
                f"  for (int u = 0; u < {width}; ++u) {work.format(kind, 1, f'e * {width} + u')}",
            ]
        arguments = [Argument(f"in{i}", f"in{i}", kind) for i in range(3)]
        stage = cuda_stage(
            call.op, shape.about(call), [*arguments, Argument("out0", "out0", kind, True)], lines if count else [],
            LaunchConfig.flat(blocks_for(count, threads), threads), before=_sizes(call, shape, strides, contiguous),
            parts=frozenset({"pool_gradient"}), flops=elements * shape.taps, bytes=shape.bytes(call),
        )  # fmt: skip
        return LoweredCall((stage,), accumulates="float64" if dtype is DType.FLOAT64 else "float32")


def _width(shape: ConvShape, dtype: DType, strides: list[_Strides]) -> int:
    """Return the channels of a vector load: they fill 16 bytes and divide every stride between pixels."""
    width = _PACK_BYTES * 8 // dtype.bits
    steps = [shape.channels, *(s for row in strides for i, s in enumerate(row) if i != 1)]
    while width > 1 and any(step % width for step in steps):
        width //= 2
    return width


def _sizes(call: NodeCall, shape: ConvShape, strides: dict[str, _Strides], contiguous: bool) -> list[str]:
    """Return the C++ type that passes sizes to ``pool::gradient_of_max``."""
    limit, _ = window_ends(call, shape)
    extents = [
        (shape.images, shape.channels, *(max(n, 1) for n in space)) for space in (shape.size, shape.out)
    ]
    reach = max(
        sum(abs(s) * n for s, n in zip(row, extents[name in ("grad", "y")], strict=True))
        for name, row in strides.items()
    )
    rows = {
        "size": shape.size, "limit": limit, "out": shape.out, "kernel": shape.kernel, "stride": shape.stride, "dilation": shape.dilation,
        "begin": shape.begin,
    }  # fmt: skip
    kind = "int" if index_type(reach) == "uint32_t" else "int64_t"
    return [
        "struct KERNEL_sizes {",
        f"    typedef {kind} index;",
        f"    static constexpr int {', '.join(f'{name}[3] = {braces(row)}' for name, row in rows.items())};",
        f"    static constexpr int taps = {shape.taps}, channels = {shape.channels}, along = {shape.channels if contiguous else 1};",
        f"    static constexpr int64_t {', '.join(f'{name}[5] = {braces(row)}' for name, row in strides.items())};",
        "};",
    ]


KERNELS: tuple[Kernel, ...] = (PoolGradient(),)
