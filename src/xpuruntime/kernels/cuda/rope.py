"""rope/generated on CUDA devices (Su et al., "RoFormer", 2021): a thread turns one pair, or carries one element that is not turned."""

from __future__ import annotations

import math

from ...codegen.moves import Place
from ...codegen.points import address, storage, unravel
from ...codegen.target import CodegenTarget
from ...decisions import Support
from ..gemm import sizes
from ..kernel import Kernel, Lowered, NodeCall
from ..rope import over_rows, table_row, why_not
from .launch import Argument, Launch, blocks_for, cuda_stage

__all__ = ["KERNELS"]


class Rope:
    """Rotary position embedding of whole or partial heads."""

    name: str = "rope/generated"
    ops: tuple[str, ...] = ("rope",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats."""
        refused = why_not(call)
        return Support.yes() if refused is None else refused

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage."""
        x, y = call.tensor(0).spec, call.outputs[0]
        (*rows, d), kind = sizes(x), storage(x.dtype)
        size = call.attrs["size"] or d
        half = size // 2
        each, threads = half + d - size, target.config.max_threadgroup_1d
        count = math.prod(rows) * each
        names = [f"i{i}" for i in range(len(rows))]
        lines = [
            f"const int64_t e = (int64_t)blockIdx.x * {threads} + threadIdx.x;",
            f"if (e >= {count}) return;",
            f"const int64_t task = e / {each}, j = e % {each};",
            *unravel(rows),
        ]
        x_step, y_step = x.physical.strides[-1] or 1, y.physical.strides[-1]
        positions = call.optional(3)
        if positions is not None:
            steps = over_rows(sizes(positions.spec), positions.spec.physical.strides, len(rows))
            where = address(Place("in3", tuple(rows), steps), names)
            lines.append(f"const int64_t place = index_in(*({where}), {sizes(call.tensor(1).spec)[0]});")
        lines += [
            f"const {kind} *x = {address(Place('in0', tuple(rows), x.physical.strides[:-1]), names)};",
            f"{kind} *y = {address(Place('out0', tuple(rows), y.physical.strides[:-1]), names)};",
        ]
        if size < d:
            rest = f"{half} + j"  # from j = half on: the elements behind the pairs
            lines += [
                f"if (j >= {half}) {{",
                f"  y[({rest}) * {y_step}] = x[({rest}) * {x_step}];",
                "  return;",
                "}",
            ]
        step, other = (2, 1) if call.attrs["interleaved"] else (1, half)
        tables = [call.tensor(i).spec.physical.strides[-1] for i in (1, 2)]
        lines += [
            f"const auto c = load<1>({table_row(call, 1, rows)} + j * {tables[0]}), s = load<1>({table_row(call, 2, rows)} + j * {tables[1]});",
            f"const auto a = load<1>(x + j * {step * x_step}), b = load<1>(x + (j * {step} + {other}) * {x_step});",
            f"store<1>(y + j * {step * y_step}, a * c - b * s);",
            f"store<1>(y + (j * {step} + {other}) * {y_step}, b * c + a * s);",
        ]
        arguments = [
            Argument(f"in{i}", f"in{i}", storage(o.spec.dtype))
            for i in range(4)
            if (o := call.optional(i)) is not None
        ]
        arguments.append(Argument("out0", "out0", kind, True))
        stage = cuda_stage(
            f"rope_{math.prod(rows)}x{d}", f"rope({x}) -> {y}", arguments, lines if count else [],
            Launch.flat(blocks_for(count, threads), threads), parts=frozenset({"movement"}),
            flops=6 * math.prod(rows) * half, bytes=2 * (y.size_bytes or 0),
        )  # fmt: skip
        return Lowered((stage,))


KERNELS: tuple[Kernel, ...] = (Rope(),)
