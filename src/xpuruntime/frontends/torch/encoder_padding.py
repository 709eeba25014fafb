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


@contextlib.contextmanager
def padding_as_in_eval(torch: Any, model: Any) -> Iterator[None]:
    """Have the encoders of a module zero padded rows as PyTorch does without gradients, in calls of this thread."""
    base = torch.nn.TransformerEncoder
    parts = model.modules() if isinstance(model, torch.nn.Module) else ()
    encoders = [m for m in parts if getattr(type(m), "forward", None) is base.forward]
    encoders = [m for m in encoders if "forward" not in m.__dict__]
    thread = threading.get_ident()
    for encoder in encoders:
        encoder.__dict__["forward"] = _forward(torch, encoder, encoder.forward, thread)
    try:
        yield
    finally:
        for encoder in encoders:
            encoder.__dict__.pop("forward", None)


def _forward(torch: Any, encoder: Any, plain: Callable[..., Any], thread: int) -> Callable[..., Any]:
    @functools.wraps(plain)
    def forward(
        src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
    ) -> Any:
        nested = src_key_padding_mask is not None and mask is None and _packs(torch, encoder, src)
        if not nested or threading.get_ident() != thread:
            return plain(src, mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=is_causal)
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

    return forward


def _packs(torch: Any, encoder: Any, src: Any) -> bool:
    """Return True if PyTorch would pack a batch whose padding is at the end, as ``nn.TransformerEncoder.forward`` decides."""
    return bool(
        torch.backends.mha.get_fastpath_enabled()
        and getattr(encoder, "use_nested_tensor", False)
        and not encoder.layers[0].training
        and src.dim() == 3
        and not torch.is_autocast_enabled()
    )
