"""Calls of every training op with PyTorch's function of the same meaning, for tests of values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

import xpuruntime.pytorch as xrt_torch
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


def _conv(
    rank: int, transposed: bool = False, **options: Any
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    function = getattr(F, f"conv{'_transpose' if transposed else ''}{rank}d")
    return (
        lambda *operands: ops.convolution(*operands, **options, transposed=transposed),
        lambda *operands: function(*operands, **options),
    )


def _pool(
    kind: str, kernel: Sequence[int], **options: Any
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    function = getattr(F, f"{kind}_pool{len(kernel)}d")
    mine = ops.max_pool if kind == "max" else ops.avg_pool

    def torch_run(x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32) if kind == "avg" else x.dtype  # some are missing
        return function(x.to(wide), kernel, **options).to(x.dtype)

    return lambda x: mine(x, kernel, **options), torch_run


def _batch_norm(training: bool) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    def running(x: Tensor) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(x.dtype, torch.float32)
        steps = torch.arange(x.shape[1], device=x.device, dtype=wide)
        return steps / 4 - 1, steps / 8 + 0.5

    def parameters(x: Tensor, rest: tuple[Tensor, ...]) -> list[Tensor]:
        return [p.to(torch.promote_types(x.dtype, torch.float32)) for p in rest]

    return (
        lambda x, *rest: ops.batch_norm(x, *running(x), *parameters(x, rest), training=training),
        lambda x, *rest: F.batch_norm(x, *running(x), *parameters(x, rest), training=training),
    )


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
WINDOW_CASES: tuple[OpCase, ...] = (
    OpCase("conv1d", *_conv(1, padding=1), [(2, 3, 11), (5, 3, 3), (5,)], "conv"),
    OpCase("conv1d_dilated", *_conv(1, stride=2, padding=2, dilation=2), [(3, 4, 17), (6, 4, 3), (6,)], "conv"),
    OpCase("conv2d", *_conv(2, padding=1), [(2, 3, 9, 7), (8, 3, 3, 3), (8,)], "conv"),
    OpCase("conv2d_strided", *_conv(2, stride=(2, 3), padding=(1, 0)), [(2, 3, 10, 11), (5, 3, 3, 2)], "conv"),
    OpCase("conv2d_dilated", *_conv(2, dilation=(2, 1), padding=2), [(1, 2, 9, 8), (3, 2, 3, 3), (3,)], "conv"),
    OpCase("conv2d_groups", *_conv(2, groups=2, stride=2), [(2, 4, 8, 9), (6, 2, 3, 3), (6,)], "conv"),
    OpCase("conv2d_depthwise", *_conv(2, groups=4, padding=1), [(2, 4, 6, 7), (4, 1, 3, 3), (4,)], "conv"),
    OpCase("conv2d_pointwise", *_conv(2), [(3, 7, 5, 4), (6, 7, 1, 1), (6,)], "conv"),
    OpCase("conv2d_same", lambda *t: ops.convolution(*t, padding="same"), lambda x, *t: F.conv2d(F.pad(x, (1, 2, 0, 1)), *t), [(2, 3, 6, 5), (4, 3, 2, 4), (4,)], "conv"),
    OpCase("conv2d_stride_over_window", *_conv(2, stride=3), [(2, 3, 9, 8), (4, 3, 2, 1)], "conv"),
    OpCase("conv2d_one_image", *_conv(2, padding=1), [(3, 5, 6), (4, 3, 3, 3), (4,)], "conv"),
    OpCase("conv3d", *_conv(3, padding=1, stride=2), [(1, 2, 5, 4, 6), (3, 2, 3, 2, 3), (3,)], "conv"),
    OpCase("conv_transpose1d", *_conv(1, True, stride=2, padding=1, output_padding=1), [(2, 4, 6), (4, 3, 3), (3,)], "conv"),
    OpCase("conv_transpose2d", *_conv(2, True, stride=(2, 1), padding=1), [(2, 3, 4, 5), (3, 5, 3, 3), (5,)], "conv"),
    OpCase("conv_transpose2d_groups", *_conv(2, True, groups=2, dilation=3, output_padding=2), [(1, 4, 3, 4), (4, 2, 2, 2), (4,)], "conv"),
    OpCase("max_pool1d", *_pool("max", [3], stride=2), [(2, 3, 11)], "pool"),
    OpCase("max_pool2d", *_pool("max", [3, 2], stride=2, padding=1), [(2, 3, 9, 8)], "pool"),
    OpCase("max_pool2d_ceil", *_pool("max", [2, 2], stride=3, ceil_mode=True), [(2, 3, 8, 9)], "pool"),
    OpCase("max_pool2d_dilated", *_pool("max", [2, 3], stride=1, dilation=2), [(3, 7, 8)], "pool"),
    OpCase("max_pool3d", *_pool("max", [2, 2, 2]), [(1, 2, 4, 5, 6)], "pool"),
    OpCase("avg_pool1d", *_pool("avg", [3], stride=2, padding=1), [(2, 3, 10)], "pool"),
    OpCase("avg_pool2d", *_pool("avg", [3, 3], stride=2, padding=1), [(2, 3, 9, 8)], "pool"),
    OpCase("avg_pool2d_ceil", *_pool("avg", [2, 3], stride=2, padding=1, ceil_mode=True), [(2, 3, 7, 8)], "pool"),
    OpCase("avg_pool2d_without_pads", *_pool("avg", [3, 2], padding=1, ceil_mode=True, count_include_pad=False), [(3, 8, 7)], "pool"),
    OpCase("avg_pool2d_divisor", *_pool("avg", [3, 3], stride=4, divisor_override=5), [(2, 2, 8, 9)], "pool"),
    OpCase("avg_pool3d", *_pool("avg", [2, 1, 2]), [(1, 2, 4, 3, 6)], "pool"),
    OpCase("batch_norm", *_batch_norm(True), [(4, 3, 5, 6), (3,), (3,)], "norm"),
    OpCase("batch_norm_rows", *_batch_norm(True), [(17, 5), (5,), (5,)], "norm"),
    OpCase("batch_norm_plain", *_batch_norm(True), [(3, 4, 7)], "norm"),
    OpCase("batch_norm_given_statistics", *_batch_norm(False), [(4, 3, 5, 6), (3,), (3,)], "norm"),
)  # fmt: skip
"""Convolutions, pools and batch norm."""
FIRST_ORDER = ("linear_cross_entropy", "linear_cross_entropy_sum")
"""Ops without gradients of second order."""


def gradients(run: Callable[..., Tensor], operands: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Return the result and the gradients of every operand."""
    y = run(*operands)
    return [y.detach(), *torch.autograd.grad(y, operands, grad.to(y))]


