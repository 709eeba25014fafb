"""Training ops with forward and backward, as ``torch.library`` custom ops of the library ``xpuruntime``.

Each computes what PyTorch's function of that name computes. Its kernels follow the policy of ``set_kernel_policy``.
"""

from __future__ import annotations

from .attention import attention
from .batch_norm import batch_norm
from .convolution import convolution
from .cross_entropy import linear_cross_entropy
from .embedding import embedding
from .gated import geglu, swiglu
from .linear import linear, matmul
from .norm import layer_norm, rms_norm
from .pool import avg_pool, max_pool
from .rope import rope
from .softmax import softmax

__all__ = [
    "attention",
    "avg_pool",
    "batch_norm",
    "convolution",
    "embedding",
    "geglu",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "matmul",
    "max_pool",
    "rms_norm",
    "rope",
    "softmax",
    "swiglu",
]
