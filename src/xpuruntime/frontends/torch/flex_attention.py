"""``flex_attention`` of PyTorch, exported as ops on all scores.

PyTorch compiles each call of it for itself, and an export of that has a nested graph per call, or fails where a function of scores or of
the mask reads a tensor of the model. ``flex_attention_as_ops`` has an export trace ops like those of PyTorch's reference. Where scores are only masked,
the result is ``scaled_dot_product_attention``.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["flex_attention_as_ops"]

_CALL, _SWITCH = "flex_attention_hop", "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
"""Names in PyTorch's module: the function that ``flex_attention`` calls, and a switch to call it without compiling."""
_MODES = "setup_compilation_env"
"""The context of that call. It removes the modes by which an export records ``torch.func.vmap``."""


class _TracingThread(threading.local):
    """State of a thread: if it is in an export now."""

    exporting = False


_THREAD = _TracingThread()


class _Switch:
    """PyTorch's switch: on in a thread that exports, else as it was."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __bool__(self) -> bool:
        return _THREAD.exporting or bool(self.before)


@contextlib.contextmanager
def flex_attention_as_ops() -> Iterator[None]:
    """Have ``flex_attention`` computed by ops in calls of this thread. The caller holds ``TRACING``."""
    module = sys.modules.get("torch.nn.attention.flex_attention")
    originals = {name: getattr(module, name, None) for name in (_CALL, _SWITCH, _MODES)}
    if None in originals.values() or _THREAD.exporting:  # not used, or a PyTorch without them
        yield
        return
    setattr(module, _CALL, _call(originals[_CALL]))
    setattr(module, _SWITCH, _Switch(originals[_SWITCH]))
    setattr(module, _MODES, _modes(originals[_MODES]))
    _THREAD.exporting = True
    try:
        yield
    finally:
        _THREAD.exporting = False
        for name, original in originals.items():
            setattr(module, name, original)


def _modes(original: Any) -> Callable[[], Any]:
    def setup_compilation_env() -> Any:
        return contextlib.nullcontext() if _THREAD.exporting else original()

    return setup_compilation_env


def _call(original: Any) -> Callable[..., Any]:
    def flex_attention(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, *rest: Any) -> Any:
        if _THREAD.exporting:
            return _attention(query, key, value, score_mod, block_mask[-1], rest[0])
        return original(query, key, value, score_mod, block_mask, *rest)

    return flex_attention


def _attention(query: Any, key: Any, value: Any, score_mod: Any, mask_mod: Any, scale: float) -> Any:
    """Return the output, and the logarithm of the sum and the maximum of each row's scores, as PyTorch's reference computes them.

    ``math_attention`` itself makes a constant during a trace, which ``torch.export`` refuses.
    """
    import torch
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.nn.attention.flex_attention import _identity, _vmap_for_bhqkv, noop_mask

    groups = query.size(1) // key.size(1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    key, value = (t.expand(query.size(0), -1, -1, -1) for t in (key, value))
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = query.to(dtype) @ key.to(dtype).transpose(-2, -1) * scale
    indices = [torch.arange(size, device=query.device) for size in scores.shape]
    mask = None
    with TransformGetItemToIndex():
        if score_mod is not _identity:
            scores = _vmap_for_bhqkv(score_mod, prefix=(0,))(scores, *indices)
        if mask_mod is not noop_mask:
            mask = _vmap_for_bhqkv(mask_mod, prefix=())(*indices)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if score_mod is _identity:
        output = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)
    else:
        output = torch._safe_softmax(scores, -1).to(query.dtype) @ value
    log2 = math.log(2)  # the caller multiplies by it
    return output, scores.logsumexp(-1) / log2, scores.amax(-1) / log2
