"""Cases of heavy CUDA kernels: GEMM, GEMV, attention and decode attention, each with a PyTorch reference and PyTorch kernels to compare times with.

``odd_cases`` check correctness, ``timed_cases`` are the shapes whose speed the documentation states, ``tuned_cases`` vary their tile configurations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from heavy_launch import node, random, target

from xpuruntime.kernels.cpu.attention.flash import AttentionShape
from xpuruntime.kernels.cuda.attention import decode
from xpuruntime.kernels.cuda.attention import flash as attention
from xpuruntime.kernels.cuda.matmul import gemv, quantized
from xpuruntime.kernels.cuda.matmul import generated as matmul
from xpuruntime.kernels.cuda.matmul import text as product_text
from xpuruntime.kernels.kernel import LoweredCall, NodeCall, Packed, Stage
from xpuruntime.kernels.spec.channel_codes import FP8
from xpuruntime.kernels.spec.matmul import product_of
from xpuruntime.program.program import WeightTransformRecipe
from xpuruntime.runtime.weights.int4 import int4_groups, int4_values
from xpuruntime.runtime.weights.recipes import run_recipe

__all__ = ["Case", "odd_cases", "timed_cases", "tuned_cases"]


@dataclass
class Case:
    """A lowered call with operands. ``reference`` takes float64 tensors; ``peers`` are PyTorch's kernels, timed for comparison.

    packed: buffers of the launch by name, such as quantized weights.
    """

    name: str
    lowered: LoweredCall
    operands: list[Any]
    out: tuple[int, ...]
    dtype: str
    reference: Callable[..., Any]
    peers: dict[str, Callable[..., Any]] = field(default_factory=dict)
    flops: int = 0
    bytes: int = 0
    time: bool = False
    tolerance: float | None = None
    packed: dict[str, Any] = field(default_factory=dict)


def product(
    row: Any, op: str, shapes: Sequence[Any], dtype: str, lower: Any = None, time: bool = False, **attrs: Any
) -> Case:
    """Return a case of a matrix product."""
    xs = [None if s is None else random(s, dtype) for s in shapes]
    if dtype in ("bfloat16", "float16", "float32"):
        xs[1] = xs[1] * (shapes[1][-1] ** -0.5)
    call = node(op, xs, (1,) if "linear" in op else (), **attrs)
    support = row.supports(call, target())
    assert support, support.reason
    lowered = row.lower(call, target()) if lower is None else LoweredCall((lower(call),))

    def reference(a: Any, b: Any, bias: Any = None, residual: Any = None) -> Any:
        y = a @ (b.T if "linear" in op else b)
        y = y if bias is None else y + bias
        y = y if residual is None else y + residual
        act = attrs.get("act", "none")
        if act == "gelu_tanh":
            return torch.nn.functional.gelu(y, approximate="tanh")
        return y if act == "none" else getattr(torch.nn.functional, act)(y)

    def peer(a: Any, b: Any, bias: Any = None, residual: Any = None) -> Any:
        if "linear" in op:
            return torch.nn.functional.linear(a, b, bias)
        return torch.matmul(a, b)

    p = product_of(call)
    peers = {"torch": peer} if time else {}
    return Case(f"{row.name} {op} {[list(s) for s in shapes if s]} {dtype}", lowered, xs, tuple(call.outputs[0].shape), dtype, reference, peers,
                2 * p.batches * p.m * p.n * p.k, sum(x.nbytes for x in xs if x is not None), time)  # fmt: skip


def attend(
    row: Any,
    q: Sequence[int],
    k: Sequence[int],
    dv: int,
    dtype: str,
    mask: Any = None,
    lower: Any = None,
    time: bool = False,
    **attrs: Any,
) -> Case:
    """Return a case of attention. Its reference is written out in float64."""
    xs = [random(q, dtype), random(k, dtype), random((*k[:3], dv), dtype), *([] if mask is None else [mask])]
    call = node("attention", xs, **attrs)
    support = row.supports(call, target())
    assert support, support.reason
    s = AttentionShape.of(call)
    lowered = row.lower(call, target()) if lower is None else LoweredCall((lower(call, s),))
    group = q[1] // k[1]

    def reference(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * s.scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
        if s.causal:
            i = torch.arange(s.queries, device="cuda")[:, None]
            scores = scores.masked_fill(torch.arange(s.keys, device="cuda")[None] > i + s.offset, -torch.inf)
        return torch.softmax(scores, -1).nan_to_num(0) @ v.repeat_interleave(group, 1)

    def sdpa(backend: Any) -> Callable[..., Any]:
        def work(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
            with torch.nn.attention.sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, mask, is_causal=s.causal and s.queries > 1, enable_gqa=group > 1
                )

        return work

    kinds = torch.nn.attention.SDPBackend
    peers = {}
    if time:
        names = (
            ("CUDNN_ATTENTION", "FLASH_ATTENTION")
            if mask is None
            else ("EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
        )
        peers = {n: sdpa(getattr(kinds, n)) for n in names}
    flops = s.flops // 2 if s.causal and s.queries == s.keys else s.flops
    return Case(f"{row.name} {list(q)} {list(k)} dv {dv} {dtype}{' causal' if s.causal else ''}{'' if mask is None else ' mask'}", lowered, xs,
                tuple(call.outputs[0].shape), dtype, reference, peers, flops, sum(x.nbytes for x in xs[:3]), time)  # fmt: skip


@cache
def quantized_weight(word: str, n: int, k: int, dtype: str, gated: bool) -> tuple[Any, dict[str, Any], Any]:
    """Return a weight, the kernel's buffers of it, and what its codes and scales say, on the device."""
    kernel = next(r for r in quantized.KERNELS if r.name == f"matmul/{word}").batch_invariant_form()
    given = random((n * (1 + gated), k), dtype) * k**-0.5
    call = node("norm_linear", [given[:1], given, None, None, None], (1,), gated=gated)
    lowered, weight = kernel.lower(call, target()), given.float().cpu().numpy()

    def packed(form: Packed) -> Any:
        recipe = WeightTransformRecipe("packed", form.spec, "x1", form.steps)
        array = np.ascontiguousarray(run_recipe(recipe, {"x1": weight}))
        raw = (
            array.view(np.int8) if form.spec.dtype is FP8.dtype else array
        )  # PyTorch does not know ml_dtypes
        return torch.from_numpy(raw).cuda()

    forms = {"in1": lowered.weights[1]} | {at: form for at, (_, form) in lowered.extra_weights.items()}
    buffers = {at: packed(form) for at, form in forms.items()}
    if kernel.form:
        group = kernel.form.group
        padded = np.pad(weight, ((0, 0), (0, -k % group)))
        exact = torch.from_numpy(int4_values(int4_groups(padded, group), group)[:, :k].copy()).cuda()
    else:
        scale = buffers["extra0"][:, None].double()
        if kernel.codes is FP8:
            codes = (given.float() / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn).double()
        else:
            codes = (given.double() / scale).round()
        exact = (codes * scale).float()
    return given, buffers, exact


