"""Convolutions without packed products: ``conv/depthwise`` along channels, ``conv/naive`` as it is written, ``conv/deformed`` where it is told."""

from __future__ import annotations

from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..program.program import RecipeStep
from ..types import DType, TensorSpec
from .conv_call import FLOATS, GRAIN_FLOPS, OPS, act_of, operands, stem_of, strides_of_weight, supported
from .conv_shape import C_TYPES, ConvShape, braces, function, strides_of
from .gemm_tiling import registers
from .kernel import Lowered, NodeCall, Packed, Stage, operand_ref

__all__ = ["Deformed", "Depthwise", "Naive"]


class Depthwise:
    """Each channel on its own, with one filter or several."""

    name: str = "conv/depthwise"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats, one channel a group, not transposed, filters that are known."""
        answer = supported(call, FLOATS)
        if not answer.ok:
            return answer
        shape = ConvShape.of(call)
        if shape.channels != 1 or shape.groups == 1 or shape.transposed:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "it convolves channels that do not mix, forwards")
        if not call.tensor(1).is_weight:
            return Support.no(Reason.SHAPE_UNSUPPORTED, "its filters must be known when weights are loaded")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage."""
        shape, dtype = ConvShape.of(call), call.outputs[0].dtype
        sums = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
        lanes = target.isa.lanes(sums.bits // 8)  # type: ignore[attr-defined]
        rows, channels, tasks = shape.cut(target.config.max_threadgroup_3d_z, shape.groups, 4 * lanes)
        args, c = operands(call, "in1")
        kind = f"{C_TYPES[dtype]}, act::{act_of(call)}, {lanes if shape.x[1] == 1 else 1}"
        block = _block(call, shape, registers(target.isa))  # type: ignore[attr-defined]
        run = "run" if block is None else "run_rows"
        kind += "" if block is None else f", {block[0]}, {block[1]}, {shape.kernel[2]}, {shape.stride[2]}"
        body = (
            f"  static const conv::Shape shape = {shape.text()};\n"
            f"  static const depthwise::Tasks tasks = {{{rows}, {channels}, {-(-shape.groups // channels)}}};\n"
            f"  depthwise::{run}<{kind}>(shape, tasks, {c['x']}, {c['filters']}, {c['bias']}, {c['residual']}, {c['y']}, begin, end);"
        )
        stage = Stage(
            stem=stem_of("depthwise", shape),
            source=function(body, shape.about(call)),
            args=args,
            tasks=tasks,
            grain=max(1, GRAIN_FLOPS // 8 * tasks // max(shape.flops(2), 1)),
            parts=frozenset({"conv_depthwise"}),
            flops=shape.flops(2),
            bytes=shape.bytes(call),
        )
        # [channel, filter, taps] becomes [filter, taps, channel]
        steps = (
            RecipeStep("cast", ("%in",), {"dtype": sums.value}),
            RecipeStep("reshape", ("%0",), {"shape": [shape.groups, shape.filters, shape.taps]}),
            RecipeStep("permute", ("%1",), {"order": [1, 2, 0]}),
        )
        packed = Packed(steps, TensorSpec((shape.filters, shape.taps, shape.groups), sums))
        return Lowered((stage,), weights={1: packed}, accumulates=sums.value)


_MOST_TAPS, _MOST_STRIDE, _MOST_PIXELS = 7, 2, 8
"""Rows of a kernel that are unrolled, and pixels that share what they read."""


def _block(call: NodeCall, shape: ConvShape, registers: int) -> tuple[int, int] | None:
    """Vectors of channels and pixels of a block of ``run_rows``; None where its rows of taps or its channels are not what that wants.

    Sums and a row of filters stay in registers; of the pixels' counts that fit, the one that reads and multiplies least over a row.
    """
    taps, stride = shape.kernel[2], shape.stride[2]
    residual = call.op == "fused_convolution" and call.optional(3) is not None
    beside = shape.x[1] == shape.y[1] == 1 and (not residual or shape.r[1] == 1)
    if shape.size[0] != 1 or shape.kernel[0] != 1 or not beside:
        return None
    if shape.filters != 1 or shape.dilation[2] != 1 or taps > _MOST_TAPS or stride > _MOST_STRIDE:
        return None
    room = registers - taps - 2

    def cost(pixels: int) -> float:
        columns = (pixels - 1) * stride + taps
        return -(-shape.out[2] // pixels) * (pixels * taps + 0.7 * columns + 2)

    pixels = min(range(min(_MOST_PIXELS, room), 1, -1), key=cost)
    return (2 if 2 * pixels <= room else 1), pixels


class Naive:
    """The sum as it is written: whole numbers, and whatever the others refuse."""

    name: str = "conv/naive"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Every number; activations of floats only."""
        answer = supported(call, tuple(C_TYPES))
        if answer.ok and not call.outputs[0].dtype.is_float and act_of(call) != "none":
            return Support.no(Reason.DTYPE_UNSUPPORTED, f"{act_of(call)} of {call.outputs[0].dtype.value}")
        return answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage, a task per pixel."""
        shape, dtype = ConvShape.of(call), call.outputs[0].dtype
        kind = C_TYPES[dtype]
        sums = ("double" if dtype is DType.FLOAT64 else "float") if dtype.is_float else "uint64_t"
        args, c = operands(call, "in1")
        body = (
            f"  static const conv::Shape shape = {shape.text()};\n"
            f"  static const int64_t strides[6] = {braces(strides_of_weight(shape, call.tensor(1).spec))};\n"
            f"  conv::naive<{kind}, {sums}, act::{act_of(call)}>(shape, strides, {c['x']}, (const {kind} *){c['filters']}, "
            f"{c['bias']}, {c['residual']}, {c['y']}, begin, end);"
        )
        flops = shape.flops(2)
        stage = Stage(
            stem=stem_of("naive_conv", shape),
            source=function(body, shape.about(call)),
            args=args,
            tasks=max(shape.pixels, 1),
            grain=max(1, GRAIN_FLOPS * shape.pixels // max(flops, 1)),
            parts=frozenset({"conv_naive"}),
            flops=flops,
            bytes=shape.bytes(call),
        )
        wide = {"double": "float64", "float": "float32", "uint64_t": "int64"}[sums]
        return Lowered((stage,), accumulates=wide)


class Deformed:
    """Convolution at places that are computed: a task interpolates all that a pixel meets, then sums."""

    name: str = "conv/deformed"
    ops: tuple[str, ...] = ("deform_convolution",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats of up to three space dims."""
        return supported(call, FLOATS)

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage, a task per pixel."""
        shape, kind = ConvShape.of(call), C_TYPES[call.outputs[0].dtype]
        given = {at: call.optional(at) for at in range(5)}
        args = [operand_ref("in", at) for at, operand in given.items() if operand is not None]
        texts = [
            "nullptr" if operand is None else f"(const {kind} *)args[{args.index(operand_ref('in', at))}]"
            for at, operand in given.items()
        ]
        mask = given[4]
        steps = [
            strides_of(call.tensor(2).spec, shape.rank),
            strides_of(mask.spec, shape.rank) if mask else (0,) * 5,
        ]
        steps.append(strides_of_weight(shape, call.tensor(1).spec))
        lists = ", ".join(braces(s) for s in steps)
        body = (
            f"  static const conv::Shape shape = {shape.text()};\n"
            f"  static const conv::Deform places = {{{call.attrs['offset_groups']}, {shape.rank}, {lists}}};\n"
            f"  conv::deform<{kind}>(shape, places, {', '.join(texts)}, ({kind} *)args[{len(args)}], begin, end, (double *)scratch);"
        )
        flops = shape.flops(2)
        stage = Stage(
            stem=stem_of("deform_conv", shape),
            source=function(body, shape.about(call)),
            args=(*args, "out0"),
            tasks=max(shape.pixels, 1),
            grain=max(1, GRAIN_FLOPS // 8 * shape.pixels // max(flops, 1)),
            scratch_bytes=8 * shape.groups * shape.channels * shape.taps,
            parts=frozenset({"conv_deform"}),
            flops=flops,
            bytes=shape.bytes(call),
        )
        return Lowered((stage,), accumulates="float64")
