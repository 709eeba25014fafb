"""The precision int8, available if the model is quantized and the engine computes its products in integers."""

from __future__ import annotations

from ...decisions import Reason, Support
from ...plugins.loader import EnginePlugin
from ...policies.entrances import INSTEAD_OF_INT8
from ...protocols import ModelSource

__all__ = ["in_integers"]


def in_integers(model: ModelSource, plugin: EnginePlugin, device: str) -> Support:
    """Return whether an engine computes the model's quantized products in integers.

    The native engine computes QDQ products in integers on CPUs (pass ``fuse_quantized``), and elsewhere only the model's integer ops
    (QLinearConv, MatMulInteger). The plug-in of an engine declares if it computes products with an operand of more than 8 bits in integers. For
    other products of a vendor engine, the evidence of a run shows it. device: the kind of device.
    """
    if model.quantized is None:
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"{model.name} is not quantized: its convolutions and matrix products are in {model.precision.value}",
            do=INSTEAD_OF_INT8,
        )
    if plugin.chooses_kernels and model.products.qdq and device != "cpu":
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"on {device} the native engine computes products between DequantizeLinear and QuantizeLinear in {model.precision.value}",
            do="Use device='cpu', name onnxruntime, or add allow_fallback='cpu'.",
        )
    if model.products.wide and not plugin.wide_integers:
        products = f"{model.products.wide} products with an operand of more than 8 bits"
        why = (
            f"the plug-in of {plugin.name} does not declare integer arithmetic for them"
            if plugin.wide_integers is None
            else f"{plugin.name} computes them in {model.precision.value}"
        )
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"{model.name} has {products}, and {why}",
            do="Quantize with uint8 activations, run it on an NPU (engine='qnn'), or leave the precision out.",
        )
    return Support.yes()
