"""The mapping from each matmul op to the sides of a ``Product``."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ..kernel import NodeCall
from .product import Product, Term, sizes, strides_in

__all__ = ["OPS", "WIDE", "matmul_product", "product_of"]

WIDE = "mm_wide"
"""The product of 16-bit matrices in float32."""


def matmul_product(call: NodeCall) -> Product:
    """Return the product of NumPy's matmul: vectors are rows on the left and columns on the right, batches broadcast."""
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
    p, beta = matmul_product(inner), float(call.attrs["beta"])
    if not call.outputs[0].dtype.is_float:
        beta = float(int(beta))
    terms = (_term(call, 0, p, beta),) if beta else ()
    return replace(p, a=1, b=2, terms=terms, alpha=float(call.attrs["alpha"]))


def _linear(call: NodeCall) -> Product:
    x, weight = call.tensor(0).spec, call.tensor(1).spec
    rows, (n, k) = sizes(x)[:-1], sizes(weight)
    steps, weight_strides = x.physical.strides, weight.physical.strides
    batch, m = (rows[:-1], rows[-1]) if rows else ((), 1)
    y_steps = (*[n * math.prod(rows[i + 1 :]) for i in range(len(rows))], 1) if rows else (n, 1)
    p = Product(
        0, 1, batch, (m,), n, k,
        steps if rows else (0, *steps), (*[0] * len(batch), weight_strides[1], weight_strides[0]), y_steps,
        act=call.attrs.get("act", "none") if call.op == "fused_linear" else "none",
    )  # fmt: skip
    present = [i for i in (2, 3) if call.optional(i) is not None]
    return replace(p, terms=tuple(_term(call, i, p) for i in present))


def _mm_wide(call: NodeCall) -> Product:
    p = matmul_product(call)
    return p if call.optional(2) is None else replace(p, terms=(_term(call, 2, p),))


_PRODUCTS: dict[str, Callable[[NodeCall], Product]] = {
    "mm": matmul_product,
    "bmm": matmul_product,
    "matmul": matmul_product,
    "addmm": _addmm,
    "linear": _linear,
    "fused_linear": _linear,
    WIDE: _mm_wide,
}


OPS = tuple(op for op in _PRODUCTS if op != WIDE)
"""Ops that are one product of two matrices, in their dtype."""


def product_of(call: NodeCall) -> Product:
    """Return the product that a node computes."""
    return _PRODUCTS[call.op](call)
