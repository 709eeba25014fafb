"""Products that are not plain matrix products: ``einsum``, quantized integers, and determinants.

They are simple rather than fast, because models spend little time in them. On CPUs, ``cpu/matmul/einsum`` supports equations that are a batch of matrix
products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...codegen.c_types import accumulator
from ...codegen.loops.points import number, storage
from ...decisions import Reason, Support
from ...types import HALF_FLOATS
from ..kernel import NodeCall
from ..spec.einsum import _Axes
from ..spec.product import sizes
from ..spec.support import FLOATS, INTEGERS, NUMBERS, computes, first, refuse
from .tasks import OpTemplate, TaskText, TemplateKernel
from .text import offset_text

__all__ = ["KERNELS"]


# ── einsum ──


def _einsum(call: NodeCall) -> TaskText:
    """Return the text of one result element per task, with loops over the summed axes."""
    axes = _Axes(call)
    sums = accumulator(call.outputs[0].dtype)
    extents = [axes.size[x] for x in axes.result]
    body = []
    for i, steps in enumerate(axes.steps):
        at = offset_text("task", extents, [steps.get(x, 0) for x in axes.result])
        body.append(f"const auto *x{i} = in{i} + {at};")
    body.append(f"{sums} sum = 0;")
    names = {x: f"s{i}" for i, x in enumerate(axes.summed)}
    body += [f"for (int64_t {names[x]} = 0; {names[x]} < {axes.size[x]}; ++{names[x]})" for x in axes.summed]
    factors = []
    for i, steps in enumerate(axes.steps):
        at = " + ".join(f"{names[x]} * {steps[x]}" for x in axes.summed if steps.get(x)) or "0"
        factors.append(f"raw<{sums}>(load<1>(x{i} + {at}))")
    body.append(f"  sum += {' * '.join(factors)};")
    to = offset_text("task", extents, [axes.to.get(x, 0) for x in axes.result])
    body.append(
        f"store<1>(out0 + {to}, raw<typename storage_<{storage(call.outputs[0].dtype)}>::compute>(sum));"
    )
    count, terms = math.prod(extents), math.prod(axes.size[x] for x in axes.summed)
    return TaskText(body, count, per=max(1, terms), flops=2 * count * terms)


# ── quantized integers ──


def _quantized(call: NodeCall, positions: Sequence[int | None]) -> tuple[list[str], int, dict[str, str]]:
    """Return lines that sum one element's products of (x - zero) exactly in int64, the number of tasks, and the element's row and column.

    positions: of x, the other side, x's zero points, and the other side's.
    """
    ax, bx, az, bz = positions
    assert ax is not None
    assert bx is not None
    a, b, y = call.tensor(ax).spec, call.tensor(bx).spec, call.outputs[0]
    a_shape, b_shape, y_shape = sizes(a), sizes(b), sizes(y)
    rows, columns = len(a_shape) > 1, len(b_shape) > 1
    lead = len(y_shape) - rows - columns
    batch, k = y_shape[:lead], a_shape[-1]
    m, n = a_shape[-2] if rows else 1, b_shape[-1] if columns else 1

    def over(shape: Sequence[int], steps: Sequence[int]) -> list[int]:
        """Return strides over the batch."""
        strides = [0 if d == 1 else s for d, s in zip(shape, steps, strict=True)]
        return [0] * (lead - len(strides)) + strides

    a_steps, b_steps = a.physical.strides, b.physical.strides
    a_batch = over(a_shape[:-2], a_steps[:-2]) if rows else [0] * lead
    b_batch = over(b_shape[:-2], b_steps[:-2]) if columns else [0] * lead
    extents = (*batch, m, n)
    a_at = offset_text("task", extents, [*a_batch, a_steps[-2] if rows else 0, 0])
    b_at = offset_text("task", extents, [*b_batch, 0, b_steps[-1] if columns else 0])
    k_step = b_steps[-2] if columns else b_steps[-1]
    row_and_column = {"row": f"task / {n} % {max(m, 1)}", "column": f"task % {n}"}

    def zero(position: int | None, side: str) -> str:
        operand = None if position is None else call.optional(position)
        return (
            "0"
            if operand is None
            else f"(int64_t)in{position}[{_spread(call, position, side, extents, rows)}]"
        )

    lines = [
        f"const auto *a = in{ax} + {a_at};",
        f"const auto *b = in{bx} + {b_at};",
        f"const int64_t a_zero = {zero(az, 'row')}, b_zero = {zero(bz, 'column')};",
        "int64_t sum = 0;",
        f"for (int64_t j = 0; j < {k}; ++j) sum += ((int64_t)a[j * {a_steps[-1]}] - a_zero) * ((int64_t)b[j * {k_step}] - b_zero);",
    ]
    return lines, math.prod(extents), row_and_column


def _spread(call: NodeCall, position: int | None, side: str, extents: Sequence[int], rows: bool) -> str:
    """Return the offset of a scale or zero point for an element: a vector is indexed by row (of x) or column; other shapes broadcast."""
    assert position is not None
    spec = call.tensor(position).spec
    shape, steps = sizes(spec), spec.physical.strides
    if len(shape) == 1 and shape[0] > 1 and side == "row" and rows:
        return offset_text("task", extents, [*[0] * (len(extents) - 2), steps[0], 0])
    strides = [0 if d == 1 else s for d, s in zip(shape, steps, strict=True)]
    return offset_text("task", extents, [*[0] * (len(extents) - len(strides)), *strides])


def _matmul_integer(call: NodeCall) -> TaskText:
    """Return the text of sums modulo 2^32."""
    lines, tasks, _ = _quantized(call, (0, 1, 2, 3))
    return TaskText([*lines, "out0[task] = (int32_t)sum;"], tasks, per=max(1, sizes(call.tensor(0).spec)[-1]))


def _qlinear_matmul(call: NodeCall) -> TaskText:
    """Return the text of exact sums, scaled in double, rounded half to even, and clamped to the result's dtype."""
    lines, tasks, _ = _quantized(call, (0, 3, 2, 5))
    y = call.outputs[0]
    a_shape, extents = sizes(call.tensor(0).spec), _whole(call)
    rows = len(a_shape) > 1

    def scale(position: int, side: str) -> str:
        return f"(double)load<1>(in{position} + {_spread(call, position, side, extents, rows)})"

    low, high = (
        (-(2 ** (y.dtype.bits - 1)), 2 ** (y.dtype.bits - 1) - 1)
        if y.dtype.is_signed
        else (0, 2**y.dtype.bits - 1)
    )
    body = [
        *lines,
        f"const double factor = {scale(1, 'row')} * {scale(4, 'column')} / {scale(6, 'row')};",
        f"double value = rint((double)sum * factor) + (double)in7[{_spread(call, 7, 'row', extents, rows)}];",
        f"value = value < {number(float(low))} ? {number(float(low))} : value > {number(float(high))} ? {number(float(high))} : value;",
        f"out0[task] = ({storage(y.dtype)})value;",
    ]
    return TaskText(body, tasks, per=max(1, a_shape[-1]), parts=frozenset({"arith"}))


