"""Convolutions with one pixel per task: ``conv/naive``, and ``conv/deformed``."""

from __future__ import annotations

from ....codegen.c_types import C_TYPES
from ....decisions import Reason, Support
from ....types import DType
from ...kernel import NodeCall, operand_ref
from ...spec.conv import FLOATS, GRAIN_FLOPS, OPS, act_of, stem_of, strides_of_weight, supported
from ...spec.conv_shape import ConvShape, strides_of
from ..tasks import PortableKernel, TaskEnvironment, TaskStage
from ..text import braces, shape_text

__all__ = ["KERNELS", "DeformedConv", "NaiveConv", "operands"]


class NaiveConv(PortableKernel):
    """The direct sum, for integers and for nodes that no other kernel supports."""

    name: str = "conv/naive"
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall) -> Support:
        """Return yes for every number; activations need floats."""
        answer = supported(call, tuple(C_TYPES))
        if answer.ok and not call.outputs[0].dtype.is_float and act_of(call) != "none":
            return Support.no(
                Reason.DTYPE_UNSUPPORTED,
                f"the activation {act_of(call)} needs a float dtype, got {call.outputs[0].dtype.value}",
            )
        return answer

    def task_stage(self, call: NodeCall, environment: TaskEnvironment) -> TaskStage:
        """Return one stage with one task per pixel."""
        shape, dtype = ConvShape.of(call), call.outputs[0].dtype
        kind = C_TYPES[dtype]
        sums = ("double" if dtype is DType.FLOAT64 else "float") if dtype.is_float else "uint64_t"
        args, c = operands(call, "in1")
        body = [
            f"static const conv::Shape shape = {shape_text(shape)};",
            f"static const int64_t strides[6] = {braces(strides_of_weight(shape, call.tensor(1).spec))};",
            f"conv::naive<{kind}, {sums}, act::{act_of(call)}>(shape, strides, {c['x']}, (const {kind} *){c['filters']}, "
            f"{c['bias']}, {c['residual']}, {c['y']}, begin, end);",
        ]
        flops = shape.flops(2)
        return TaskStage(
            stem=stem_of("naive_conv", shape),
            lines=tuple(body),
            about=shape.about(call),
            args=args,
            tasks=max(shape.pixels, 1),
            grain=max(1, GRAIN_FLOPS * shape.pixels // max(flops, 1)),
            parts=frozenset({"conv_naive"}),
            flops=flops,
            bytes=shape.bytes(call),
            accumulates={"double": "float64", "float": "float32", "uint64_t": "int64"}[sums],
        )


class DeformedConv(PortableKernel):
    """Deformable convolution: a task interpolates all samples of a pixel, then sums."""

    name: str = "conv/deformed"
    ops: tuple[str, ...] = ("deform_convolution",)

    def supports(self, call: NodeCall) -> Support:
        """Return yes for floats of at most three spatial dims."""
        return supported(call, FLOATS)

    def task_stage(self, call: NodeCall, environment: TaskEnvironment) -> TaskStage:
        """Return one stage with one task per pixel."""
        shape, kind = ConvShape.of(call), C_TYPES[call.outputs[0].dtype]
        operands_ = {at: call.optional(at) for at in range(5)}
        args = [operand_ref("in", at) for at, operand in operands_.items() if operand is not None]
        texts = [
            "nullptr" if operand is None else f"(const {kind} *)args[{args.index(operand_ref('in', at))}]"
            for at, operand in operands_.items()
        ]
        mask = operands_[4]
        steps = [
            strides_of(call.tensor(2).spec, shape.rank),
            strides_of(mask.spec, shape.rank) if mask else (0,) * 5,
        ]
        steps.append(strides_of_weight(shape, call.tensor(1).spec))
        lists = ", ".join(braces(s) for s in steps)
        body = [
            f"static const conv::Shape shape = {shape_text(shape)};",
            f"static const conv::Deform places = {{{call.attrs['offset_groups']}, {shape.rank}, {lists}}};",
            f"conv::deform<{kind}>(shape, places, {', '.join(texts)}, ({kind} *)args[{len(args)}], begin, end, (double *)scratch);",
        ]
        flops = shape.flops(2)
        return TaskStage(
            stem=stem_of("deform_conv", shape),
            lines=tuple(body),
            about=shape.about(call),
            args=(*args, "out0"),
            tasks=max(shape.pixels, 1),
            grain=max(1, GRAIN_FLOPS // 8 * shape.pixels // max(flops, 1)),
            scratch_bytes=8 * shape.groups * shape.channels * shape.taps,
            parts=frozenset({"conv_deform"}),
            flops=flops,
            bytes=shape.bytes(call),
            accumulates="float64",
        )


def operands(call: NodeCall, filters: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the stage's arguments in order, and the C expressions of x, filters, bias, residual and y."""
    dtype = C_TYPES[call.outputs[0].dtype]
    args, texts = ["in0", filters], {"bias": "nullptr", "residual": "nullptr"}
    for at, name in ((2, "bias"), (3, "residual")):
        if call.optional(at) is not None:
            texts[name] = f"(const {dtype} *)args[{len(args)}]"
            args.append(operand_ref("in", at))
    texts |= {"x": f"(const {dtype} *)args[0]", "filters": "args[1]", "y": f"({dtype} *)args[{len(args)}]"}
    return (*args, "out0"), texts


KERNELS = (NaiveConv(), DeformedConv())