def quantized_layer(
    word: str, m: int, n: int, k: int, dtype: str = "bfloat16", *, gated: bool = False, norm: bool = False, lower: Any = None, time: bool = False
) -> Case:  # fmt: skip
    """Return a case of a linear layer with weights of fewer bits, next to PyTorch's product with the same weights in ``dtype``."""
    kernel = next(r for r in quantized.KERNELS if r.name == f"matmul/{word}").batch_invariant_form()
    rows = n * (1 + gated)
    xs = [random((m, k), dtype), torch.empty((rows, k), dtype=getattr(torch, dtype), device="cuda")]
    op, extras, attrs = "linear", (), {}
    if norm or gated:
        op, extras = "norm_linear", (None, None, random((k,), dtype) if norm else None)
        attrs = {"act": "silu" if gated else "none", "eps": 1e-6, "gated": gated}
    call = node(op, [*xs, *extras], (1, 4) if norm else (1,), **attrs)
    support = kernel.supports(call, target())
    assert support, support.reason
    lowered = kernel.lower(call, target())
    if lower is not None:
        lowered = replace(lowered, stages=(lower(call, kernel),), temps=())
    xs[1], buffers, exact = quantized_weight(word, n, k, dtype, gated)

    def reference(a: Any, _: Any, *rest: Any) -> Any:
        scale = rest[2] if norm else None
        if scale is not None:
            a = a * (a.square().mean(1, keepdim=True) + 1e-6).rsqrt() * scale
        y = a @ exact.double().T
        return torch.nn.functional.silu(y[:, :n]) * y[:, n:] if gated else y

    label = f"{kernel.name} {m}x{n}x{k} {dtype}{' gated' if gated else ''}{' norm' if norm else ''}"
    peers = {"torch": lambda a, b, *_: torch.nn.functional.linear(a, b)} if time else {}
    size = sum(x.nbytes for x in (xs[0], *buffers.values()))
    tolerance = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.2e-2}[dtype] * (2 if gated else 1)
    return Case(
        label,
        lowered,
        [*xs, *extras],
        (m, n),
        dtype,
        reference,
        peers,
        2 * m * rows * k,
        size,
        time,
        tolerance,
        buffers,
    )