def assert_near_float64(case: OpCase, dtype: torch.dtype, device: str) -> None:
    """Assert that the root mean square error of results and gradients is at most twice that of PyTorch, or half a unit in the last place of
    a typical value, and that programs computed them.
    """
    operands = case.operands(dtype, device)
    exact_operands = [t.detach().double().requires_grad_() for t in operands]
    shape = case.torch_run(*exact_operands).shape
    grad = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype).to(device)
    exact = gradients(case.torch_run, exact_operands, grad.double())
    theirs = gradients(case.torch_run, operands, grad)
    with xrt_torch.record() as record:
        ours = gradients(case.run, operands, grad)
    assert record.fallbacks == {}
    assert record.kernels("train_forward") or case.name in FIRST_ORDER  # one pass computes both
    assert record.kernels("train_backward")
    chains = _LONG_CHAINS | (
        {(case.name, 3): 1.5} if case.family == "conv" else {}
    )  # the gradient of a bias is one sum
    for i, (mine, other, true) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert mine.dtype is other.dtype
        assert mine.shape == true.shape
        typical = chains.get((case.name, i), 0.5) if true.dim() else 2  # one number is no typical value
        bound = max(2 * rms(other - true), typical * _ULPS[mine.dtype] * rms(true))
        assert rms(mine - true) <= bound, f"result {i}: {rms(mine - true)} is over {bound}"


_LONG_CHAINS = {("conv2d_pointwise", 2): 1.5}
"""Case and result -> units in the last place, where one chain of additions has up to 2.4 times the error of PyTorch's several sums."""
_ULPS = {torch.float32: 2**-23, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def rms(value: Tensor) -> float:
    """Return the root of the mean square; 0 for an empty tensor."""
    return float(value.double().square().mean().sqrt()) if value.numel() else 0.0


def named(cases: Sequence[OpCase]) -> dict[str, Any]:
    """Return the arguments of ``pytest.mark.parametrize`` for cases."""
    return {"argnames": "case", "argvalues": cases, "ids": [c.name for c in cases]}