def _whole(call: NodeCall) -> tuple[int, ...]:
    """Return the result's dims with a row and a column dim, also if operands are vectors."""
    a, b, y = sizes(call.tensor(0).spec), sizes(call.tensor(3).spec), list(sizes(call.outputs[0]))
    if len(b) == 1:
        y.append(1)
    if len(a) == 1:
        y.insert(len(y) - 1, 1)
    return tuple(y)


def _dense_result(call: NodeCall) -> Support | None:
    if call.outputs[0].is_dense:
        return None
    return Support.no(Reason.SHAPE_UNSUPPORTED, "the result must be dense")


def _qlinear_why_not(call: NodeCall) -> Support | None:
    return first(
        _dense_result(call),
        computes(0, 2, 3, 5, 7, dtypes=INTEGERS)(call),
        computes(1, 4, 6, dtypes=FLOATS)(call),
        refuse(call.outputs[0].dtype, "qlinear_matmul") if call.outputs[0].dtype.bits > 32 else None,
    )


# ── determinants ──


def _det(call: NodeCall) -> TaskText:
    """Return the text of one matrix per task: Gaussian elimination with partial pivoting, in double."""
    spec, y = call.tensor(0).spec, call.outputs[0]
    shape, steps = sizes(spec), spec.physical.strides
    n, batch = shape[-1], shape[:-2]
    body = [
        f"const auto *x = in0 + {offset_text('task', batch, steps[:-2])};",
        f"for (int64_t i = 0; i < {n}; ++i)",
        f"  for (int64_t j = 0; j < {n}; ++j) m[i * {n} + j] = (double)load<1>(x + i * {steps[-2]} + j * {steps[-1]});",
        "double det = 1;",
        f"for (int64_t c = 0; c < {n}; ++c) {{",
        "  int64_t p = c;",
        f"  for (int64_t i = c + 1; i < {n}; ++i) if (abs(m[i * {n} + c]) > abs(m[p * {n} + c])) p = i;",
        "  if (p != c) {",
        "    det = -det;",
        f"    for (int64_t j = c; j < {n}; ++j) {{ const double t = m[c * {n} + j]; m[c * {n} + j] = m[p * {n} + j]; m[p * {n} + j] = t; }}",
        "  }",
        f"  const double pivot = m[c * {n} + c];",
        "  det *= pivot;",
        f"  for (int64_t i = c + 1; i < {n}; ++i) {{",
        # Below a pivot of 0 is 0, or NaN, which reaches the result.
        f"    const double f = pivot == 0 ? m[i * {n} + c] : m[i * {n} + c] / pivot;",
        f"    for (int64_t j = c + 1; j < {n}; ++j) m[i * {n} + j] -= f * m[c * {n} + j];",
        "  }",
        "}",
        f"store<1>(out0 + {offset_text('task', batch, y.physical.strides)}, (typename storage_<{storage(y.dtype)}>::compute)det);",
    ]
    return TaskText(
        body, math.prod(batch), ["double *m = (double *)scratch;"], per=max(1, n**3 // 3), scratch_bytes=8 * n * n + 64,
        parts=frozenset({"arith"}),
    )  # fmt: skip


_integers = computes(dtypes=INTEGERS)

KERNELS = (
    TemplateKernel(
        "matmul/naive",
        {
            "einsum": OpTemplate(_einsum, computes(dtypes=NUMBERS)),
            "matmul_integer": OpTemplate(
                _matmul_integer, lambda call: first(_dense_result(call), _integers(call))
            ),
            "qlinear_matmul": OpTemplate(_qlinear_matmul, _qlinear_why_not),
        },
    ),
    TemplateKernel(
        "other/generated",
        {"det": OpTemplate(_det, computes(dtypes=FLOATS - HALF_FLOATS))},
    ),
)
