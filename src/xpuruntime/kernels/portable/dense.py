"""Factorizations of dense matrices and systems of equations: one matrix per task, in double. Meant for small matrices."""

from __future__ import annotations

import math

from ...codegen.loops.points import storage
from ...decisions import Reason, Support
from ...types import HALF_FLOATS, TensorSpec
from ..kernel import NodeCall
from ..spec.product import sizes
from ..spec.support import FLOATS, computes
from .tasks import OpTemplate, TaskText, TemplateKernel
from .text import offset_text

__all__ = ["KERNELS"]


def _matrix(name: str, argument: str, spec: TensorSpec, batch: list[int]) -> str:
    """Return the line that sets ``name`` to the matrix of a task; batches of one are broadcast."""
    strides = [0 if d == 1 else s for d, s in zip(sizes(spec), spec.physical.strides, strict=True)][:-2]
    leading = [0] * (len(batch) - len(strides)) + strides
    return f"auto *const {name} = {argument} + {offset_text('task', batch, leading)};"


def _at(name: str, spec: TensorSpec, row: str, column: str) -> str:
    row_stride, column_stride = spec.physical.strides[-2:]
    return f"{name} + ({row}) * {row_stride} + ({column}) * {column_stride}"


def _info(call: NodeCall, position: int, batch: list[int]) -> list[str]:
    """Return the line that stores ``info``, if it is a result."""
    if len(call.outputs) <= position:
        return []
    at = offset_text("task", batch, list(call.outputs[position].physical.strides))
    return [f"store<1>(out{position} + {at}, info);"]


