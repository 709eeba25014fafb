"""Local response normalization, one element per task."""

from __future__ import annotations

import math

from ...codegen.expr.terms import compute_type
from ...codegen.loops.points import address, unravel
from ..kernel import NodeCall
from ..spec.support import computes
from .tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["KERNELS"]


def _across_channels(call: NodeCall) -> TaskText:
    """Return the text of one element: its value divided by a power of the squares of neighboring channels."""
    x, y = whole(call, 0), result(call)
    kind = compute_type(call.tensor(0).spec.dtype, "1")
    size, alpha, beta, k = (call.attrs[a] for a in ("size", "alpha", "beta", "k"))
    assert isinstance(size, int)
    assert isinstance(alpha, float)
    names = [f"i{d}" for d in range(len(x.shape))]
    neighbor = [*names[:1], "j", *names[2:]]
    body = [
        *unravel(x.shape),
        f"const int64_t low = i1 > {(size - 1) // 2} ? i1 - {(size - 1) // 2} : 0;",
        f"const int64_t high = i1 + {size // 2} < {x.shape[1]} ? i1 + {size // 2} : {x.shape[1] - 1};",
        f"{kind} squares = 0;",
        "for (int64_t j = low; j <= high; ++j) {",
        f"  const {kind} near = load<1>({address(x, neighbor)});",
        "  squares += near * near;",
        "}",
        f"const {kind} base = ({kind}){k!r} + ({kind}){alpha / size!r} * squares;",
        f"store<1>({address(y, names)}, load<1>({address(x, names)}) / pow(base, ({kind}){beta!r}));",
    ]
    return TaskText(body, math.prod(x.shape), parts=frozenset({"pow"}))


KERNELS = (
    TemplateKernel("norm/generated", {"local_response_norm": OpTemplate(_across_channels, computes(0))}),
)