QUANTIZED = ("int8_weights", "fp8_weights", "int4_weights", "int4_weights_64", "int4_weights_128")
DECODER: tuple[tuple[int, int, dict[str, bool]], ...] = (
    (2048, 1536, {"norm": True}), (1536, 1536, {}), (8960, 1536, {"gated": True, "norm": True}), (1536, 8960, {}), (32768, 1536, {"norm": True}),
)  # fmt: skip
"""Products of a decoder of Qwen2.5-1.5B's sizes: outputs, inputs, and what is fused; fewer logits."""


def quantized_odd_cases() -> Iterator[Callable[[], Case]]:
    """Yield layers with weights of fewer bits that check correctness."""
    for word in QUANTIZED:
        for m, n, k, dtype in (
            (1, 70, 264, "bfloat16"), (2, 333, 1001, "float16"), (8, 1000, 640, "bfloat16"), (13, 200, 1544, "float16"), (3, 77, 530, "float32"),
            (40, 130, 1000, "bfloat16"), (129, 70, 264, "float16"), (70, 50, 130, "float32"),
        ):  # fmt: skip
            yield lambda w=word, m=m, n=n, k=k, d=dtype: quantized_layer(w, m, n, k, d)
        for m, gated in ((1, True), (16, False), (7, True)):
            yield lambda w=word, m=m, g=gated: quantized_layer(w, m, 520, 1544, gated=g, norm=True)


def quantized_timed_cases() -> Iterator[Callable[[], Case]]:
    """Yield the products of a decoder with weights of fewer bits."""
    for word in ("int8_weights", "fp8_weights", "int4_weights", "int4_weights_128"):
        for m in (1, 8, 16):
            for n, k, more in DECODER:
                yield lambda w=word, m=m, n=n, k=k, more=more: quantized_layer(w, m, n, k, time=True, **more)
        for m in (64, 1024):
            for n, k in ((8960, 1536), (1536, 8960)):
                yield lambda w=word, m=m, n=n, k=k: quantized_layer(w, m, n, k, time=True)


