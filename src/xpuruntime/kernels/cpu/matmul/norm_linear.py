"""``norm_linear`` on CPUs: a decoder's linear layer with few rows, fused with the RMS norm before it and the gate after it.

It is bandwidth-bound: each weight is read from memory once. A task is one panel of B and all rows. Every thread normalizes the rows once,
in its scratch. A gated layer multiplies an activation of one half of the outputs by the other half; a task then computes the two matching
panels. Weights have the packing of the plain products (``gemm``), so that prefill and decode share them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ....codegen.cpp.isa import IsaLevel
from ....codegen.target import CodegenTarget
from ....decisions import Reason, Support
from ....types import DType, TensorSpec
from ...kernel import Kernel, LoweredCall, NodeCall, Stage
from ...spec.channel_codes import FP8, INT8, ChannelCodes
from ...spec.linear import why_not
from ...spec.product import Product
from ..abi import isa_of
from .gemm import _packed, after
from .gemm_text import b_type
from .gemm_tiling import tiling
from .layer_source import layer_scratch_bytes, layer_source
from .layer_text import LayerText

__all__ = ["KERNELS", "CpuNormLinear"]

_ROWS = 16
"""Maximum rows. Every thread normalizes all rows again, and all rows pass over a panel while it is in cache."""


@dataclass(frozen=True, slots=True)
class CpuNormLinear(Kernel):
    """Linear layers of few rows with a norm, a gate, or both. ``codes``: codes of weights with one scale per output."""

    name: str
    codes: ChannelCodes | None = None
    on_request: bool = False
    ops: tuple[str, ...] = ("norm_linear",)

    def supports(self, call: NodeCall, target: CodegenTarget) -> Support:
        """Return yes for dense floats of few rows, and a constant weight."""
        refused = why_not(call)
        if refused is not None:
            return refused
        m = LayerText.of(call).m
        if m > _ROWS:
            return Support.no(Reason.SHAPE_UNSUPPORTED, f"at most {_ROWS} rows are supported, got {m}")
        if self.codes and call.outputs[0].dtype is DType.FLOAT64:
            return Support.no(
                Reason.DTYPE_UNSUPPORTED, f"{self.codes.word} weights are not supported for float64"
            )
        return Support.yes()

    def lower(self, call: NodeCall, target: CodegenTarget) -> LoweredCall:
        """Return one stage; a task is a panel of B and all rows."""
        layer = LayerText.of(call)
        if not layer.m * layer.n:
            return LoweredCall(())
        isa: IsaLevel = isa_of(target)

        def product(outputs: int) -> Product:
            k = layer.k
            return Product(0, 1, (), (layer.m,), outputs, k, (k, 1), (1, k), (outputs, 1), codes=self.codes)

        t = tiling(product(layer.n * layer.halves), layer.dtype, True, True, isa, target.config.matmul_tile)
        first, outputs = layer.even(t.columns)
        weight = replace(call.tensor(1), spec=TensorSpec((outputs, layer.k), layer.dtype))
        packed = _packed(product(outputs), weight, t)
        panel_bytes = t.columns * layer.k * (1 if self.codes else layer.dtype.bits // 8) * layer.halves
        stage = Stage(
            stem=f"{'norm_' if layer.scale else ''}matmul_{layer.m}x{layer.n * layer.halves}x{layer.k}"
            + ("" if layer.act == "none" else f"_{layer.act}"),
            source=layer_source(
                layer, t, b_type(self.codes, t, layer.storage), t.depth(layer.k) * t.columns, self.codes
            ),
            args=(
                "in0", "in1", *(f"in{at}" for _, at in layer.operands), *(("extra0",) if self.codes else ()), "out0"
            ),
            tasks=layer.panels(t.columns),
            grain=layer.grain(panel_bytes),
            scratch_bytes=layer_scratch_bytes(layer, t, t.block if t.dequantized else 0),
            parts=layer.parts | t.parts,
            flops=2 * layer.m * layer.n * layer.halves * layer.k,
            bytes=sum(s.size_bytes or 0 for s in (*(o.spec for o in call.tensors), call.outputs[0])),
        )  # fmt: skip
        return LoweredCall(
            (stage,),
            weights={1: after(first, self.codes.packed(packed) if self.codes else packed)},
            extra_weights={"extra0": (1, self.codes.scales(layer.n * layer.halves))} if self.codes else {},
            accumulates="float64" if layer.sums == "double" else "float32",
        )


KERNELS: tuple[Any, ...] = (
    CpuNormLinear("matmul/gemv"),
    CpuNormLinear("matmul/generated"),
    CpuNormLinear("matmul/int8_weights", INT8, on_request=True),
    CpuNormLinear("matmul/fp8_weights", FP8, on_request=True),
)
