"""Calls of every training op with PyTorch's function of the same meaning, for tests of values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from xpuruntime.pytorch import ops

Tensor = torch.Tensor
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
    "silu": F.silu,
}


@dataclass(frozen=True)
class OpCase:
    """``run`` and ``torch_run`` take the same tensors; ``shapes`` are those of the operands with gradients.

    scale: of the operands. kink: the op has no derivative somewhere, so that numerical gradients need operands away from it.
    """

    name: str
    run: Callable[..., Tensor]
    torch_run: Callable[..., Tensor]
    shapes: Sequence[Sequence[int]]
    family: str = ""
    scale: float = 1.0

    def operands(self, dtype: torch.dtype, device: str, seed: int = 0) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        drawn = [torch.randn(*s, generator=generator, dtype=torch.float64) * self.scale for s in self.shapes]
        return [t.to(dtype).to(device).requires_grad_() for t in drawn]


def _rope(interleaved: bool) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def tables(x: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.arange(x.shape[-2])[:, None] / 10.0 ** (torch.arange(x.shape[-1] // 2) / 4)
        return angles.cos().to(x), angles.sin().to(x)

    def run(x: Tensor) -> Tensor:
        return ops.rope(x, *tables(x), interleaved=interleaved)

    def torch_run(x: Tensor) -> Tensor:
        cos, sin = tables(x)
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        pair = a * cos - b * sin, b * cos + a * sin
        return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)

    return run, torch_run


def _embedding(rows: int, padding: int | None) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def indices(weight: Tensor) -> Tensor:
        return torch.tensor([[0, 3, 3], [rows - 1, 1, 3]], device=weight.device)

    return (
        lambda w: ops.embedding(indices(w), w, padding),
        lambda w: F.embedding(indices(w), w, padding),
    )


def _attention(
    gqa: bool = False, causal: bool = False, scale: float | None = None, mask: str = ""
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """mask: ``bool`` with a query that sees nothing, or ``float`` per key."""

    def mask_of(q: Tensor, k: Tensor) -> Tensor | None:
        key = torch.arange(k.shape[-2], device=q.device)
        if mask == "bool":
            query = torch.arange(q.shape[-2], device=q.device)[:, None]
            return ((query * 7 + key * 3) % 5 < 3) & (query != 1)
        sample = torch.arange(q.shape[0], device=q.device).reshape(-1, 1, 1, 1)
        return ((key * 5 + sample * 3) % 8 / 4 - 1).to(q.dtype) if mask else None

    return (
        lambda q, k, v: ops.attention(q, k, v, causal, scale, gqa, mask_of(q, k)),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, mask_of(q, k), is_causal=causal, scale=scale, enable_gqa=gqa
        ),
    )


def _linear(word: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    return (
        lambda x, w, b: ops.linear(x, w, b, word),
        lambda x, w, b: _ACTIVATIONS[word](F.linear(x, w, b)),
    )


def _head(reduction: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def target(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[0] * x.shape[1], device=x.device).view(x.shape[:2]) * 7 % 45
        places[0, 1] = -100
        return places

    def torch_run(x: Tensor, w: Tensor) -> Tensor:
        logits = F.linear(x, w).to(torch.promote_types(x.dtype, torch.float32))
        return F.cross_entropy(logits.flatten(0, 1), target(x).flatten(), reduction=reduction)

    return lambda x, w: ops.linear_cross_entropy(x, w, target(x), reduction=reduction), torch_run


CASES: tuple[OpCase, ...] = (
    OpCase("layer_norm", lambda x, w, b: ops.layer_norm(x, x.shape[-1], w, b), lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), [(3, 5, 33), (33,), (33,)], "norm"),
    OpCase("layer_norm_no_bias", lambda x, w: ops.layer_norm(x, x.shape[-1], w), lambda x, w: F.layer_norm(x, x.shape[-1:], w), [(7, 64), (64,)], "norm"),
    OpCase("layer_norm_plain", lambda x: ops.layer_norm(x, x.shape[-1]), lambda x: F.layer_norm(x, x.shape[-1:]), [(2, 3, 17)], "norm"),
    OpCase("layer_norm_2_dims", lambda x, w, b: ops.layer_norm(x, x.shape[-2:], w, b), lambda x, w, b: F.layer_norm(x, x.shape[-2:], w, b), [(3, 5, 6), (5, 6), (5, 6)], "norm"),
    OpCase("rms_norm", lambda x, w: ops.rms_norm(x, x.shape[-1], w, 1e-6), lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), [(4, 9, 40), (40,)], "norm"),
    OpCase("rms_norm_plain", lambda x: ops.rms_norm(x, x.shape[-1], None, 1e-5), lambda x: F.rms_norm(x, x.shape[-1:], None, 1e-5), [(5, 31)], "norm"),
    OpCase("softmax", lambda x: ops.softmax(x), lambda x: F.softmax(x, -1), [(3, 4, 37)], "softmax", 3.0),
    OpCase("softmax_first_dim", lambda x: ops.softmax(x, 0), lambda x: F.softmax(x, 0), [(5, 8)], "softmax", 3.0),
    OpCase("swiglu", ops.swiglu, lambda a, b: F.silu(a) * b, [(3, 41), (3, 41)], "activation"),
    OpCase("geglu", ops.geglu, lambda a, b: F.gelu(a) * b, [(3, 41), (3, 41)], "activation"),
    OpCase("geglu_tanh", lambda a, b: ops.geglu(a, b, "tanh"), lambda a, b: F.gelu(a, approximate="tanh") * b, [(2, 3, 8), (2, 3, 8)], "activation"),
    OpCase("rope", *_rope(False), [(2, 3, 5, 16)], "rope"),
    OpCase("rope_interleaved", *_rope(True), [(2, 7, 8)], "rope"),
    *(OpCase(f"linear_{word}", *_linear(word), [(3, 5, 24), (10, 24), (10,)], "matmul") for word in _ACTIVATIONS),
    OpCase("linear_no_bias", lambda x, w: ops.linear(x, w), F.linear, [(9, 16), (5, 16)], "matmul"),
    OpCase("linear_vector", lambda x, w: ops.linear(x, w), F.linear, [(16,), (5, 16)], "matmul"),
    OpCase("matmul", ops.matmul, torch.matmul, [(7, 12), (12, 5)], "matmul"),
    OpCase("matmul_broadcast", ops.matmul, torch.matmul, [(2, 1, 7, 12), (3, 12, 5)], "matmul"),
    OpCase("matmul_batch_of_one_side", ops.matmul, torch.matmul, [(2, 3, 7, 12), (12, 5)], "matmul"),
    OpCase("matmul_vector", ops.matmul, torch.matmul, [(12,), (12, 5)], "matmul"),
    OpCase("attention", *_attention(), [(2, 3, 37, 64), (2, 3, 29, 64), (2, 3, 29, 64)], "attention"),
    OpCase("attention_causal", *_attention(causal=True), [(1, 2, 70, 32), (1, 2, 70, 32), (1, 2, 70, 32)], "attention"),
    OpCase("attention_causal_more_keys", *_attention(causal=True), [(1, 2, 33, 16), (1, 2, 70, 16), (1, 2, 70, 24)], "attention"),
    OpCase("attention_causal_more_queries", *_attention(causal=True, scale=0.3), [(1, 2, 70, 20), (1, 2, 33, 20), (1, 2, 33, 20)], "attention"),
    OpCase("attention_grouped", *_attention(gqa=True, causal=True), [(2, 6, 19, 40), (2, 2, 19, 40), (2, 2, 19, 40)], "attention"),
    OpCase("attention_wide_heads", *_attention(gqa=True), [(1, 2, 67, 128), (1, 1, 65, 128), (1, 1, 65, 128)], "attention"),
    OpCase("attention_very_wide_heads", *_attention(causal=True), [(1, 1, 9, 256), (1, 1, 9, 256), (1, 1, 9, 256)], "attention"),
    OpCase("attention_one_head", *_attention(), [(3, 5, 8), (3, 7, 8), (3, 7, 8)], "attention"),
    OpCase("attention_bool_mask", *_attention(mask="bool"), [(2, 2, 9, 16), (2, 2, 11, 16), (2, 2, 11, 16)], "attention"),
    OpCase("attention_float_mask", *_attention(gqa=True, mask="float"), [(2, 4, 9, 16), (2, 2, 11, 16), (2, 2, 11, 16)], "attention"),
    OpCase("embedding", *_embedding(7, None), [(7, 12)], "embedding"),
    OpCase("embedding_padding", *_embedding(7, 3), [(7, 12)], "embedding"),
    OpCase("linear_cross_entropy", *_head("mean"), [(3, 5, 24), (45, 24)], "matmul"),
    OpCase("linear_cross_entropy_sum", *_head("sum"), [(3, 5, 24), (45, 24)], "matmul"),
)  # fmt: skip
FIRST_ORDER = ("linear_cross_entropy", "linear_cross_entropy_sum")
"""Ops without gradients of second order."""


def gradients(run: Callable[..., Tensor], operands: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Return the result and the gradients of every operand."""
    y = run(*operands)
    return [y.detach(), *torch.autograd.grad(y, operands, grad.to(y))]


def rms(value: Tensor) -> float:
    """Return the root of the mean square; 0 for an empty tensor."""
    return float(value.double().square().mean().sqrt()) if value.numel() else 0.0


def named(cases: Sequence[OpCase]) -> dict[str, Any]:
    """Return the arguments of ``pytest.mark.parametrize`` for cases."""
    return {"argnames": "case", "argvalues": cases, "ids": [c.name for c in cases]}
