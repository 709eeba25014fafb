"""The tensors that a policy may send to the ops of this package."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["is_plain"]

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def is_plain(*tensors: Tensor | None, traced: bool = False) -> bool:
    """Return True for dense floating-point tensors on a device that programs run on. Subclasses of Tensor have semantics of their own.

    traced: the tensors are those of a compiler's trace, which are subclasses.
    """
    return all(
        t is None
        or (
            (traced or type(t) in (Tensor, torch.nn.Parameter))
            and t.dtype in _DTYPES
            and t.layout is torch.strided
            and t.device.type in ("cpu", "cuda")
        )
        for t in tensors
    )
