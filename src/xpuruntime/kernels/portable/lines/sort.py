"""``sort`` and ``topk`` along a dim, one line per task. NaN counts as the largest value.

Sorting is a stable merge sort of positions, of words of key and position if keys have up to 32 bits. If k is small, ``topk`` selects with a heap instead.
"""

from __future__ import annotations

import math

from ....codegen.loops.points import address, outer_dims, storage, unravel
from ....types import DType
from ...kernel import NodeCall
from ...spec.support import NUMBERS, computes
from ..tasks import OpTemplate, TaskText, TemplateKernel, result, whole

__all__ = ["KERNELS"]

_RUN = 16
"""Words that ``sort_words`` sorts by their ranks before it merges."""

_HEAP_FRACTION = 4
"""A heap selects at most a quarter of a line; for more, sorting the line is as fast."""


def _sorted(call: NodeCall) -> TaskText:
    """Return the text of a stable sort: load keys once in their compute type, merge positions, write the result."""
    x, values, indices = whole(call, 0), result(call, 0), result(call, 1)
    if not x.shape:
        x, values, indices = (b.inserted(0) for b in (x, values, indices))
    dim = call.attrs["dim"]
    n, outer = x.shape[dim], outer_dims(x.shape, dim)
    count = values.shape[dim]
    down = call.attrs["largest"] if call.op == "topk" else call.attrs["descending"]
    names = [f"i{d}" for d in range(len(outer))]
    at = [*names[:dim], "k", *names[dim:]]
    dtype = call.tensor(0).spec.dtype
    key = {DType.FLOAT16: "float", DType.BFLOAT16: "float", DType.BOOL: "uint8_t"}.get(dtype, storage(dtype))
    way = "true" if down else "false"
    tasks = math.prod(outer) if count else 0
    write = [
        f"for (int64_t k = 0; k < {count}; ++k) {{{{",
        f"  store<1>({address(values, at)}, keys[{{index}}]);",
        f"  store<1>({address(indices, at)}, {{place}});",
        "}}",
    ]
    if count * _HEAP_FRACTION <= n:
        body = [
            *unravel(outer),
            f"{key} *const keys = ({key} *)scratch;",
            f"int32_t *const sorted = (int32_t *)((char *)scratch + {8 * count});",
            f"for (int64_t k = 0; k < {n}; ++k) heap_push<{way}>(keys, sorted, {count}, ({key})load<1>({address(x, at)}), k);",
            f"heap_sort<{way}>(keys, sorted, {count});",
            *(line.format(index="k", place="(int64_t)sorted[k]") for line in write),
        ]
        return TaskText(body, tasks, per=n * 4, scratch_bytes=16 * count, parts=frozenset({"sorting"}))
    if dtype.bits <= 32:
        padded = math.ceil(n / _RUN) * _RUN
        body = [
            *unravel(outer),
            f"{key} *const keys = ({key} *)scratch;",
            f"uint64_t *const words = (uint64_t *)((char *)scratch + {math.ceil(n / 2) * 8}), *const spare = words + {padded};",
            f"for (int64_t k = 0; k < {n}; ++k) {{",
            f"  keys[k] = load<1>({address(x, at)});",
            f"  words[k] = (uint64_t)ordered<{way}>(keys[k]) << 32 | (uint64_t)k;",
            "}",
            f"for (int64_t k = {n}; k < {padded}; ++k) words[k] = ~(uint64_t)0 - {_RUN} + (uint64_t)(k - {n});",
            f"const uint64_t *const sorted = sort_words(words, spare, {n});",
            *(
                line.format(index="(uint32_t)sorted[k]", place="(int64_t)(uint32_t)sorted[k]")
                for line in write
            ),
        ]
        scratch = math.ceil(n / 2) * 8 + 16 * padded
        return TaskText(body, tasks, per=n * 16, scratch_bytes=scratch, parts=frozenset({"sorting"}))
    body = [
        *unravel(outer),
        f"{key} *const keys = ({key} *)scratch;",
        f"int32_t *const order = (int32_t *)((char *)scratch + {8 * n}), *const spare = order + {n};",
        f"for (int64_t k = 0; k < {n}; ++k) keys[k] = load<1>({address(x, at)}), order[k] = (int32_t)k;",
        f"const int32_t *const sorted = merge_sort<{way}>(keys, order, spare, {n});",
        *(line.format(index="sorted[k]", place="(int64_t)sorted[k]") for line in write),
    ]
    return TaskText(body, tasks, per=n * 16, scratch_bytes=16 * n, parts=frozenset({"sorting"}))


_ROW = OpTemplate(_sorted, computes(dtypes=NUMBERS | {DType.BOOL}))
KERNELS = (TemplateKernel("sort/generated", {"topk": _ROW, "sort": _ROW}),)