def _cholesky(call: NodeCall) -> TaskText:
    """Return the text of one factor per task, column by column."""
    x, y, upper = call.tensor(0).spec, call.outputs[0], call.attrs["upper"]
    *batch, n, _ = sizes(x)
    row, column = ("j", "i") if upper else ("i", "j")
    kind = storage(y.dtype)
    body = [
        _matrix("x", "in0", x, batch),
        _matrix("y", "out0", y, batch),
        "int32_t info = 0;",
        f"for (int64_t j = 0; j < {n}; ++j) {{",
        f"  for (int64_t i = j; i < {n}; ++i) {{",
        f"    double rest = (double)load<1>({_at('x', x, row, column)});",
        f"    for (int64_t k = 0; k < j; ++k) rest -= m[i * {n} + k] * m[j * {n} + k];",
        "    if (i == j) {",
        "      if (!(rest > 0)) {",
        "        if (info == 0) info = (int32_t)j + 1;",
        '        rest = __builtin_nan("");',
        "      }",
        "      rest = sqrt(rest);",
        "    } else {",
        f"      rest /= m[j * {n} + j];",
        "    }",
        f"    m[i * {n} + j] = rest;",
        f"    store<1>({_at('y', y, row, column)}, ({kind})rest);",
        f"    if (i != j) store<1>({_at('y', y, column, row)}, ({kind})0);",
        "  }",
        "}",
        *_info(call, 1, batch),
    ]
    return _text(call, body, math.prod(batch), n**3 // 6, 8 * n * n, frozenset({"arith"}))


def _text(
    call: NodeCall, body: list[str], count: int, steps: int, scratch: int, parts: frozenset[str]
) -> TaskText:
    return TaskText(
        body, count, ["double *const m = (double *)scratch;"], per=max(1, steps), scratch_bytes=scratch + 64,
        parts=parts, flops=2 * count * steps,
    )  # fmt: skip


def _elimination(n: int, columns: int, on_swap: str = "") -> list[str]:
    """Return the loop that makes ``m`` upper triangular, and ``right`` its right side. The pivot of column c is that of the largest magnitude."""
    swap = (
        "{{ const double t = {0}[c * {1} + j]; {0}[c * {1} + j] = {0}[p * {1} + j]; {0}[p * {1} + j] = t; }}"
    )
    right = (
        [f"    for (int64_t j = 0; j < {columns}; ++j) {swap.format('right', columns)}"] if columns else []
    )
    reduced = (
        [
            f"    for (int64_t j = 0; j < {columns}; ++j) right[i * {columns} + j] -= f * right[c * {columns} + j];"
        ]
        if columns
        else []
    )
    return [
        f"for (int64_t c = 0; c < {n}; ++c) {{",
        "  int64_t p = c;",
        f"  for (int64_t i = c + 1; i < {n}; ++i) if (abs(m[i * {n} + c]) > abs(m[p * {n} + c])) p = i;",
        "  if (p != c) {",
        f"    for (int64_t j = 0; j < {n}; ++j) {swap.format('m', n)}",
        *right,
        on_swap,
        "  }",
        f"  const double pivot = m[c * {n} + c];",
        "  if (pivot == 0 && info == 0) info = (int32_t)c + 1;",
        f"  for (int64_t i = c + 1; i < {n}; ++i) {{",
        # Below a pivot of 0 is 0, or NaN, which reaches the results.
        f"    const double f = pivot == 0 ? m[i * {n} + c] : m[i * {n} + c] / pivot;",
        f"    for (int64_t j = c + 1; j < {n}; ++j) m[i * {n} + j] -= f * m[c * {n} + j];",
        *reduced,
        "  }",
        "}",
    ]


def _solve(call: NodeCall) -> TaskText:
    """Return the text of one system per task."""
    a, b, y = call.tensor(0).spec, call.tensor(1).spec, call.outputs[0]
    *batch, n, columns = sizes(y)
    body = [
        _matrix("a", "in0", a, batch),
        _matrix("b", "in1", b, batch),
        _matrix("y", "out0", y, batch),
        f"double *const right = m + {n * n};",
        "int32_t info = 0;",
        f"for (int64_t i = 0; i < {n}; ++i) {{",
        f"  for (int64_t j = 0; j < {n}; ++j) m[i * {n} + j] = (double)load<1>({_at('a', a, 'i', 'j')});",
        f"  for (int64_t j = 0; j < {columns}; ++j) right[i * {columns} + j] = (double)load<1>({_at('b', b, 'i', 'j')});",
        "}",
        *_elimination(n, columns),
        f"for (int64_t i = {n - 1}; i >= 0; --i)",
        f"  for (int64_t j = 0; j < {columns}; ++j) {{",
        f"    double rest = right[i * {columns} + j];",
        f"    for (int64_t k = i + 1; k < {n}; ++k) rest -= m[i * {n} + k] * right[k * {columns} + j];",
        f"    rest /= m[i * {n} + i];",
        f"    right[i * {columns} + j] = rest;",
        f"    store<1>({_at('y', y, 'i', 'j')}, ({storage(y.dtype)})rest);",
        "  }",
        *_info(call, 1, batch),
    ]
    steps = n**3 // 3 + n * n * columns
    return _text(call, body, math.prod(batch), steps, 8 * n * (n + columns), frozenset({"arith"}))


def _slogdet(call: NodeCall) -> TaskText:
    """Return the text of one matrix per task: the pivots' signs, and the sum of their logarithms."""
    x, sign, logarithm = call.tensor(0).spec, *call.outputs
    *batch, n, _ = sizes(x)
    kind = storage(sign.dtype)
    at = [offset_text("task", batch, list(v.physical.strides)) for v in (sign, logarithm)]
    body = [
        _matrix("x", "in0", x, batch),
        "int32_t info = 0;",
        "double sign = 1, sum = 0;",
        f"for (int64_t i = 0; i < {n}; ++i)",
        f"  for (int64_t j = 0; j < {n}; ++j) m[i * {n} + j] = (double)load<1>({_at('x', x, 'i', 'j')});",
        *_elimination(n, 0, "    sign = -sign;"),
        f"for (int64_t c = 0; c < {n}; ++c) {{",
        f"  const double pivot = m[c * {n} + c];",
        "  sign = pivot < 0 ? -sign : pivot > 0 ? sign : 0;",
        "  sum += log(abs(pivot));",
        "}",
        f"store<1>(out0 + {at[0]}, ({kind})sign);",
        f"store<1>(out1 + {at[1]}, ({kind})sum);",
    ]
    return _text(call, body, math.prod(batch), n**3 // 3, 8 * n * n, frozenset({"arith", "log"}))


_MAX_ROWS = 128
"""One task computes a whole matrix."""


def _why_not(call: NodeCall) -> Support | None:
    rows = call.tensor(0).spec.shape[-1]
    if isinstance(rows, int) and rows > _MAX_ROWS:
        why = f"{call.op} of a matrix of {rows} rows; at most {_MAX_ROWS} are supported"
        return Support.no(Reason.SHAPE_UNSUPPORTED, why)
    return computes(0, dtypes=FLOATS - HALF_FLOATS)(call)


KERNELS = (
    TemplateKernel(
        "dense/generated",
        {
            "cholesky": OpTemplate(_cholesky, _why_not),
            "slogdet": OpTemplate(_slogdet, _why_not),
            "solve": OpTemplate(_solve, _why_not),
        },
    ),
)
