"""Distances of every pair of rows, one pair per task. They are summed from differences in double, so close rows keep every digit."""

from __future__ import annotations

import math

from ....codegen.loops.boxes import Box
from ....codegen.loops.points import address, number, storage, unravel
from ...kernel import NodeCall
from ...spec.support import computes
from ..tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["KERNELS"]


def _cdist(call: NodeCall) -> TaskText:
    """Return the text of the p-norm of the difference of two rows; NaN if a difference is NaN, for every p."""
    a, b, y, p = whole(call, 0), whole(call, 1), result(call), call.attrs["p"]
    names = [f"i{d}" for d in range(len(y.shape))]
    *_, row, column = names
    size = a.shape[-1]
    step, end, parts = _norm(p)
    body = [
        *unravel(y.shape),
        "double total = 0;",
        f"for (int64_t k = 0; k < {size}; ++k) {{",
        f"  const double less = (double)load<1>({_row(a, names, row)}) - (double)load<1>({_row(b, names, column)});",
        "  const double d = less < 0 ? -less : less;",
        f"  total = {step};",
        "}",
        f"store<1>({address(y, names)}, convert<{storage(call.outputs[0].dtype)}>({end}));",
    ]
    return TaskText(body, math.prod(y.shape), per=max(size, 1), parts=frozenset(parts), flops=3 * size * math.prod(y.shape))  # fmt: skip


def _row(box: Box, names: list[str], row: str) -> str:
    """Return the address of element k of a row; batch dims of 1 broadcast."""
    before = names[len(names) - len(box.shape) : -2]
    batch = ["0" if size == 1 else name for name, size in zip(before, box.shape[:-2], strict=True)]
    return address(box, [*batch, row, "k"])


def _norm(p: float) -> tuple[str, str, tuple[str, ...]]:
    """Return the accumulation of a difference, the distance from the total, and the prelude parts of both."""
    if p == 0:
        return "total + (d != d ? d : d != 0 ? 1.0 : 0.0)", "total", ()
    if p == 1:
        return "total + d", "total", ()
    if p == 2:
        return "total + d * d", "sqrt(total)", ("arith",)
    if math.isinf(p):
        return "d > total || d != d ? d : total", "total", ()
    return f"total + pow(d, (double){number(p)})", f"pow(total, (double){number(1 / p)})", ("pow",)


KERNELS = (TemplateKernel("distance/generated", {"cdist": OpTemplate(_cdist, computes())}),)
