"""Convolutions of PyTorch's library under a policy that demands deterministic kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .numbered_policies import NumberedPolicy

__all__ = ["library_obeys"]

_LOCK = threading.Lock()
_blocks = 0
_before = False


@contextmanager
def library_obeys(numbered: NumberedPolicy) -> Iterator[None]:
    """Have cuDNN choose among deterministic algorithms inside the block, if a rule demands deterministic kernels.

    The setting is one of the process. It holds until the last of overlapping blocks ends, and other threads may follow it until then.
    """
    if not numbered.is_exact:
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _blocks, _before
    with _LOCK:
        if not _blocks:
            _before = torch._C._get_cudnn_deterministic()
            torch._C._set_cudnn_deterministic(True)
        _blocks += 1


def _leave() -> None:
    global _blocks
    with _LOCK:
        _blocks -= 1
        if not _blocks:
            torch._C._set_cudnn_deterministic(_before)
