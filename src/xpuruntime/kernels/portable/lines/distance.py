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
    a, b, y = whole(call, 0), whole(call, 1), result(call)
    names = [f"i{d}" for d in range(len(y.shape))]
    *_, row, column = names
    return _distances(call, unravel(y.shape), _row(a, names, row), _row(b, names, column), names)


def _pdist(call: NodeCall) -> TaskText:
    """Return the text of the p-norm of the difference of rows i < j. The pairs of row i begin at i * (2 * n - 1 - i) / 2."""
    x = whole(call, 0)
    count = x.shape[0]
    head = [
        *unravel(result(call).shape),
        f"const double middle = {count} - 0.5;",
        "const double root = middle * middle - 2.0 * (double)i0;",
        "int64_t i = (int64_t)(middle - (double)sqrt(root > 0 ? root : 0.0));",
        f"while (i > 0 && i * (2 * {count}LL - 1 - i) / 2 > i0) --i;  // the root is rounded",
        f"while ((i + 1) * (2 * {count}LL - 2 - i) / 2 <= i0) ++i;",
        f"const int64_t j = i0 - i * (2 * {count}LL - 1 - i) / 2 + i + 1;",
    ]
    return _distances(call, head, address(x, ["i", "k"]), address(x, ["j", "k"]), ["i0"], ("arith",))


def _distances(
    call: NodeCall, head: list[str], first: str, second: str, names: list[str], parts: tuple[str, ...] = ()
) -> TaskText:
    """Return the text of one distance. first, second: addresses of element k of both rows."""
    y, size = result(call), whole(call, 0).shape[-1]
    step, end, needed = _norm(call.attrs["p"])
    body = [
        *head,
        "double total = 0;",
        f"for (int64_t k = 0; k < {size}; ++k) {{",
        f"  const double less = (double)load<1>({first}) - (double)load<1>({second});",
        "  const double d = less < 0 ? -less : less;",
        f"  total = {step};",
        "}",
        f"store<1>({address(y, names)}, convert<{storage(call.outputs[0].dtype)}>({end}));",
    ]
    return TaskText(
        body,
        math.prod(y.shape),
        per=max(size, 1),
        parts=frozenset((*parts, *needed)),
        flops=3 * size * math.prod(y.shape),
    )


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


KERNELS = (
    TemplateKernel(
        "distance/generated",
        {"cdist": OpTemplate(_cdist, computes()), "pdist": OpTemplate(_pdist, computes())},
    ),
)
