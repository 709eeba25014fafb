"""Matrix products on CPUs: which operands of each op are which side of a ``gemm.Product``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....ir.ops.matmul import ACTIVATIONS as ACTIVATION_NAMES
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall
from ...portable.text import ACTIVATIONS
from ...spec.matmul import OPS, _linear, product_of
from ...spec.product import C_TYPES
from .gemm import lower_product
from .gemm_tiling import STREAMED_ROWS

__all__ = ["KERNELS", "MatmulKernel"]

assert set(ACTIVATIONS) == set(ACTIVATION_NAMES.split("|"))


def _supports(call: NodeCall) -> Support:
    dtype = call.outputs[0].dtype
    if dtype not in C_TYPES:
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"matrix products in {dtype.value} are not supported")
    if not call.outputs[0].is_dense:
        return Support.no(Reason.SHAPE_UNSUPPORTED, "the result must be dense")
    if not dtype.is_float and call.op == "fused_linear" and call.attrs["act"] != "none":
        return Support.no(Reason.DTYPE_UNSUPPORTED, f"activations need a float dtype, not {dtype.value}")
    for operand in call.tensors:
        if operand.is_weight and not operand.spec.is_dense:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"weight {operand.name} is not dense")
    return Support.yes()


def _always(call: NodeCall, target: CodegenTarget) -> Support:
    return Support.yes()


def _few_rows(call: NodeCall, target: CodegenTarget) -> Support:
    """Return whether the product is a weight times few rows, so that reading the weight takes all of the time."""
    p = product_of(call).flat()
    if p.m > STREAMED_ROWS:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"supports up to {STREAMED_ROWS} rows; got {p.m}")
    if not call.tensor(p.b).is_weight:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED, "the right-hand side must be a weight, which is packed at load"
        )
    return Support.yes()


_Check: TypeAlias = "Callable[[NodeCall, CodegenTarget], Support]"


@dataclass(frozen=True, slots=True)
class MatmulKernel(Kernel):
    """Base class of the CPU's matrix products. They share the templates and differ in the shapes that they support."""

    name: str
    streamed: bool
    check: _Check
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for products in one dtype with a dense result."""
        found = _supports(call)
        return self.check(call, target) if found else found

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage of panels times blocks of rows."""
        return lower_product(call, product_of(call), target, streamed=self.streamed)


class Int8Weights(Kernel):
    """Linear layers with int8 weights and one scale per output; decoding reads half or a quarter of the bytes.

    It changes results (a weight by up to a 254th of the largest in its row), so only a policy that names it uses it.
    """

    name = "matmul/int8_weights"
    ops = ("linear", "fused_linear")
    on_request = True

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats up to 32 bits, and a weight that is known when it is loaded."""
        found = _supports(call)
        if not found:
            return found
        if call.outputs[0].dtype not in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16):
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"int8 weights are not supported for {call.outputs[0].dtype.value}"
            )
        if not call.tensor(1).is_weight:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, "the right-hand side must be a weight, which is quantized at load"
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the layer as ``MatmulKernel`` does; with few rows, B is streamed."""
        p = replace(_linear(call), b_type="int8_t")
        return lower_product(call, p, target, streamed=p.flat().m <= STREAMED_ROWS)


KERNELS: tuple[Any, ...] = (
    MatmulKernel("matmul/gemv", True, _few_rows),
    MatmulKernel("matmul/generated", False, _always),
    Int8Weights(),
)
