"""``einsum`` of two operands on CPUs, as a batch of matrix products."""

from __future__ import annotations

from ....codegen.c_types import C_TYPES
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ...kernel import Kernel, LoweredCall, NodeCall
from ...spec.einsum import equation_product
from .gemm import lower_product

__all__ = ["KERNELS", "EinsumAsMatmul"]


class EinsumAsMatmul(Kernel):
    """Equations of two operands with one summed axis."""

    name = "matmul/generated"
    ops = ("einsum",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for one dtype, a batch of matrix products, and the result's last axis from the second operand."""
        if call.outputs[0].dtype not in C_TYPES:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED,
                f"matrix products in {call.outputs[0].dtype.value} are not supported",
            )
        if equation_product(call) is None:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED,
                f"equation {call.attrs['equation']!r} is not a batch of matrix products in this operand order",
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Lower the equation as a matrix product."""
        product = equation_product(call)
        assert product is not None
        return lower_product(call, product, target)


KERNELS = (EinsumAsMatmul(),)
