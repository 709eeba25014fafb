"""Convolutions, batch norms and max pools of a training step on CUDA: PyTorch's library computes them, on values that are channels-last.

The library's kernels on tensor cores work on channels-last values and convert others twice per call. A value that is channels-last once stays so
through elementwise operators, batch norms and pools, in backward, too. A policy that names ``conv``, ``norm`` or ``pool`` chooses our kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation

from ..numbered_policies import NumberedPolicy
from ..programs import BACKWARD, FORWARD

__all__ = ["channels_last", "left_operators", "whole_operators"]

_FASTER = "PyTorch's library is faster in training; a policy that names {} chooses our kernels"
_LEFT = {
    "aten.convolution.default": ("conv", _FASTER.format("conv")),
    "aten.convolution_backward.default": ("", "our expansion stores an im2col matrix; PyTorch's library does not"),
    "aten._native_batch_norm_legit_functional.default": ("norm", _FASTER.format("norm")),
    "aten.native_batch_norm_backward.default": ("norm", _FASTER.format("norm")),
    "aten.cudnn_batch_norm.default": ("norm", _FASTER.format("norm")),
    "aten.cudnn_batch_norm_backward.default": ("norm", _FASTER.format("norm")),
    "aten.max_pool2d_with_indices.default": ("pool", _FASTER.format("pool")),
    "aten.max_pool2d_with_indices_backward.default": ("pool", _FASTER.format("pool")),
}  # fmt: skip
"""Operator -> the family whose name in a policy chooses our kernels (empty: we have none), and the reason."""
_WHOLE = (torch.ops.aten.native_batch_norm_backward.default,)
"""Operators of the table that PyTorch's compiler would expand."""
_CONVOLUTIONS = (torch.conv2d, F.conv2d)


def left_operators(device: torch.device, phase: str, numbered: NumberedPolicy) -> Mapping[str, str]:
    """Return operator -> the reason why PyTorch computes it, though our compiler could."""
    if device.type != "cuda":
        return {}
    trains = phase in (FORWARD, BACKWARD)
    return {
        op: why
        for op, (family, why) in _LEFT.items()
        if not family or (trains and not numbered.names(family))
    }


def whole_operators(device: torch.device, numbered: NumberedPolicy) -> tuple[torch._ops.OpOverload, ...]:
    """Return the operators that are not expanded, because PyTorch computes them."""
    return () if device.type != "cuda" or numbered.names("norm") else _WHOLE


def channels_last(module: torch.fx.GraphModule, numbered: NumberedPolicy) -> None:
    """Make the operands of the graph's convolutions of images channels-last, in place, where PyTorch computes them in 16 bits.

    It runs before PyTorch's autograd sees the graph, which then traces the values after them as channels-last, too.
    """
    if not torch.is_grad_enabled() or numbered.names("conv"):
        return
    changed = False
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in _CONVOLUTIONS or not node.args:
            continue
        x = node.args[0].meta.get("example_value")
        if not isinstance(x, torch.Tensor) or x.device.type != "cuda" or x.dim() != 4 or not _is_narrow(x):
            continue
        with module.graph.inserting_before(node):
            copy = module.graph.call_method(
                "contiguous", (node.args[0],), {"memory_format": torch.channels_last}
            )
        copy.meta = dict(node.args[0].meta)
        node.args = (copy, *node.args[1:])
        changed = True
    if changed:
        module.recompile()


def _is_narrow(x: torch.Tensor) -> bool:
    narrow = (torch.float16, torch.bfloat16)
    return x.dtype in narrow or (
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") in narrow
    )
