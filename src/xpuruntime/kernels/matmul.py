"""Matrix products on CPUs: which operands of each op are which side of a ``gemm.Product``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ..codegen.target import CodegenTarget
from ..decisions import Reason, Support
from ..ir.ops.matmul import ACTIVATIONS as ACTIVATION_NAMES
from ..types import DType
from .gemm import lower_product
from .gemm_tiling import STREAMED_ROWS
from .kernel import Lowered, NodeCall
from .product import ACTIVATIONS, C_TYPES, Product, Term, sizes, strides_in

__all__ = ["KERNELS", "OPS", "MatmulKernel", "product_of"]

assert set(ACTIVATIONS) == set(ACTIVATION_NAMES.split("|"))


def _matmul(call: NodeCall) -> Product:
    """NumPy's matmul: vectors are rows on the left and columns on the right, batches broadcast."""
    a, b, y = call.tensor(0), call.tensor(1), call.outputs[0]
    a_shape, b_shape = sizes(a.spec), sizes(b.spec)
    a_vector, b_vector = len(a_shape) == 1, len(b_shape) == 1
    y_shape = list(sizes(y))
    batch = tuple(y_shape[: len(y_shape) - (not a_vector) - (not b_vector)])
    m, n, k = 1 if a_vector else a_shape[-2], 1 if b_vector else b_shape[-1], a_shape[-1]
    a_steps = strides_in(a.spec, (*batch, *(() if a_vector else (m,)), k))
    b_steps = strides_in(b.spec, (*batch, k, *(() if b_vector else (n,))))
    lead = len(batch)
    y_steps = (*[n * m * math.prod(batch[i + 1 :]) for i in range(lead)], n, 1)
    return Product(
        0, 1, batch, (m,), n, k,
        (*a_steps[:lead], 0, a_steps[-1]) if a_vector else a_steps,
        (*b_steps, 1) if b_vector else b_steps,
        y_steps,
    )  # fmt: skip


def _term(call: NodeCall, position: int, p: Product, factor: float = 1.0) -> Term:
    operand = call.tensor(position)
    return Term(position, operand, strides_in(operand.spec, (*p.batch, *p.rows, p.n)), factor)


def _addmm(call: NodeCall) -> Product:
    inner = replace(call, inputs=call.inputs[1:])
    p, beta = _matmul(inner), float(call.attrs["beta"])
    if not call.outputs[0].dtype.is_float:
        beta = float(int(beta))
    terms = (_term(call, 0, p, beta),) if beta else ()
    return replace(p, a=1, b=2, terms=terms, alpha=float(call.attrs["alpha"]))


def _linear(call: NodeCall) -> Product:
    x, weight = call.tensor(0).spec, call.tensor(1).spec
    rows, (n, k) = sizes(x)[:-1], sizes(weight)
    steps, own = x.physical.strides, weight.physical.strides
    batch, m = (rows[:-1], rows[-1]) if rows else ((), 1)
    y_steps = (*[n * math.prod(rows[i + 1 :]) for i in range(len(rows))], 1) if rows else (n, 1)
    p = Product(
        0, 1, batch, (m,), n, k,
        steps if rows else (0, *steps), (*[0] * len(batch), own[1], own[0]), y_steps,
        act=call.attrs.get("act", "none") if call.op == "fused_linear" else "none",
    )  # fmt: skip
    present = [i for i in (2, 3) if call.optional(i) is not None]
    return replace(p, terms=tuple(_term(call, i, p) for i in present))


_PRODUCTS: dict[str, Callable[[NodeCall], Product]] = {
    "mm": _matmul,
    "bmm": _matmul,
    "matmul": _matmul,
    "addmm": _addmm,
    "linear": _linear,
    "fused_linear": _linear,
}

OPS = tuple(_PRODUCTS)
"""Ops that are one product of two matrices."""


def product_of(call: NodeCall) -> Product:
    """The product that a node is."""
    return _PRODUCTS[call.op](call)


def _supports(call: NodeCall) -> Support:
    dtype = call.outputs[0].dtype
    if dtype not in C_TYPES:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"no product in {dtype.value}")
    if not call.outputs[0].is_dense:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "writes dense results only")
    if not dtype.is_float and call.op == "fused_linear" and call.attrs["act"] != "none":
        return Support.no(
            Reason.DTYPE_UNSUPPORTED, f"activations are computed in floats, not in {dtype.value}"
        )
    for operand in call.tensors:
        if operand.is_weight and not operand.spec.is_dense:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"weight {operand.name} is not dense")
    return Support.yes()


def _always(call: NodeCall, target: CodegenTarget) -> Support:
    return Support.yes()


def _few_rows(call: NodeCall, target: CodegenTarget) -> Support:
    """A weight times few rows: all of the time is that of reading the weight."""
    p = product_of(call).flat()
    if p.m > STREAMED_ROWS:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"for up to {STREAMED_ROWS} rows, and there are {p.m}")
    if not call.tensor(p.b).is_weight:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED, "streams a weight that was packed at load, and the right side is none"
        )
    return Support.yes()


_Check: TypeAlias = "Callable[[NodeCall, CodegenTarget], Support]"


@dataclass(frozen=True, slots=True)
class MatmulKernel:
    """A row of the catalogue: both compute by the same templates; what differs is which shapes they are offered for."""

    name: str
    streamed: bool
    check: _Check
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Products in one dtype with a dense result."""
        found = _supports(call)
        return self.check(call, target) if found else found

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """One stage of panels times blocks of rows."""
        return lower_product(call, product_of(call), target, streamed=self.streamed)


class Int8Weights:
    """Linear layers with weights in int8, a scale per output, and everything else as it was: half or a quarter of what decoding reads.

    Changes results (a weight by up to a 254th of its row's largest), so only a policy that names it takes it.
    """

    name = "matmul/int8_weights"
    ops = ("linear", "fused_linear")
    on_request = True

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Floats up to 32 bits, and a weight that is known when it is loaded."""
        found = _supports(call)
        if not found:
            return found
        if call.outputs[0].dtype not in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16):
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"no int8 weights beside {call.outputs[0].dtype.value}"
            )
        if not call.tensor(1).is_weight:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, "quantizes weights at load, and the right side is none"
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> Lowered:
        """As the others; few rows are streamed."""
        p = replace(_linear(call), b_type="int8_t")
        return lower_product(call, p, target, streamed=p.flat().m <= STREAMED_ROWS)


KERNELS: tuple[Any, ...] = (
    MatmulKernel("matmul/gemv", True, _few_rows),
    MatmulKernel("matmul/generated", False, _always),
    Int8Weights(),
)
