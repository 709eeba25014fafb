"""Matrix products on CPUs: ``matmul/generated``, ``matmul/gemv`` for few rows, ``matmul/int8_weights`` and ``matmul/fp8_weights``.

All generate the same packed GEMM (``gemm``): B is packed in panels, and a register tile of rows by vectors accumulates. They differ in the
shapes that they support. gemv is bandwidth-bound by the weight, generated compute-bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ....codegen.c_types import C_TYPES
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....ir.ops.matmul import ACTIVATIONS as ACTIVATION_NAMES
from ....types import DType
from ...kernel import Kernel, LoweredCall, NodeCall
from ...portable.text import ACTIVATIONS
from ...spec.channel_codes import FP8, INT8, ChannelCodes
from ...spec.matmul import OPS, _linear, product_of
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
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"weight {operand.name} must be dense")
    return Support.yes()


def _always(call: NodeCall, target: CodegenTarget) -> Support:
    return Support.yes()


def _few_rows(call: NodeCall, target: CodegenTarget) -> Support:
    """Return whether the product has a weight and so few rows that it is bandwidth-bound."""
    p = product_of(call).flat()
    if p.m > STREAMED_ROWS:
        return Support.no(Reason.SHAPE_UNSUPPORTED, f"at most {STREAMED_ROWS} rows are supported, got {p.m}")
    if not call.tensor(p.b).is_weight:
        return Support.no(
            Reason.SHAPE_UNSUPPORTED, "the right-hand side must be a weight, which is packed at load"
        )
    return Support.yes()


_Check: TypeAlias = "Callable[[NodeCall, CodegenTarget], Support]"


@dataclass(frozen=True, slots=True)
class MatmulKernel(Kernel):
    """A CPU matrix product. The instances share templates and differ in the shapes that ``check`` accepts.

    streamed: whether B is read from memory once, because rows are few.
    """

    name: str
    streamed: bool
    check: _Check
    ops: tuple[str, ...] = OPS

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for products in one dtype with a dense result."""
        answer = _supports(call)
        return self.check(call, target) if answer else answer

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage of panels times blocks of rows."""
        return lower_product(call, product_of(call), target, streamed=self.streamed)


@dataclass(frozen=True, slots=True)
class ChannelWeights(Kernel):
    """Linear layers whose weights are codes of eight bits with one scale per output; decoding reads a half or a quarter of the bytes.

    int8 changes a weight by at most 1/254 of the largest in its row; fp8 by at most 1/16 of itself, or 1/458,752 of the largest. So only a policy that
    names the kernel uses it.
    """

    name: str
    codes: ChannelCodes
    on_request: bool = True
    ops: tuple[str, ...] = ("linear", "fused_linear")

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for floats of at most 32 bits, and a constant weight."""
        answer = _supports(call)
        if not answer:
            return answer
        if call.outputs[0].dtype not in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16):
            return Support.no(
                Reason.DTYPE_UNSUPPORTED,
                f"{self.codes.word} weights are not supported for {call.outputs[0].dtype.value}",
            )
        if not call.tensor(1).is_weight:
            return Support.no(
                Reason.SHAPE_UNSUPPORTED, "the right-hand side must be a weight, which is quantized at load"
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage; with few rows, B is streamed."""
        p = replace(_linear(call), codes=self.codes)
        return lower_product(call, p, target, streamed=p.flat().m <= STREAMED_ROWS)


KERNELS: tuple[Any, ...] = (
    MatmulKernel("matmul/gemv", True, _few_rows),
    MatmulKernel("matmul/generated", False, _always),
    ChannelWeights("matmul/int8_weights", INT8),
    ChannelWeights("matmul/fp8_weights", FP8),
)
