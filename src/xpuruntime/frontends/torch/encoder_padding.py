"""Padded rows of ``nn.TransformerEncoder``, exported as PyTorch computes them in eval mode.

Without gradients, PyTorch packs a batch whose padding is at the end into a nested tensor, and unpacks the result with zeros in padded rows.
``torch.export`` cannot trace that branch, which depends on the mask's content, and takes the other one, which leaves values there.
``padding_as_in_eval`` exports the zeros as ops on the mask.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["padding_as_in_eval"]


class _ExportingThread(threading.local):
    """State of a thread: if it is in an export now."""

    exporting = False


class _Replacement:
    """The method of ``nn.TransformerEncoder`` that all exports of the process share: set by the first, removed by the last."""

    def __init__(self) -> None:
        self.thread = _ExportingThread()
        self._lock = threading.Lock()
        self._exports = 0
        self._original: Any = None
        self._method: Any = None
        self._classes: list[type[Any]] = []

    def acquire(self, torch: Any) -> None:
        with self._lock:
            self._exports += 1
            if self._exports == 1:
                base = torch.nn.TransformerEncoder
                self._original = base.forward
                self._method = _forward(torch, self._original, self.thread)
                self._classes = _classes_with(base, self._original)
                for cls in self._classes:
                    cls.forward = self._method

    def release(self) -> None:
        with self._lock:
            self._exports -= 1
            if self._exports == 0:
                for cls in self._classes:
                    if cls.__dict__.get("forward") is self._method:  # not replaced by somebody else meanwhile
                        cls.forward = self._original
                self._classes = []


_REPLACEMENT = _Replacement()


@contextlib.contextmanager
def padding_as_in_eval(torch: Any) -> Iterator[None]:
    """Have ``nn.TransformerEncoder`` zero padded rows as PyTorch does without gradients, in calls of this thread.

    The method of the class is replaced, because encoders in plain lists and ``super().forward`` of subclasses call it, too.
    """
    thread = _REPLACEMENT.thread
    before = thread.exporting
    _REPLACEMENT.acquire(torch)
    try:
        thread.exporting = True
        yield
    finally:
        thread.exporting = before
        _REPLACEMENT.release()


def _classes_with(base: type[Any], method: Any) -> list[type[Any]]:
    """Return the class and subclasses whose own ``forward`` is this method, as after ``forward = nn.TransformerEncoder.forward``."""
    classes = [base] if base.__dict__.get("forward") is method else []
    for subclass in base.__subclasses__():
        classes += _classes_with(subclass, method)
    return classes


def _forward(torch: Any, original: Callable[..., Any], thread: _ExportingThread) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if thread.exporting:
            return _zeroed(torch, original, self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return forward


def _zeroed(
    torch: Any,
    original: Callable[..., Any],
    encoder: Any,
    src: Any,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Any:
    """Return what an encoder computes, with zeros in padded rows where PyTorch has them."""
    if src_key_padding_mask is None or mask is not None or not _packs(torch, encoder, src):
        return original(
            encoder, src, mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=is_causal
        )
    padded = src_key_padding_mask
    if padded.dtype is not torch.bool:
        padded = padded != 0
    if getattr(encoder, "mask_check", True):  # only padding at the end of every sample is packed
        begun = padded.cumsum(1) > 0  # slices would exclude short lengths from open shapes
        padded = padded & (padded == begun).all()
    if src_key_padding_mask.dtype is not torch.bool:
        src_key_padding_mask = src_key_padding_mask.masked_fill(padded, float("-inf"))
    output = src
    for layer in encoder.layers:
        output = layer(output, src_mask=None, is_causal=False, src_key_padding_mask=src_key_padding_mask)
    output = output.masked_fill(padded.unsqueeze(-1), 0.0)
    return output if encoder.norm is None else encoder.norm(output)


def _packs(torch: Any, encoder: Any, src: Any) -> bool:
    """Return True if PyTorch would pack a batch whose padding is at the end, as ``nn.TransformerEncoder.forward`` decides."""
    return bool(
        torch.backends.mha.get_fastpath_enabled()
        and getattr(encoder, "use_nested_tensor", False)
        and not encoder.layers[0].training
        and src.dim() == 3
        and not torch.is_autocast_enabled()
    )
