"""Convolutions of PyTorch's library under a policy that demands deterministic kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .requests import Demand

__all__ = ["library_obeys"]


@contextmanager
def library_obeys(demand: Demand) -> Iterator[None]:
    """Have cuDNN choose among deterministic algorithms inside the block, if a rule demands deterministic kernels.

    The setting is one of the process: convolutions of other threads may follow it for the time of the block.
    """
    before = torch._C._get_cudnn_deterministic()
    if before or not demand.is_exact:
        yield
        return
    torch._C._set_cudnn_deterministic(True)
    try:
        yield
    finally:
        torch._C._set_cudnn_deterministic(False)
