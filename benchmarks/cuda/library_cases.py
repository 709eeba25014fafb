"""Cases of library kernels, our convolutions and attention on CUDA: one node each, with a float64 reference and PyTorch's own kernel.

``cases`` are matrix products and convolutions, ``attention_cases`` cuDNN's attention and ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch

__all__ = ["Case", "attention_cases", "cases", "tensor"]

F = torch.nn.functional
rng = np.random.default_rng(5)


def array(shape: Sequence[int], dtype: str, scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Return random values in a dtype."""
    values = rng.standard_normal(shape) * scale
    return values.astype(getattr(ml_dtypes, dtype, dtype))


def tensor(x: np.ndarray[Any, Any]) -> torch.Tensor:
    """Copy an array to the device."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(x).cuda()


@dataclass
class Case:
    """One node: its operands, the policy that pins its kernel (``family``: ``word``), and PyTorch's reference and kernel.

    weights: positions of the operands that are weights, one digit each.
    """

    op: str
    operands: list[Any]
    weights: str
    family: str
    word: str
    reference: Callable[..., torch.Tensor]
    attrs: dict[str, Any] = field(default_factory=dict)
    change: dict[str, Any] = field(default_factory=dict)
    flops: int = 0
    time: bool = False
    peer: Callable[..., torch.Tensor] | None = None
    swapped: bool = False
    """The two middle dims of operands and result are swapped in memory."""
    repeat: int = 1
    """Number of chained nodes in the timed program, so that its launch does not dominate."""

    @property
    def name(self) -> str:
        shapes = " ".join(str(list(x.shape)) for x in self.operands if x is not None)
        attrs = " ".join(
            f"{k}={v}" for k, v in (self.attrs | self.change).items() if v is True or v not in (1, False)
        )
        more = " turned" if self.swapped else ""
        return f"{self.family}/{self.word} {self.op} {shapes} {self.operands[0].dtype.name} {attrs}{more}"


def act(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return PyTorch's function of an activation."""
    table = {"none": lambda y: y, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"), "relu6": F.relu6}
    return table.get(name) or getattr(F, name)


def linear(
    shape: Sequence[int], n: int, dtype: str, word: str, more: str = "", name: str = "none", **options: Any
) -> Case:
    """Return a fused linear layer. ``more`` names its optional operands: ``bias``, ``residual``."""
    k = shape[-1]
    operands = [array(shape, dtype), array((n, k), dtype, k**-0.5), array((n,), dtype) if "bias" in more else None,
                array((*shape[:-1], n), dtype) if "residual" in more else None]  # fmt: skip

    def reference(x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        y = F.linear(x, w, bias)
        return act(name)(y if residual is None else y + residual)

    return Case("fused_linear", operands, "12", "matmul", word, reference, {"act": name}, flops=2 * int(np.prod(shape)) * n,
                peer=lambda x, w, bias=None, residual=None: F.linear(x, w, bias), **options)  # fmt: skip


def conv(
    x: Sequence[int], w: Sequence[int], dtype: str, word: str, more: str = "bias", name: str = "relu", stride: int = 1, groups: int = 1,
    **options: Any,
) -> Case:  # fmt: skip
    """Return a fused convolution, padded to keep its size."""
    pad = w[2] // 2
    place = (x[2] + 2 * pad - w[2]) // stride + 1
    k = int(np.prod(w[1:]))
    operands = [array(x, dtype), array(w, dtype, k**-0.5), array((w[0],), dtype) if "bias" in more else None,
                array((x[0], w[0], place, place), dtype) if "residual" in more else None]  # fmt: skip

    def reference(x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        y = F.conv2d(x, w, bias, stride, pad, 1, groups)
        return act(name)(y if residual is None else y + residual)

    def peer(x: Any, w: Any, bias: Any = None, residual: Any = None) -> Any:
        return F.conv2d(laid(x), laid(w), bias, stride, pad, 1, groups)

    cache: dict[int, Any] = {}

    def laid(x: Any) -> Any:
        return cache.setdefault(id(x), x.to(memory_format=torch.channels_last))

    attrs = {"stride": [stride] * 2, "padding": [pad] * 2, "dilation": [1, 1], "groups": groups, "act": name}
    return Case("fused_convolution", operands, "12", "conv", word, reference, attrs,
                flops=2 * x[0] * w[0] * place * place * k, peer=peer, **options)  # fmt: skip


@functools.cache
def normal(shape: tuple[int, ...], dtype: str, which: int) -> np.ndarray[Any, Any]:
    """Return random values; the same ones for every kernel."""
    return array(shape, dtype)


def attend(
    q: tuple[int, int, int, int], heads: int, keys: int, dtype: str, word: str, dv: int = 0, offset: int | None = None, scale: float | None = None,
    **options: Any,
) -> Case:  # fmt: skip
    """Return attention of queries [batch, head, position, element].

    offset: query i sees keys up to i + offset; None: all. PyTorch's cuDNN attention is timed where it computes the same.
    """
    batch, _, queries, d = q
    dv = dv or d
    operands = [
        normal(q, dtype, 0),
        normal((batch, heads, keys, d), dtype, 1),
        normal((batch, heads, keys, dv), dtype, 2),
    ]
    group = q[1] // heads
    attrs: dict[str, Any] = {} if offset is None else {"causal": True, "causal_offset": offset}
    attrs |= {} if scale is None else {"scale": scale}

    def reference(q: Any, k: Any, v: Any) -> Any:
        mask = None
        if offset is not None:
            mask = torch.ones(queries, keys, dtype=torch.bool, device="cuda").tril(offset)
        return F.scaled_dot_product_attention(
            q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), mask, scale=scale
        )

    def peer(q: Any, k: Any, v: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=offset == 0, enable_gqa=group > 1)

    flops = 2 * batch * q[1] * queries * keys * (d + dv) // (2 if offset == 0 and queries == keys else 1)
    return Case("attention", operands, "", "attention", word, reference, attrs, flops=flops,
                peer=peer if offset in (None, 0) and scale is None else None, **options)  # fmt: skip


def attention_cases() -> Iterator[Case]:
    """Yield odd lengths, groups, head sizes that are multiples of eight, and other layouts for cuDNN; then long ones timed next to ours.

    ``attention_sizes.py`` has the other sizes.
    """
    for dtype in ("bfloat16", "float16"):
        yield attend((2, 4, 130, 64), 2, 150, dtype, "cudnn")
        yield attend((2, 4, 130, 64), 2, 150, dtype, "cudnn", swapped=True)
        yield attend((2, 4, 515, 128), 1, 515, dtype, "cudnn", offset=0, swapped=True)
        yield attend((1, 2, 1000, 128), 2, 1000, dtype, "cudnn", offset=0, scale=0.3)
        yield attend((2, 2, 33, 40), 1, 90, dtype, "cudnn", dv=24, offset=57)
        yield attend((2, 2, 133, 96), 1, 300, dtype, "cudnn", offset=20)
        yield attend((2, 2, 300, 64), 1, 133, dtype, "cudnn", offset=0)
        yield attend((1, 2, 200, 256), 1, 200, dtype, "cudnn", offset=0)
        yield attend((2, 4, 1, 128), 2, 1100, dtype, "cudnn")
    yield attend((1, 2, 512, 128), 2, 512, "bfloat16", "cudnn", offset=0, change={"engine": 1})
    for shape, offset in (((4, 16, 4096, 128), 0), ((4, 16, 4096, 128), None), ((4, 16, 4096, 64), 0)):
        for word in ("cudnn", "flash_v2"):
            yield attend(shape, 16, 4096, "bfloat16", word, offset=offset, time=True, repeat=4)


def cases() -> Iterator[Case]:
    """Yield matrix products and convolutions."""
    for word in ("cublasLt", "cublas"):
        for dtype in ("float32", "bfloat16", "float16", "float64"):
            yield Case(
                "mm", [array((65, 80), dtype), array((80, 72), dtype)], "", "matmul", word, torch.matmul
            )
            yield Case(
                "bmm",
                [array((3, 40, 64), dtype), array((3, 64, 24), dtype)],
                "",
                "matmul",
                word,
                torch.matmul,
            )
            yield linear((2, 33, 64), 72, dtype, word, "bias residual", "relu")
        for name in ("none", "gelu", "gelu_tanh", "silu"):
            yield linear((100, 256), 512, "bfloat16", word, "bias", name)
        yield Case(
            "mm", [array((33, 37), "bfloat16"), array((37, 41), "bfloat16")], "", "matmul", word, torch.matmul
        )
        yield linear((4096, 4096), 4096, "bfloat16", word, time=True)
    yield linear((1024, 1536), 8960, "bfloat16", "cublasLt", "bias", "gelu_tanh", time=True)
    yield linear((4096, 4096), 4096, "float32", "cublasLt", time=True)
    for m, n, k in ((4096, 4096, 4096), (1024, 8960, 1536), (1024, 1536, 8960)):
        for choice in range(4):
            yield linear((m, k), n, "bfloat16", "cublasLt", change={"choice": choice}, time=True)
    yield linear((512, 1024), 1024, "bfloat16", "cublasLt", "bias", change={"algorithm": 66, "choice": 1})
    for word in ("cudnn", "implicit_gemm"):
        for dtype in ("bfloat16", "float16", "float32"):
            yield conv((2, 64, 28, 28), (64, 64, 3, 3), dtype, word)
            yield conv((2, 64, 28, 28), (256, 64, 1, 1), dtype, word, "bias residual")
            yield conv((2, 3, 56, 56), (64, 3, 7, 7), dtype, word, stride=2)
            yield conv((2, 64, 28, 28), (128, 64, 1, 1), dtype, word, "", "none", stride=2)
            yield conv((2, 32, 14, 14), (32, 1, 3, 3), dtype, word, "bias", "silu", groups=32)
            yield conv((2, 64, 14, 14), (64, 16, 3, 3), dtype, word, "bias", "silu", groups=4)
        for batch in (1, 32):
            yield conv((batch, 64, 56, 56), (64, 64, 3, 3), "float16", word, time=True)
            yield conv((batch, 256, 14, 14), (256, 256, 3, 3), "float16", word, time=True)
            yield conv((batch, 1024, 14, 14), (256, 1024, 1, 1), "float16", word, time=True)
            yield conv((batch, 512, 7, 7), (2048, 512, 1, 1), "float16", word, "bias residual", time=True)
            yield conv((batch, 3, 224, 224), (64, 3, 7, 7), "float16", word, stride=2, time=True)
        yield conv((32, 256, 14, 14), (256, 256, 3, 3), "float32", word, time=True)
