"""PyTorch's functions that a policy sends to the ops of this package, for modules that exist already.

A ``TorchFunctionMode`` on the thread's stack sees each call of PyTorch's functions, also those inside of functions that PyTorch has in Python. It
takes a call if the policy names the function's op family and the operands are plain floating-point tensors on the host or a CUDA device.
Everything else passes through unchanged. While
``torch.compile`` traces, every call passes through: the backend ``xpuruntime`` applies the policy to the graph instead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  - PyTorch's own abbreviation
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from ..policies import current_policy
from ..policies.context import replace_policy
from . import ops, window_routes
from .composite import leave_to_python, without_check
from .mixed_precision import as_autocast
from .numbered_policies import numbered_policy
from .ops.attention import obstacle
from .plain import is_plain
from .step_record import note_skipped
from .transforms import active_transform

__all__ = ["ROUTES", "Route", "attention_of_pytorch", "install", "skip_frames_of_mode", "uninstall"]


@dataclass(frozen=True, slots=True)
class Route:
    """The op that replaces a function. ``run`` has the function's signature and returns None for a call that the op does not support."""

    family: str
    run: Callable[..., Tensor | None]


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:  # noqa: A002  - PyTorch's name
    if not is_plain(input, weight, bias):
        return None
    return ops.linear(*as_autocast("matmul", input, weight, bias))


def _matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None) -> Tensor | None:  # noqa: A002
    if out is not None or not is_plain(input, other):
        return None
    return ops.matmul(*as_autocast("matmul", input, other))


def _reversed_matmul(input: Tensor, other: Tensor) -> Tensor | None:  # noqa: A002
    return _matmul(other, input)


def _layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor | None:
    if not is_plain(input, weight, bias):
        return None
    input, weight, bias = as_autocast("norm", input, weight, bias)  # noqa: A001
    return ops.layer_norm(input, normalized_shape, weight, bias, eps)


def _rms_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor | None:
    if not is_plain(input, weight):
        return None
    input, weight = as_autocast("norm", input, weight)  # noqa: A001
    return ops.rms_norm(input, normalized_shape, weight, eps)


def _softmax(
    input: Tensor,  # noqa: A002
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    if dim is None or not is_plain(input) or not input.dim():
        return None
    (x,) = as_autocast("softmax", input)
    return ops.softmax(x if dtype is None else x.to(dtype), dim)


def _tensor_softmax(input: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor | None:  # noqa: A002
    return _softmax(input, dim, dtype=dtype)


def _embedding(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    if max_norm is not None or scale_grad_by_freq or sparse or not is_plain(weight):
        return None
    if input.dtype not in (torch.int32, torch.int64):
        return None
    return ops.embedding(input, weight, padding_idx)


def attention_of_pytorch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    number: int | None = None,
) -> Tensor | None:
    """Return the result of a call of ``scaled_dot_product_attention`` by our op, or None if the op does not take it.

    number: number of the policy of a graph that is being traced; its tensors are fake.
    """
    added = attn_mask is not None and attn_mask.dtype is not torch.bool
    if dropout_p or not is_plain(query, key, value, attn_mask if added else None, traced=number is not None):
        return None
    q, k, v = as_autocast("attention", query, key, value)
    if not q.dtype == k.dtype == v.dtype or obstacle(q, k, v, attn_mask, is_causal, enable_gqa):
        return None
    return ops.attention(q, k, v, is_causal, scale, enable_gqa, attn_mask, number=number)


_MAX_POOLS = {
    1: (F.max_pool1d, F.max_pool1d_with_indices, torch.max_pool1d),
    2: (F.max_pool2d, F.max_pool2d_with_indices, torch.max_pool2d),
    3: (F.max_pool3d, F.max_pool3d_with_indices, torch.max_pool3d),
}
_AVG_POOLS = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
_ADAPTIVE_POOLS = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}

ROUTES: Mapping[Any, Route] = {
    F.linear: Route("matmul", _linear),
    torch.matmul: Route("matmul", _matmul),
    torch.mm: Route("matmul", _matmul),
    torch.bmm: Route("matmul", _matmul),
    Tensor.matmul: Route("matmul", _matmul),
    Tensor.mm: Route("matmul", _matmul),
    Tensor.bmm: Route("matmul", _matmul),
    Tensor.__matmul__: Route("matmul", _matmul),
    Tensor.__rmatmul__: Route("matmul", _reversed_matmul),
    F.layer_norm: Route("norm", _layer_norm),
    F.rms_norm: Route("norm", _rms_norm),
    F.softmax: Route("softmax", _softmax),
    torch.softmax: Route("softmax", _tensor_softmax),
    Tensor.softmax: Route("softmax", _tensor_softmax),
    F.embedding: Route("embedding", _embedding),
    F.scaled_dot_product_attention: Route("attention", attention_of_pytorch),
    F.batch_norm: Route("norm", window_routes.batch_norm),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), Route("conv", window_routes.convolution)),
    **dict.fromkeys(
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        Route("conv", window_routes.transposed_convolution),
    ),
    **{f: Route("pool", window_routes.max_pool(n)) for n, fs in _MAX_POOLS.items() for f in fs},
    **{f: Route("pool", window_routes.avg_pool(n)) for n, f in _AVG_POOLS.items()},
    **{f: Route("pool", window_routes.adaptive_avg_pool(n)) for n, f in _ADAPTIVE_POOLS.items()},
}
"""PyTorch's function -> the op that computes it."""


