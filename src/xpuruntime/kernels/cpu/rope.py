"""``rope/generated`` on CPUs: rotary position embedding (Su et al., "RoFormer", 2021). A task is one row; vectors of pairs are rotated."""

from __future__ import annotations

from ...codegen.c_types import accumulator
from ...codegen.loops.boxes import Box
from ...codegen.loops.points import address, storage, unravel
from ..kernel import NodeCall
from ..portable.rope import table_row
from ..portable.tasks import OpTemplate, TaskText, TemplateKernel
from ..spec.product import sizes, strides_in
from ..spec.rope import over_rows, why_not
from .tasks import LoopedTasks

__all__ = ["KERNELS"]


def _rope(call: NodeCall) -> TaskText:
    x, y = call.tensor(0).spec, call.outputs[0]
    shape = sizes(x)
    rows, d = shape[:-1], shape[-1]
    size, interleaved = call.attrs["size"] or d, call.attrs["interleaved"]
    half = size // 2
    names = [f"i{i}" for i in range(len(rows))]
    count = 1
    for extent in rows:
        count *= extent
    sums, kind = accumulator(x.dtype), storage(x.dtype)
    x_step, y_step = strides_in(x, (*rows, max(d, 2)))[-1] or 1, y.physical.strides[-1]
    body = unravel(rows)
    positions = call.optional(3)
    if positions is not None:
        at = over_rows(sizes(positions.spec), positions.spec.physical.strides, len(rows))
        where = address(Box("in3", tuple(rows), at), names)
        body.append(f"const int64_t row = index_in(*({where}), {sizes(call.tensor(1).spec)[0]}, scratch);")
    x_strides = x.physical.strides
    body += [
        f"const {kind} *x = {address(Box('in0', rows, x_strides[:-1]), names)};",
        f"{kind} *y = {address(Box('out0', rows, y.physical.strides[:-1]), names)};",
        f"const {kind} *cosines = {table_row(call, 1, rows)}, *sines = {table_row(call, 2, rows)};",
    ]
    # A pair is two adjacent elements (interleaved), or elements ``half`` apart.
    step, other = (2, 1) if interleaved else (1, half)

    def get(base: str, stride: int) -> str:
        if stride == 1:
            return f"(n == L ? load<L>({base}) : load<L>({base}, n))"
        return f"gather<L>({base}, {stride}, n)"

    tables = [call.tensor(i).spec.physical.strides[-1] if half > 1 else 1 for i in (1, 2)]
    body += [
        f"for (int64_t j = 0; j < {half}; j += L) {{",
        f"  const int64_t n = {half} - j < L ? {half} - j : L;",
        f"  const auto a = {get(f'x + j * {step * x_step}', step * x_step)};",
        f"  const auto b = {get(f'x + {other * x_step} + j * {step * x_step}', step * x_step)};",
        f"  const auto c = {get(f'cosines + j * {tables[0]}', tables[0])}, s = {get(f'sines + j * {tables[1]}', tables[1])};",
        f"  scatter<L>(y + j * {step * y_step}, {step * y_step}, a * c - b * s, n);"
        if step * y_step != 1
        else "  if (n == L) store<L>(y + j, a * c - b * s); else store<L>(y + j, a * c - b * s, n);",
        f"  scatter<L>(y + {other * y_step} + j * {step * y_step}, {step * y_step}, b * c + a * s, n);"
        if step * y_step != 1
        else f"  if (n == L) store<L>(y + {other} + j, b * c + a * s); else store<L>(y + {other} + j, b * c + a * s, n);",
        "}",
    ]
    if size < d:
        body.append(f"for (int64_t j = {size}; j < {d}; ++j) y[j * {y_step}] = x[j * {x_step}];")
    head = [f"constexpr int L = VECTOR_BYTES / sizeof({sums});"]
    return TaskText(body, count, head, per=d, stem=f"rope_{count}x{d}", flops=6 * count * half)


KERNELS = (LoopedTasks(TemplateKernel("rope/generated", {"rope": OpTemplate(_rope, why_not)})),)
