"""norm/generated: layer, RMS, group, instance and (with given statistics) batch normalisation, in any layout.

Layer and RMS norms are formulas over the last dims. Group and instance norms are the same formula over a space in which the channels
are split into groups; batch norm is pointwise work with one value a channel.
"""

from __future__ import annotations

import math

from ..codegen.body import LoopBody
from ..codegen.expr_terms import compute_type
from ..codegen.formulas import moments, normalized, widest
from ..codegen.plans import LoopPlan, UnsupportedLoop, shape_of
from ..codegen.points import address, unravel
from ..codegen.target import CodegenTarget
from ..decisions import Support
from ..types import DType, TensorSpec
from .elementwise import operand_specs
from .kernel import Lowered, NodeCall
from .kit import Row, Rows, Text, computes, result, whole
from .reduce import RowKernel
from .rows import CPP, Output
from .writer import Writer, misplaced

__all__ = ["KERNELS", "OPS", "ChannelNorm"]

Dims = tuple[int | None, ...]


class ChannelNorm:
    """Norms whose weights have one value a channel: the space is [N, groups, channels of a group, ...]."""

    name = "norm/generated"
    ops = ("group_norm", "instance_norm", "batch_norm", "batch_norm_train")

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Yes for floats of 16 to 64 bits."""
        refused = misplaced(self._writer.kind, target)
        if refused is not None:
            return refused
        try:
            self._plan(call)
        except UnsupportedLoop as why:
            return Support.no(why.code, str(why))
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage."""
        made, outputs = self._plan(call)
        if call.op == "batch_norm":
            return self._writer.pointwise(call, made, [o.strides for o in outputs], target)
        return self._writer.rows(call, made, outputs, target, call.op)

    def _plan(self, call: NodeCall) -> tuple[LoopPlan, list[Output]]:
        x = call.tensor(0).spec
        shape = shape_of(x)
        channels = shape[1]
        groups = {"group_norm": call.attrs["groups"] if call.op == "group_norm" else 1}.get(call.op, channels)
        assert isinstance(groups, int)
        space = (shape[0], groups, channels // groups if groups else 0, *shape[2:])
        body = LoopBody(space, operand_specs(call))

        def split(spec: TensorSpec) -> tuple[int, ...]:
            """Strides of a value like x along the space."""
            own = spec.physical.strides
            return (own[0], own[1] * space[2], *own[1:])

        def channel(position: int) -> str | None:
            """An operand with one value a channel."""
            found = call.optional(position)
            if found is None:
                return None
            step = found.spec.physical.strides[0]
            strides = (0, step * space[2], step, *([0] * (len(space) - 3)))
            return body.read(position, found.spec.dtype, strides)

        wide = widest(x.dtype)
        read = body.read(0, x.dtype, split(x))
        names: tuple[str | None, ...]
        if call.op == "batch_norm":
            names = (self._by_given(body, read, [channel(i) for i in range(1, 5)], call.attrs["eps"], wide),)
        else:
            training = call.op == "batch_norm_train"
            body.reduced = frozenset(d for d in range(len(space)) if d > 1 or (training and d == 0))
            names = normalized(body, read, channel(1), channel(2), call.attrs["eps"], wide)
            if training:
                names += self._moved(body, read, channel(3), channel(4), call.attrs["momentum"], wide)
        outputs = []
        for at, spec in enumerate(call.outputs):
            own = spec.physical.strides
            row = own if len(own) == 2 else (0, *own)  # statistics are [N, groups], or one a channel
            strides = split(spec) if at == 0 else (*row, *([0] * (len(space) - 2)))
            outputs.append(Output(str(names[at]), spec, strides))
        return body.done([o.value for o in outputs]), outputs

    def _moved(
        self,
        b: LoopBody,
        x: str,
        old_mean: str | None,
        old_variance: str | None,
        momentum: object,
        wide: DType,
    ) -> tuple[str, str]:
        """Running statistics after this batch: moved by momentum, the variance by its unbiased estimate; absent ones start here."""
        assert isinstance(momentum, int | float)
        mean, _, variance = moments(b, x, wide)
        unbiased = b.emit("mul", variance, b.count / (b.count - 1) if b.count > 1 else math.nan, dtype=wide)

        def moved(old: str | None, now: str) -> str:
            if old is None:
                return now
            kept = b.emit("mul", old, 1.0 - momentum, dtype=wide)
            return b.emit("add", kept, b.emit("mul", now, float(momentum), dtype=wide), dtype=wide)

        return moved(old_mean, mean), moved(old_variance, unbiased)

    def _by_given(self, b: LoopBody, x: str, rest: list[str | None], eps: object, wide: DType) -> str:
        weight, bias, mean, variance = rest
        assert isinstance(eps, int | float)
        assert mean is not None
        assert variance is not None
        spread = b.emit("rsqrt", b.emit("add", variance, float(eps), dtype=wide), dtype=wide)
        scale = spread if weight is None else b.emit("mul", weight, spread, dtype=wide)
        y = b.emit("mul", b.emit("sub", x, mean, dtype=wide), scale, dtype=wide)
        return y if bias is None else b.emit("add", y, bias, dtype=wide)


def _across_channels(call: NodeCall) -> Text:
    """One element a task: its value over a power of the squares of the channels around it."""
    x, y = whole(call, 0), result(call)
    kind = compute_type(call.tensor(0).spec.dtype, "1")
    size, alpha, beta, k = (call.attrs[a] for a in ("size", "alpha", "beta", "k"))
    assert isinstance(size, int)
    assert isinstance(alpha, float)
    names = [f"i{d}" for d in range(len(x.shape))]
    around = [*names[:1], "j", *names[2:]]
    body = [
        *unravel(x.shape),
        f"const int64_t low = i1 > {(size - 1) // 2} ? i1 - {(size - 1) // 2} : 0;",
        f"const int64_t high = i1 + {size // 2} < {x.shape[1]} ? i1 + {size // 2} : {x.shape[1] - 1};",
        f"{kind} squares = 0;",
        "for (int64_t j = low; j <= high; ++j) {",
        f"  const {kind} near = load<1>({address(x, around)});",
        "  squares += near * near;",
        "}",
        f"const {kind} base = ({kind}){k!r} + ({kind}){alpha / size!r} * squares;",
        f"store<1>({address(y, names)}, load<1>({address(x, names)}) / pow(base, ({kind}){beta!r}));",
    ]
    return Text(body, math.prod(x.shape), parts=frozenset({"pow"}))


OPS = ("layer_norm", "rms_norm")
KERNELS = (
    RowKernel("norm/generated", OPS, CPP),
    ChannelNorm(CPP),
    Rows("norm/generated", {"local_response_norm": Row(_across_channels, computes(0))}),
)
