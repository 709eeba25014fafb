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
    (QLinearConv, MatMulInteger). For a vendor engine only the evidence of a run tells, but for products of 16-bit activations, which the plug-in
    declares. device: the kind of device.
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
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"{plugin.name} computes products of 16-bit activations in {model.precision.value}, and {model.name} has {model.products.wide} of them",
            do="Quantize with uint8 activations, run it on an NPU (engine='qnn'), or leave the precision out.",
        )
    return Support.yes()