def quantized_tuned_cases() -> Iterator[Callable[[], Case]]:
    """Yield the same products with other configurations, and with both kernels around the number of rows where they change."""

    def cut(
        word: str, m: int, n: int, k: int, config: quantized.QuantizedConfig, more: dict[str, bool]
    ) -> Case:
        label = ", ".join(map(str, astuple(config)))
        lower = lambda call, kernel: quantized.quantized_stage(call, kernel.form, config, kernel.codes)  # noqa: E731
        return renamed(
            label, without_peers("", quantized_layer(word, m, n, k, lower=lower, time=True, **more))
        )

    for word in ("int4_weights", "int8_weights"):
        for m in (1, 8, 16):
            for n, k, more in DECODER:
                many = n > 20000
                for split, stages, blocks in ((4, 3, 2), (6, 3, 2), (8, 3, 2), (12, 3, 1)):
                    for per in (4, 8, 16) if many else (1,) if n < 8000 else (1, 2):
                        config = quantized.QuantizedConfig(
                            min(m, 8 if k > 2000 else 16), split, stages, per, blocks
                        )
                        yield lambda w=word, m=m, n=n, k=k, more=more, c=config: cut(w, m, n, k, c, more)
        for n, k, _ in DECODER[2:4]:
            config = quantized.QuantizedConfig(8 if k > 2000 else 16, 8, 3)
            yield lambda w=word, n=n, k=k, c=config: cut(w, 32, n, k, c, {})
            for m in (32, 128):
                yield lambda w=word, m=m, n=n, k=k: quantized_layer(w, m, n, k, time=True)
            yield lambda w=word, n=n, k=k: widened(quantized_layer(w, 64, n, k, time=True))


def widened(case: Case) -> Case:
    """Keep only the stage that writes the weight as floats."""
    case.lowered = replace(case.lowered, stages=case.lowered.stages[:1])
    case.flops = 10**18  # there is no product to compare
    return renamed("the weight as floats", without_peers("", case))


def renamed(what: str, case: Case) -> Case:
    """Append ``what`` to the case's name."""
    case.name += " " + what
    return case


def without_peers(what: str, case: Case) -> Case:
    """Append ``what`` to the case's name, and remove its peers."""
    case.name += " " + what
    case.peers = {}
    return case


