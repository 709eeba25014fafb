"""``norm/generated``: layer, RMS, group, instance and batch normalization, in any layout.

Layer and RMS norms are formulas over the last dims. Group and instance norms are the same formula over a space in which channels are split
into groups. Batch norm with given statistics is pointwise, with one value per channel.
"""

from __future__ import annotations

import math

from ...codegen.loops.body import LoopBody
from ...codegen.loops.formulas import moments, normalized, widest
from ...codegen.loops.plans import LoopPlan, UnsupportedLoop, shape_of
from ...codegen.target import CodegenTarget
from ...decisions import Support
from ...types import DType, TensorSpec
from ..kernel import Kernel, LoweredCall, NodeCall
from .elementwise import operand_specs
from .row_plan import RowOutput
from .writer import LoopWriter

__all__ = ["OPS", "ChannelNorm"]

Dims = tuple[int | None, ...]


class ChannelNorm(Kernel):
    """Norms whose weights have one value per channel. The space is [N, groups, channels per group, ...]."""

    name = "norm/generated"
    ops = ("group_norm", "instance_norm", "batch_norm", "batch_norm_train")

    def __init__(self, writer: LoopWriter) -> None:
        self._writer = writer

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats of 16 to 64 bits."""
        try:
            self._plan(call)
        except UnsupportedLoop as why:
            return Support.no(why.code, str(why))
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage."""
        plan, outputs = self._plan(call)
        if call.op == "batch_norm":
            return self._writer.pointwise(call, plan, [o.strides for o in outputs], target)
        return self._writer.rows(call, plan, outputs, target, call.op)

    def _plan(self, call: NodeCall) -> tuple[LoopPlan, list[RowOutput]]:
        x = call.tensor(0).spec
        shape = shape_of(x)
        channels = shape[1]
        groups = {"group_norm": call.attrs["groups"] if call.op == "group_norm" else 1}.get(call.op, channels)
        assert isinstance(groups, int)
        space = (shape[0], groups, channels // groups if groups else 0, *shape[2:])
        body = LoopBody(space, operand_specs(call))

        def split(spec: TensorSpec) -> tuple[int, ...]:
            """Return the strides along the space of a tensor with x's shape."""
            spec_strides = spec.physical.strides
            return (spec_strides[0], spec_strides[1] * space[2], *spec_strides[1:])

        def channel(position: int) -> str | None:
            """Return the name of an operand with one value per channel; None if it is absent."""
            operand = call.optional(position)
            if operand is None:
                return None
            step = operand.spec.physical.strides[0]
            strides = (0, step * space[2], step, *([0] * (len(space) - 3)))
            return body.read(position, operand.spec.dtype, strides)

        wide = widest(x.dtype)
        read = body.read(0, x.dtype, split(x))
        names: tuple[str | None, ...]
        if call.op == "batch_norm":
            names = (
                self._given_statistics(
                    body, read, [channel(i) for i in range(1, 5)], call.attrs["eps"], wide
                ),
            )
        else:
            training = call.op == "batch_norm_train"
            body.reduced = frozenset(d for d in range(len(space)) if d > 1 or (training and d == 0))
            names = normalized(body, read, channel(1), channel(2), call.attrs["eps"], wide)
            if training:
                names += self._running(body, read, channel(3), channel(4), call.attrs["momentum"], wide)
        outputs = []
        for at, spec in enumerate(call.outputs):
            spec_strides = spec.physical.strides
            # Statistics are [N, groups], or one per channel.
            row = spec_strides if len(spec_strides) == 2 else (0, *spec_strides)
            strides = split(spec) if at == 0 else (*row, *([0] * (len(space) - 2)))
            outputs.append(RowOutput(str(names[at]), spec, strides))
        return body.done([o.value for o in outputs]), outputs

    def _running(
        self,
        b: LoopBody,
        x: str,
        old_mean: str | None,
        old_variance: str | None,
        momentum: object,
        wide: DType,
    ) -> tuple[str, str]:
        """Return the running mean and variance after this batch: updated by momentum, the variance from its unbiased estimate.

        Absent statistics start with this batch's.
        """
        assert isinstance(momentum, int | float)
        mean, _, variance = moments(b, x, wide)
        unbiased = b.emit("mul", variance, b.count / (b.count - 1) if b.count > 1 else math.nan, dtype=wide)

        def updated(old: str | None, batch: str) -> str:
            if old is None:
                return batch
            decayed = b.emit("mul", old, 1.0 - momentum, dtype=wide)
            return b.emit("add", decayed, b.emit("mul", batch, float(momentum), dtype=wide), dtype=wide)

        return updated(old_mean, mean), updated(old_variance, unbiased)

    def _given_statistics(
        self, b: LoopBody, x: str, operands: list[str | None], eps: object, wide: DType
    ) -> str:
        weight, bias, mean, variance = operands
        assert isinstance(eps, int | float)
        assert mean is not None
        assert variance is not None
        inverse_std = b.emit("rsqrt", b.emit("add", variance, float(eps), dtype=wide), dtype=wide)
        scale = inverse_std if weight is None else b.emit("mul", weight, inverse_std, dtype=wide)
        y = b.emit("mul", b.emit("sub", x, mean, dtype=wide), scale, dtype=wide)
        return y if bias is None else b.emit("add", y, bias, dtype=wide)


OPS = ("layer_norm", "rms_norm")
