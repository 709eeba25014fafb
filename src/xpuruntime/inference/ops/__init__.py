"""Single ops on tensors of any library. The first call chooses kernels by the policy; later calls are a look-up and a launch.

    from xpuruntime import ops                              # or: import xpuruntime as xrt; xrt.ops.matmul(...)

    y = ops.softmax(ops.matmul(q, k.transpose(-1, -2)))      # NumPy, PyTorch or any DLPack tensors; the same kind out
    ops.attention(q, k, v, causal=True, out=buffer)          # into your own buffer
    with ops.use({"kernel": {"matmul": "generated"}}):       # as ``with_policy``
        ops.matmul(a, b)
    print(ops.explain("matmul", a, b))                       # which kernel, and why not the others

A call's signature is the op, its attributes, the policy, and each tensor's type, shape, strides and device. The first call of a signature
compiles a program of one op by the native engine, or reads it from the store. Up to ``CAPACITY`` programs stay in memory; the least recently
used one is evicted. On a CUDA device the op is queued on the caller's stream, and the call does not wait for it. Calls are safe from
several threads.

Tensors are read in place if they are dense in some order of their dims (a transpose, ``channels_last``) or broadcast (``expand``). Others
(slices with gaps, reversed ones) are first copied by their own library. Results are dense and row-major. Gradients are not computed: a
tensor that requires a gradient is refused unless gradients are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...arguments import check_count
from ...errors import InputError
from ...policies import with_policy as use
from .calls import CAPACITY, call, clear, counters
from .explained import Explained, OpRequest

__all__ = [
    "CAPACITY",
    "attention",
    "clear",
    "conv2d",
    "counters",
    "explain",
    "layer_norm",
    "matmul",
    "rms_norm",
    "silu_mul",
    "softmax",
    "use",
]


def matmul(a: Any, b: Any, *, out: Any = None, policy: Any = None) -> Any:
    """Return ``a @ b`` with the rules of NumPy and PyTorch: batches broadcast, a vector is a row on the left and a column on the right.

    a: [..., m, k], b: [..., k, n] of one dtype; gives [..., m, n].
    out:    a dense tensor for the result, which must not overlap an operand; it is returned.
    policy: a KernelPolicy or another argument of ``load_policy``; it takes precedence over the enclosing ``use`` blocks.

    Raises InputError for invalid operands, KernelUnavailable, BuildError, RunError. Every op takes ``out`` and ``policy`` and raises these errors.
    """
    return call("matmul", (), (a, b), out, policy)


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    causal: bool = False,
    causal_offset: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    out: Any = None,
    policy: Any = None,
) -> Any:
    """Return ``softmax(q @ k.T * scale + mask) @ v`` per head. ``scale`` None means 1/sqrt(size).

    q: [batch, heads, queries, size], k: [batch, kv heads, keys, size], v: [batch, kv heads, keys, size of v]; the heads of k and v divide
    those of q (grouped queries). mask: broadcasts to [batch, heads, queries, keys]; a bool mask keeps where true, a float one is added.
    causal: query i sees keys up to i + causal_offset. softcap: c * tanh(scores / c) unless it is 0. Returns [batch, heads, queries, size of v].
    """
    return call("attention", (causal, causal_offset, scale, softcap), (q, k, v, mask), out, policy)


def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    normalized_shape: Sequence[int] | int | None = None,
    eps: float = 1e-5,
    out: Any = None,
    policy: Any = None,
) -> Any:
    """Return ``(x - mean) / sqrt(variance + eps) * weight + bias`` over the last dims: ``normalized_shape``, else the weight's, else one."""
    dims = _dims("layer_norm", normalized_shape)
    return call("layer_norm", (dims, eps), (x, weight, bias), out, policy)


def rms_norm(
    x: Any,
    weight: Any = None,
    *,
    normalized_shape: Sequence[int] | int | None = None,
    eps: float = 1e-6,
    out: Any = None,
    policy: Any = None,
) -> Any:
    """Return ``x / sqrt(mean(x * x) + eps) * weight`` over the last dims, as in ``layer_norm``."""
    dims = _dims("rms_norm", normalized_shape)
    return call("rms_norm", (dims, eps), (x, weight), out, policy)


def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    out: Any = None,
    policy: Any = None,
) -> Any:
    """Return the 2-d convolution of x.

    x: [n, channels, height, width], weight: [out, channels / groups, kernel height, kernel width], bias: [out].

    stride, padding, dilation: one number, or one for height and one for width. Returns [n, out, height, width].
    """
    sizes = (_pair(stride), _pair(padding), _pair(dilation), groups)
    return call("conv2d", sizes, (x, weight, bias), out, policy)


def softmax(x: Any, dim: int = -1, *, out: Any = None, policy: Any = None) -> Any:
    """Return ``exp(x) / sum(exp(x))`` along ``dim``, after subtracting the largest element."""
    return call("softmax", (dim,), (x,), out, policy)


def silu_mul(gate: Any, up: Any, *, out: Any = None, policy: Any = None) -> Any:
    """Return ``gate * sigmoid(gate) * up``, the gate of SwiGLU layers. The two broadcast."""
    return call("silu_mul", (), (gate, up), out, policy)


def explain(op: str, *operands: Any, policy: Any = None, **attributes: Any) -> Explained:
    """Return the kernels of a call, the rejected ones with reasons, and the program's origin. The call is prepared, not run.

    op: the name of one of these functions; operands and attributes as for that function.
    """
    explained: Explained = globals()[OpRequest.checked(op)](*operands, policy=OpRequest(policy), **attributes)
    return explained


def _pair(value: int | Sequence[int]) -> tuple[int, ...]:
    try:
        return (value, value) if isinstance(value, int) else tuple(value)
    except TypeError as error:
        raise InputError(
            "ops.conv2d",
            "takes one number or two",
            got=type(value).__name__,
            do="Give an int, or a pair of ints.",
        ) from error


def _dims(op: str, shape: Sequence[int] | int | None) -> tuple[int, ...] | None:
    """Return the last dims that a norm reduces. As in PyTorch, one number is one dim. Raises InputError."""
    if shape is None:
        return None
    dims = shape if isinstance(shape, list | tuple) else (shape,)
    return tuple(check_count(f"ops.{op}", "normalized_shape", size) for size in dims)