def odd_cases() -> Iterator[Callable[[], Case]]:
    """Yield cases that check correctness: odd shapes, every dtype, masks, epilogues."""
    gemm, few = matmul.Generated(), gemv.Gemv()
    for dtype in ("bfloat16", "float16", "float32"):
        yield lambda d=dtype: product(gemm, "mm", [(65, 80), (80, 72)], d)
        yield lambda d=dtype: product(gemm, "mm", [(33, 37), (37, 41)], d)
        yield lambda d=dtype: product(gemm, "bmm", [(3, 130, 200), (3, 200, 136)], d)
        yield lambda d=dtype: product(
            gemm, "fused_linear", [(2, 133, 264), (520, 264), (520,), (2, 133, 520)], d, act="gelu"
        )
        yield lambda d=dtype: product(gemm, "fused_linear", [(1000, 512), (776, 512), (776,)], d, act="silu")
        yield lambda d=dtype: product(
            few, "fused_linear", [(1, 1000), (333, 1000), (333,), (1, 333)], d, act="relu"
        )
        yield lambda d=dtype: product(few, "linear", [(3, 264), (130, 264)], d)
        yield lambda d=dtype: product(few, "linear", [(2, 77), (50, 77)], d)
    yield lambda: product(gemm, "mm", [(65, 80), (80, 72)], "float64")
    flash, dec = attention.FlashV2(), decode.FlashDecode()
    mask = torch.rand((1, 1, 33, 90), device="cuda") < 0.5
    for dtype in ("bfloat16", "float16"):
        yield lambda d=dtype: attend(flash, (2, 4, 130, 64), (2, 2, 150, 64), 64, d)
        yield lambda d=dtype: attend(flash, (2, 4, 1000, 128), (2, 4, 1000, 128), 128, d, causal=True)
        yield lambda d=dtype: attend(flash, (8, 32, 515, 128), (8, 8, 515, 128), 128, d, causal=True)
        yield lambda d=dtype: attend(
            flash, (2, 2, 33, 40), (2, 1, 90, 40), 24, d, causal=True, causal_offset=57
        )
        yield lambda d=dtype: attend(flash, (1, 2, 33, 20), (1, 1, 90, 20), 20, d, mask=mask)
        yield lambda d=dtype: attend(dec, (2, 12, 1, 128), (2, 2, 1100, 128), 128, d)
        yield lambda d=dtype: attend(
            dec, (1, 4, 3, 40), (1, 2, 300, 40), 24, d, causal=True, causal_offset=297
        )
        yield lambda d=dtype: attend(
            dec,
            (1, 4, 1, 64),
            (1, 2, 3000, 64),
            64,
            d,
            mask=torch.arange(3000, device="cuda").reshape(1, 1, 1, -1) < 999,
        )
    if target().sm.wgmma:

        def hopper(call: NodeCall, s: AttentionShape) -> Stage:
            return attention.flash_stage(call, s, target(), hopper=True)

        for dtype in ("bfloat16", "float16"):
            for q, k, dv, attrs in (
                ((1, 1, 128, 64), (1, 1, 128, 64), 64, {}),
                ((1, 2, 128, 128), (1, 2, 384, 128), 128, {}),
                ((2, 4, 300, 128), (2, 2, 515, 128), 128, {}),
                ((2, 4, 700, 64), (2, 2, 700, 64), 64, {"causal": True}),
                ((2, 4, 1000, 128), (2, 2, 1000, 128), 128, {"causal": True}),
                ((1, 2, 133, 80), (1, 1, 300, 80), 72, {"causal": True, "causal_offset": 167}),
                ((1, 2, 133, 100), (1, 1, 300, 100), 100, {"causal": True, "causal_offset": -40}),
                ((1, 2, 150, 36), (1, 1, 90, 36), 36, {"mask": torch.rand((1, 1, 150, 90), device="cuda") < 0.5}),
            ):  # fmt: skip
                yield lambda d=dtype, q=q, k=k, dv=dv, attrs=attrs: renamed(
                    "hopper", attend(flash, q, k, dv, d, lower=hopper, **attrs)
                )
    yield lambda: attend(attention.Naive(), (1, 2, 33, 20), (1, 1, 90, 20), 20, "float32", mask=mask)
    yield lambda: attend(attention.Naive(), (1, 2, 33, 20), (1, 1, 90, 20), 20, "float64", causal=True)
    yield from quantized_odd_cases()


