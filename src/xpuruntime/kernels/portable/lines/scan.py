"""Cumulative sums and products, one line per task. Floats accumulate in double, integers modulo 2**64."""

from __future__ import annotations

import math

from ....codegen.loops.points import address, outer_dims, storage, unravel
from ....types import DType
from ...kernel import NodeCall
from ...spec.support import NUMBERS, computes
from ..tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["KERNELS"]


def _running(call: NodeCall) -> TaskText:
    x, y, a = whole(call, 0), result(call), call.attrs
    if not x.shape:
        x, y = x.inserted(0), y.inserted(0)
    dim, dtype = a["dim"], call.outputs[0].dtype
    n, rest = x.shape[dim], outer_dims(x.shape, dim)
    names = [f"i{d}" for d in range(len(rest))]
    at = [*names[:dim], "k", *names[dim:]]
    wide, kind = ("double" if dtype.is_float else "uint64_t"), storage(dtype)
    start, op = ("0", "+") if call.op == "cumsum" else ("1", "*")
    convert = "convert_bool" if call.tensor(0).spec.dtype is DType.BOOL else "convert"
    take = f"total = ({wide})(total {op} ({wide}){convert}<{kind}>(load<1>({address(x, at)})));"
    give = f"store<1>({address(y, at)}, convert<{kind}>(total));"
    body = [
        *unravel(rest),
        f"{wide} total = {start};",
        f"for (int64_t step = 0; step < {n}; ++step) {{",
        f"  const int64_t k = {f'{n - 1} - step' if a['reverse'] else 'step'};",
        f"  {give if a['exclusive'] else take}",
        f"  {take if a['exclusive'] else give}",
        "}",
    ]
    return TaskText(body, math.prod(rest), per=n)


_ROW = OpTemplate(_running, computes(dtypes=NUMBERS | {DType.BOOL}))
KERNELS = (TemplateKernel("scan/generated", {"cumsum": _ROW, "cumprod": _ROW}),)
