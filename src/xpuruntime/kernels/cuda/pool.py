"""pool/generated on CUDA devices: windows reduced by the CPU's reducers (``templates/pool.h``), an output element a thread."""

from __future__ import annotations

from ...codegen.target import CodegenTarget
from ...decisions import Reason, Support
from ...types import DType
from ..conv_shape import C_TYPES
from ..kernel import Kernel, Lowered, NodeCall
from ..pool import Generated, places_text, pool_shape, reducer_of, windows_text
from .launch import Argument, Launch, blocks_for, cuda_stage

__all__ = ["KERNELS"]


class Pool:
    """Maxima, means and p-norms of windows, in any layout."""

    name: str = "pool/generated"
    ops: tuple[str, ...] = Generated.ops

    def __init__(self) -> None:
        self._cpu = Generated()

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """What it computes on a CPU, up to 2**31 elements."""
        answer = self._cpu.supports(call, target)
        if answer.ok and pool_shape(call).pixels * pool_shape(call).channels >= 2**31:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "more than 2**31 elements")
        return answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage."""
        dtype, shape = call.outputs[0].dtype, pool_shape(call)
        kind = "uint8_t" if dtype is DType.BOOL else C_TYPES[dtype]
        reducer, part = reducer_of(call, dtype)
        beside = str(shape.y[1] == 1).lower()
        count, threads = shape.pixels * shape.channels, target.config.max_threadgroup_1d
        lines = [
            f"const uint32_t e = blockIdx.x * {threads} + threadIdx.x;",
            f"if (e >= {count}) return;",
            f"const conv::Shape shape = {shape.text()};",
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
        arguments = [Argument("in0", "in0", kind)]
        kinds = {"out0": kind, "out1": "int64_t"}
        arguments += [Argument(n, n, kinds[n], True) for n in names]
        stage = cuda_stage(
            call.op, shape.about(call), arguments, lines if count else [], Launch.flat(blocks_for(count, threads), threads),
            parts=frozenset({part, "pool_point"}), flops=count * shape.taps, bytes=shape.bytes(call),
        )  # fmt: skip
        wide = "float64" if dtype is DType.FLOAT64 else "float32" if dtype.is_float else "int64"
        return Lowered((stage,), accumulates=wide)


KERNELS: tuple[Kernel, ...] = (Pool(),)
