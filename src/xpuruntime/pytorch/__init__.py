"""Training in PyTorch under the policy that inference uses.

    import xpuruntime.pytorch as xrt_torch

    xrt_torch.set_kernel_policy(attention="flash_v2", matmul="cublasLt")
    with xrt_torch.autocast(fp16=True), xrt_torch.capture_graph():
        loss = criterion(model(x), t)
        loss.backward()

PyTorch keeps modules, autograd and optimizers. This package computes ops of the policy's families with kernels of our catalogue, forward
and backward. An op without such a kernel runs on PyTorch's own operator, and ``record`` says why.

    formulas/   what each op computes, forward and backward, as IR; no torch
    programs    formulas compiled under a policy, by signature
    ops/        the ops as torch.library custom ops
    routing     PyTorch's functions that a policy sends to these ops
    capture/    CUDA graphs of training steps

Importing the package, or a module of it, raises UnavailableError if PyTorch is not installed.
"""

from __future__ import annotations

from ..lazy import lazy_names
from ..plugins.packages import require_package

__all__ = [
    "Certificate",
    "GradScaler",
    "PolicyScope",
    "StepRecord",
    "autocast",
    "capture_graph",
    "certify",
    "kernel_policy",
    "ops",
    "record",
    "reset_kernel_policy",
    "set_kernel_policy",
    "transfer_limits",
]

require_package("torch", __name__)
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Certificate": "xpuruntime.pytorch.certificate",
        "GradScaler": "torch.amp",
        "PolicyScope": "xpuruntime.pytorch.policy",
        "autocast": "xpuruntime.pytorch.mixed_precision",
        "capture_graph": "xpuruntime.pytorch.capture.graph",
        "certify": "xpuruntime.pytorch.certificate",
        "StepRecord": "xpuruntime.pytorch.step_record",
        "kernel_policy": "xpuruntime.pytorch.policy",
        "ops": "xpuruntime.pytorch.ops",
        "record": "xpuruntime.pytorch.step_record",
        "reset_kernel_policy": "xpuruntime.pytorch.policy",
        "set_kernel_policy": "xpuruntime.pytorch.policy",
        "transfer_limits": "xpuruntime.pytorch.step_limits",
    },
)
