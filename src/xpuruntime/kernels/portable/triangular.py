"""Triangular systems of equations, by substitution: a block of columns per task on CPUs, a column per thread on GPUs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...codegen.loops.points import storage
from ...types import HALF_FLOATS
from ..kernel import NodeCall
from ..spec.product import sizes
from ..spec.support import FLOATS, computes
from .tasks import OpTemplate, TaskText, TemplateKernel
from .text import offset_text

__all__ = ["KERNELS"]

_BLOCK_BYTES = 128
"""Bytes of a row of a block: two registers of 512 bits."""


@dataclass(frozen=True, slots=True)
class _System:
    """The lines of a node.

    begin: lines that set ``a``, ``b`` and ``y`` to the matrices of a task. rows: the loop over rows. known: the loop over the rows that are
    solved before row ``i``.
    """

    count: int
    n: int
    columns: int
    begin: tuple[str, ...]
    rows: str
    known: str

    @classmethod
    def of(cls, call: NodeCall) -> _System:
        specs = (call.tensor(0).spec, call.tensor(1).spec, call.outputs[0])
        *batch, n, columns = sizes(specs[2])
        begin = []
        for name, argument, spec in zip("aby", ("in0", "in1", "out0"), specs, strict=True):
            strides = [
                0 if d == 1 else s for d, s in zip(sizes(spec), spec.physical.strides, strict=True)
            ]  # batches of one are broadcast
            leading = [0] * (len(batch) + 2 - len(strides)) + strides[:-2]
            begin.append(f"auto *const {name} = {argument} + {offset_text('matrix', batch, leading)};")
        upper = call.attrs["upper"]
        return cls(
            math.prod(batch),
            n,
            columns,
            tuple(begin),
            f"for (int64_t i = {n - 1}; i >= 0; --i) {{"
            if upper
            else f"for (int64_t i = 0; i < {n}; ++i) {{",
            f"for (int64_t j = i + 1; j < {n}; ++j)" if upper else "for (int64_t j = 0; j < i; ++j)",
        )

    @property
    def flops(self) -> int:
        return self.count * self.n * self.n * self.columns


def _element(call: NodeCall, name: str, row: str, column: str) -> str:
    """Return the address of an element of a matrix that ``_System.begin`` sets."""
    spec = {"a": call.tensor(0).spec, "b": call.tensor(1).spec, "y": call.outputs[0]}[name]
    row_stride, column_stride = spec.physical.strides[-2:]
    return f"{name} + ({row}) * {row_stride} + ({column}) * {column_stride}"


def _blocks(call: NodeCall) -> TaskText:
    system, kind = _System.of(call), storage(call.outputs[0].dtype)
    n, columns = system.n, system.columns
    width = max(1, min(columns, 8 * _BLOCK_BYTES // call.outputs[0].dtype.bits))
    blocks = -(-columns // width)
    body = [
        f"const int64_t matrix = task / {max(blocks, 1)}, first = task % {max(blocks, 1)} * {width};",
        f"const int64_t used = {columns} - first < {width} ? {columns} - first : {width};",
        *system.begin,
        system.rows,
        f"  {kind} sum[{width}];",
        f"  for (int64_t c = 0; c < {width}; ++c) sum[c] = c < used ? load<1>({_element(call, 'b', 'i', 'first + c')}) : 0;",
        f"  {system.known} {{",
        f"    const {kind} factor = load<1>({_element(call, 'a', 'i', 'j')});",
        f"    for (int64_t c = 0; c < {width}; ++c) sum[c] -= factor * solved[j * {width} + c];",
        "  }",
    ]
    if not call.attrs["unitriangular"]:
        body += [
            f"  const {kind} pivot = load<1>({_element(call, 'a', 'i', 'i')});",
            f"  for (int64_t c = 0; c < {width}; ++c) sum[c] /= pivot;",
        ]
    body += [
        f"  for (int64_t c = 0; c < {width}; ++c) solved[i * {width} + c] = sum[c];",
        f"  for (int64_t c = 0; c < used; ++c) store<1>({_element(call, 'y', 'i', 'first + c')}, sum[c]);",
        "}",
    ]
    size = call.outputs[0].dtype.bits // 8
    return TaskText(
        body,
        system.count * blocks,
        [f"{kind} *const solved = ({kind} *)scratch;"],
        per=max(1, n * n * width // 2),
        scratch_bytes=max(64, n * width * size),
        flops=system.flops,
    )


def _columns(call: NodeCall) -> TaskText:
    """Return the text of one column per task. Solved rows are read back from the result, whose neighbor columns neighbor threads own."""
    system, kind = _System.of(call), storage(call.outputs[0].dtype)
    columns = max(system.columns, 1)
    body = [
        f"const int64_t matrix = task / {columns}, column = task % {columns};",
        *system.begin,
        system.rows,
        f"  {kind} sum = load<1>({_element(call, 'b', 'i', 'column')});",
        f"  {system.known}",
        f"    sum -= load<1>({_element(call, 'a', 'i', 'j')}) * load<1>({_element(call, 'y', 'j', 'column')});",
    ]
    if not call.attrs["unitriangular"]:
        body.append(f"  sum /= load<1>({_element(call, 'a', 'i', 'i')});")
    body += [f"  store<1>({_element(call, 'y', 'i', 'column')}, sum);", "}"]
    return TaskText(
        body,
        system.count * system.columns,
        per=max(1, system.n * system.n // 2),
        flops=system.flops,
    )


_SOLVE = OpTemplate(_blocks, computes(dtypes=FLOATS - HALF_FLOATS), _columns)
KERNELS = (TemplateKernel("triangular/generated", {"solve_triangular": _SOLVE}),)
