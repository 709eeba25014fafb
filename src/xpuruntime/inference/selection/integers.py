"""The precision int8, available if the model is quantized and the engine computes its products in integers."""

from __future__ import annotations

from ...decisions import Reason, Support
from ...policies.entrances import INSTEAD_OF_INT8
from ...protocols import ModelSource

__all__ = ["in_integers"]


def in_integers(model: ModelSource, *, own_kernels: bool) -> Support:
    """Return whether an engine computes the model's quantized products in integers.

    own_kernels: True for the native engine, which computes integer ops (QLinearConv, MatMulInteger) in integers and QDQ products in floats. For
                 a vendor engine only the evidence of a run tells.
    """
    if model.quantized is None:
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"{model.name} is not quantized: its convolutions and matrix products are in {model.precision.value}",
            do=INSTEAD_OF_INT8,
        )
    if own_kernels and model.products.qdq:
        return Support.no(
            Reason.PRECISION_UNSUPPORTED,
            f"the native engine computes products between DequantizeLinear and QuantizeLinear in {model.precision.value}",
            do="Name onnxruntime or openvino, or add allow_fallback='cpu'.",
        )
    return Support.yes()