_PLAIN = frozenset((Tensor, torch.nn.Parameter))


class PolicyMode(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is untyped here
    """The mode that reads the policy of the current thread or async task at each call.

    inside: functions in Python whose bodies run under this mode. PyTorch's autograd carries the mode to its own threads, where backward calls
    functions to compute them again (``torch.utils.checkpoint``); there the policy is that of the last call in the mode's thread.
    """

    def __init__(self, inside: frozenset[Any] = frozenset()) -> None:
        super().__init__()
        self._inside, self._thread, self._policy = inside, threading.get_ident(), current_policy()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_dynamo_compiling():
            # The method calls super(), which PyTorch's compiler cannot trace under a mode.
            return (torch.unflatten if func is Tensor.unflatten else func)(*args, **(kwargs or {}))
        if threading.get_ident() == self._thread:
            self._policy = current_policy()
            return self._routed(func, types, args, kwargs or {})
        before = replace_policy(self._policy)
        try:
            return self._routed(func, types, args, kwargs or {})
        finally:
            replace_policy(before)

    def _routed(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        route = ROUTES.get(func)
        if route is None:
            inner = None if func in self._inside else without_check(func)
            if inner is not None and _PLAIN.issuperset(types) and _only_devices():
                with PolicyMode(self._inside | {func}):
                    return inner(*args, **kwargs)
        elif numbered_policy().names(route.family):
            reason = active_transform()
            if not reason:
                result = route.run(*args, **kwargs)
                if result is not None:
                    return result
                reason = "no op of this package takes these arguments"
            note_skipped(func, route.family, reason)
        return func(*args, **kwargs)


def _only_devices() -> bool:
    """Return True if the modes below are those of ``torch.set_default_device``. Others must see each function first."""
    below = range(torch._C._len_torch_function_stack())
    return all(isinstance(torch._C._get_function_stack_at(i), DeviceContext) for i in below)


def skip_frames_of_mode() -> None:
    """Have ``torch.compile`` leave the mode's own frames alone, if PyTorch's compiler is loaded."""
    leave_to_python(PolicyMode.__torch_function__.__code__, PolicyMode._routed.__code__)


class _Installed(threading.local):
    """The mode of a thread, and how many scopes need it."""

    mode: PolicyMode | None = None
    scopes: int = 0


_installed = _Installed()


def install() -> None:
    """Put the mode on this thread's stack, unless it is there. Each call needs one ``uninstall``."""
    _installed.scopes += 1
    if _installed.mode is None:
        skip_frames_of_mode()
        _installed.mode = PolicyMode()
        _installed.mode.__enter__()


def uninstall(every: bool = False) -> None:
    """Remove the mode from this thread's stack when no scope needs it. If another mode is above it, it stays and passes calls through."""
    _installed.scopes = 0 if every else max(0, _installed.scopes - 1)
    mode = _installed.mode
    if mode is not None and not _installed.scopes and _top_is(mode):
        mode.__exit__(None, None, None)
        _installed.mode = None


def _top_is(mode: PolicyMode) -> bool:
    from torch.overrides import _get_current_function_mode

    return _get_current_function_mode() is mode
