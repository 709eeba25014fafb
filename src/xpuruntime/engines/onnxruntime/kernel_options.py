"""Vendor options that select the kernels a KernelPolicy names, by provider.

``naive`` on the CPU is the plain kernel of each op of the family: nothing fused into it or out of it, no blocked layout. Values of ``sdpa_kernel`` are bits of
ONNX Runtime's ``AttentionBackend`` (flash 1, cuDNN 8, plain products 16).
"""

from __future__ import annotations

from collections.abc import Mapping

from ...targets import DeviceId

__all__ = ["kernel_options"]

_OFF = "optimization.disable_specified_optimizers"

_CPU: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("attention", "naive"): {
        _OFF: "AttentionFusion;GroupQueryAttentionFusion;GroupQueryAttentionPreNormFusion"
    },
    ("conv", "naive"): {
        _OFF: "ConvActivationFusion;ConvAddActivationFusion;ConvAddFusion;ConvMulFusion;ConvBNFusion;NchwcTransformer"
    },
    ("matmul", "naive"): {
        _OFF: "MatMulAddFusion;MatMulActivationFusion;MatMulScaleFusion;MatmulTransposeFusion;GemmActivationFusion"
    },
    ("norm", "naive"): {
        _OFF: "LayerNormFusionL1;LayerNormFusionL2;SimplifiedLayerNormFusion;SkipLayerNormFusion;EmbedLayerNormFusion"
    },
}

_CUDA: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("attention", "flash"): {"sdpa_kernel": "1"},
    ("attention", "flash_v2"): {"sdpa_kernel": "1"},
    ("attention", "cudnn"): {"sdpa_kernel": "8"},
    ("attention", "naive"): {"sdpa_kernel": "16"},
}

_BY_DEVICE: Mapping[str, Mapping[tuple[str, str], Mapping[str, str]]] = {"cpu": _CPU, "cuda": _CUDA}


def kernel_options(device: DeviceId) -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Return options by (op family, kernel), for regions on that device; other pairs have none."""
    return _BY_DEVICE.get(device.kind, {})