def timed_cases() -> Iterator[Callable[[], Case]]:
    """Yield the shapes whose speed the documentation states."""
    yield from quantized_timed_cases()
    gemm, few = matmul.Generated(), gemv.Gemv()
    flash, dec = attention.FlashV2(), decode.FlashDecode()
    yield lambda: attend(
        flash, (4, 16, 4096, 128), (4, 16, 4096, 128), 128, "bfloat16", causal=True, time=True
    )
    yield lambda: attend(flash, (4, 16, 4096, 128), (4, 16, 4096, 128), 128, "bfloat16", time=True)
    yield lambda: attend(flash, (4, 16, 4096, 64), (4, 16, 4096, 64), 64, "bfloat16", causal=True, time=True)
    yield lambda: attend(
        flash, (1, 12, 1024, 128), (1, 2, 1024, 128), 128, "bfloat16", causal=True, time=True
    )
    for size in (64, 128):
        yield lambda size=size: without_peers("mma.sync", attend(
            flash, (4, 16, 4096, size), (4, 16, 4096, size), size, "bfloat16", causal=True, time=True,
            lower=lambda call, s: attention.flash_stage(call, s, target(), hopper=False)))  # fmt: skip
    yield lambda: attend(dec, (1, 12, 1, 128), (1, 2, 1024, 128), 128, "bfloat16", time=True)
    yield lambda: attend(dec, (1, 12, 1, 128), (1, 2, 4096, 128), 128, "bfloat16", time=True,
                         mask=torch.arange(4096, device="cuda").reshape(1, 1, 1, -1) < 1100)  # fmt: skip
    yield lambda: attend(dec, (1, 12, 1, 128), (1, 2, 32768, 128), 128, "bfloat16", time=True)
    yield lambda: attend(dec, (32, 12, 1, 128), (32, 2, 4096, 128), 128, "bfloat16", time=True)
    for n, k in ((17920, 1536), (1536, 8960), (2048, 1536), (1536, 1536), (151936, 1536), (8192, 8192)):
        yield lambda n=n, k=k: product(few, "linear", [(1, k), (n, k)], "bfloat16", time=True)
    yield lambda: product(few, "linear", [(4, 1536), (17920, 1536)], "bfloat16", time=True)
    yield lambda: product(few, "linear", [(1, 4096), (4096, 4096)], "float32", time=True)
    for m, n, k in (
        (4096, 4096, 4096),
        (8192, 8192, 8192),
        (1024, 8960, 1536),
        (1024, 1536, 8960),
        (64, 4096, 4096),
    ):
        yield lambda m=m, n=n, k=k: product(gemm, "linear", [(m, k), (n, k)], "bfloat16", time=True)
    yield lambda: product(gemm, "mm", [(4096, 4096), (4096, 4096)], "bfloat16", time=True)
    yield lambda: product(gemm, "mm", [(4096, 4096), (4096, 4096)], "float32", time=True)


def tuned_cases() -> Iterator[Callable[[], Case]]:
    """Yield other tile configurations of the same shapes."""
    yield from quantized_tuned_cases()
    flash, few, gemm = attention.FlashV2(), gemv.Gemv(), matmul.Generated()
    for block in (
        attention.FlashTileConfig(128, 64, 4),
        attention.FlashTileConfig(128, 32, 4),
        attention.FlashTileConfig(128, 64, 8),
        attention.FlashTileConfig(64, 64, 4),
    ):
        yield lambda b=block: without_peers(
            f"{b}", attend(flash, (4, 16, 4096, 128), (4, 16, 4096, 128), 128, "bfloat16", causal=True, time=True,
                           lower=lambda call, s: attention.flash_stage(call, s, target(), b)))  # fmt: skip
    for n, k in ((17920, 1536), (1536, 8960), (1536, 1536), (151936, 1536)):
        for c, split, ahead, per, far in itertools.product(
            (1, 2, 4), (1, 4, 7), (2, 3, 5, 6), (1, 2, 4, 6), (0, 1)
        ):
            turns = -(-k // (256 * split))
            blocks = -(-n // (c * per * (8 if split == 1 else 1)))
            if c * ahead > 12 or turns % ahead or not 132 <= blocks <= 800 or (far and per == 1):
                continue
            cut = gemv.GemvTileConfig(c, split, 8 if split == 1 else 1, ahead, per, far)
            yield lambda n=n, k=k, cut=cut: without_peers(
                f"{cut}", product(few, "linear", [(1, k), (n, k)], "bfloat16", time=True,
                                  lower=lambda call: gemv.gemv_stage(call, cut)))  # fmt: skip
    for tile in (
        *matmul.TILES[:2],
        matmul.Tile(128, 256, 2, 4, 4),
        matmul.Tile(128, 128, 2, 2, 4),
        matmul.Tile(128, 128, 2, 4, 3),
    ):

        def lower(call: NodeCall, t: Any = tile) -> Stage:
            p = product_of(call).flat()
            sides = product_text.matrices_of(p, call.outputs[0].dtype)
            return matmul.tensor_stage(call, p, sides, target(), t)

        yield lambda t=tile, lower=lower: without_peers(
            f"{t}", product(gemm, "linear", [(4096, 4096), (4096, 4096)], "bfloat16", time=True, lower=lower)
        )
