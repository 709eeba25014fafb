"""Kernels that the target of a new device brings along: its methods ``elementwise_kernel``, ``matmul_kernel`` and ``fused_kernel`` return the
entry point and the file of a kernel, and ``Ported`` calls it.

A call carries ``options``, which a backend reads instead of parsing the kernel: ``op`` and ``attrs`` of the node, ``entry`` and ``file`` of the
kernel, and ``operands``: for each one its buffer (``{"buffer": 0}``), a number, or null. Buffers are dense.
"""

from __future__ import annotations

import math
from typing import Any

from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..ir import OPS
from ..ir.ops.control import AT_RUN_TIME
from ..program.program import KernelParam
from ..types import DType, TensorSpec
from .kernel import Kernel, LoweredCall, NodeCall, Operand, Stage, operand_ref

__all__ = ["KERNELS", "Ported"]

_PRODUCTS = {"mm": False, "matmul": False, "bmm": False, "linear": True}
"""Matrix products, and whether their right-hand side is transposed."""


class Ported(Kernel):
    """A kernel for one of the guide's methods. It is offered for every target that is not built in."""

    def __init__(self, method: str, ops: tuple[str, ...]) -> None:
        self.name, self.ops = f"{method}/ported", ops

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes if the target names a kernel and every tensor is dense."""
        specs = [*(o.spec for o in call.tensors), *call.outputs]
        for spec in specs:
            if not spec.is_static or not spec.is_dense:
                return Support.no(Reason.SHAPE_UNSUPPORTED, f"ported kernels need dense tensors, got {spec}")
            if spec.dtype.bits < 8:
                return Support.no(
                    Reason.DTYPE_UNSUPPORTED,
                    f"ported kernels need whole bytes per element, got {spec.dtype.value}",
                )
        try:
            self._kernel(call, target)
        except (LookupError, NotImplementedError) as error:
            return Support.no(Reason.OP_UNSUPPORTED, f"{target.name} has no kernel for {call.op}: {error}")
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage, with one task per element of the results."""
        entry, file = self._kernel(call, target)
        tensors = [i for i, o in enumerate(call.inputs) if isinstance(o, Operand)]
        buffers = {i: n for n, i in enumerate(tensors)}
        operands = [{"buffer": buffers[i]} if i in buffers else o for i, o in enumerate(call.inputs)]
        options = {
            "op": call.op,
            "entry": entry,
            "file": file,
            "operands": operands,
            "attrs": {name: _plain(value) for name, value in call.attrs.items() if value is not None},
        }
        args = [operand_ref("in", i) for i in tensors] + [
            operand_ref("out", i) for i in range(len(call.outputs))
        ]
        elements = max(math.prod(_shape(s)) for s in call.outputs)
        return LoweredCall(
            (
                Stage(
                    stem=entry,
                    source=target.shader_source(file),
                    args=tuple(args),
                    tasks=elements,
                    params=(KernelParam("elements", "i64", elements), *self._sizes(call)),
                    options=options,
                ),
            )
        )

    def _kernel(self, call: NodeCall, target: CodegenTarget) -> tuple[str, str]:
        if self.name == "elementwise/ported":
            return target.elementwise_kernel(call.op)
        if self.name == "matmul/ported":
            rows = _shape(call.tensor(0).spec)[-2:-1] or (1,)
            return target.matmul_kernel(rows == (1,), _PRODUCTS[call.op])
        return target.fused_kernel(call.op)

    def _sizes(self, call: NodeCall) -> tuple[KernelParam, ...]:
        """Return m, n, k of a matrix product."""
        if call.op not in _PRODUCTS:
            return ()
        left, out = _shape(call.tensor(0).spec), _shape(call.outputs[0])
        sizes = {"m": (1, *left)[-2], "n": (1, *out)[-1], "k": (1, *left)[-1]}
        return tuple(KernelParam(name, "i64", value) for name, value in sizes.items())


def _shape(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(int(d) for d in spec.shape if isinstance(d, int))


def _plain(value: Any) -> Any:
    """Return an attribute as a JSON value."""
    if isinstance(value, DType):
        return value.value
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value if isinstance(value, bool | int | float | str | None) else str(value)


_POINTWISE = tuple(sorted(name for name, op in OPS.items() if op.pointwise and name not in _PRODUCTS))
_OTHERS = tuple(sorted(set(OPS) - set(_POINTWISE) - set(_PRODUCTS) - AT_RUN_TIME))

KERNELS = (Ported("elementwise", _POINTWISE), Ported("matmul", tuple(_PRODUCTS)), Ported("fused", _OTHERS))
