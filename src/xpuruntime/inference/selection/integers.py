"""The precision int8: had where the model is quantized and the engine computes its products in integers."""

from __future__ import annotations

from ...decisions import Reason, Support
from ...policies.entrances import INSTEAD_OF_INT8
from ...protocols import ModelSource

__all__ = ["in_integers"]


def in_integers(model: ModelSource, *, own_kernels: bool) -> Support:
    """Whether an engine computes the model's quantized products in integers.

    own_kernels: our own kernels compute it: those of integer ops (QLinearConv, MatMulInteger) do, QDQ products run in floats. Of a vendor the
                 evidence of a run tells.
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
