"""Attention in float32 on CUDA: ``attention/flash_simt`` with each of its tile sizes, next to PyTorch. ``kernels/cuda/attention/flash_simt.py`` takes its tiles from here.

    python benchmarks/cuda/attention_float32.py --out benchmarks/results/cuda_attention_float32.json [--cases 16x12x197x197x64,...]

Times are microseconds of runs that are queued back to back. Errors are from float64, relative to its root mean square. TF32 is off.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import paths  # noqa: F401
import torch
from gpu_report import queued_us
from side_by_side import run_cases
from suite import alone
from torch.nn.functional import scaled_dot_product_attention

import xpuruntime as xrt
from xpuruntime.kernels.cuda.attention import flash_simt
from xpuruntime.kernels.cuda.attention.flash_simt import SimtTileConfig

SIZES = (
    "16x12x197x197x64", "3x3x197x197x64", "1x6x197x197x64", "16x6x197x197x64", "16x12x64x64x64 causal", "1x12x257x257x64", "1024x4x49x49x32 mask",
    "64x4x49x49x32 mask", "16x8x49x49x32 mask", "16x12x196x196x32 mask", "1x12x49x49x64", "16x10x196x196x32", "4x16x1024x1024x64", "4x16x1024x1024x128 causal",
    "16x4x3136x49x24", "1x8x784x784x32", "4x8x512x512x256",
)  # fmt: skip
"""Batch, heads, queries, keys, elements of a head; with a causal mask, or with a float mask of each head."""
NARROW = tuple(
    SimtTileConfig(t, k, w, lanes)
    for t, k, w, lanes in (
        (4, 64, 8, 8), (4, 64, 4, 8), (4, 32, 4, 8), (2, 64, 4, 8), (8, 64, 8, 16), (4, 64, 4, 16), (2, 64, 4, 16),
    )
)  # fmt: skip
WIDE = tuple(
    SimtTileConfig(t, k, w, lanes)
    for t, k, w, lanes in ((4, 64, 8, 8), (4, 32, 4, 8), (4, 64, 4, 8), (2, 32, 4, 8), (4, 32, 8, 16), (4, 64, 8, 16), (4, 32, 4, 16))
)  # fmt: skip


class Attention(torch.nn.Module):
    """Scaled dot-product attention on heads that are stored position by position, as projections leave them."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        """Return the result, position by position."""
        heads = (x.transpose(1, 2) for x in (q, k, v))
        y = scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=self.causal)
        return y.transpose(1, 2)


def measured(text: str, lock: Path | None) -> dict[str, Any]:
    """Return the times and errors of one size."""
    numbers, _, how = text.partition(" ")
    b, h, n, m, d = (int(x) for x in numbers.split("x"))
    model = Attention(how == "causal").eval()
    shapes = [(b, n, h, d), (b, m, h, d), (b, m, h, d), *([(1, h, n, m)] if how == "mask" else [])]
    inputs = tuple(torch.randn(*s, device="cuda") for s in shapes)
    want = model(*(x.double() for x in inputs))
    scale = want.square().mean().sqrt()

    def error(y: Any) -> float:
        return float((y.double() - want).square().mean().sqrt() / scale)

    usual, sessions = flash_simt.simt_tile_config, dict[str, Any]()
    for config in (None, *(NARROW if d <= 64 else WIDE)):

        def choice(s: Any, target: Any, config: Any = config) -> SimtTileConfig:
            return usual(s, target) if config is None else config

        name = (
            ""
            if config is None
            else f"{config.per_thread} queries, {config.keys} keys, {config.warps} warps, {config.lanes} lanes"
        )
        with suppress(xrt.XpuError), mock.patch.object(flash_simt, "simt_tile_config", choice):
            sessions[name] = xrt.InferenceSession(
                model, device="cuda:0", engine="native", example_inputs=tuple(x.cpu() for x in inputs)
            )
    with alone(lock):
        row: dict[str, Any] = {
            "torch": round(queued_us(lambda: model(*inputs)), 1),
            "torch error": error(model(*inputs)),
            "tiles": {},
        }
        for name, session in sessions.items():
            feeds = dict(zip((i.name for i in session.input_info), inputs, strict=True))
            y = next(iter(session.run(feeds).values()))
            us = round(queued_us(lambda s=session, f=feeds: s.run(f)), 1)
            if name:
                row["tiles"][name] = us
            else:
                row |= {
                    "ours": us,
                    "ours error": error(y),
                    "tflops": round(4 * b * h * n * m * d / us / 1e6, 1),
                }
    if not row["ours error"] <= 1e-5:
        row["error"] = "the result is wrong"
    return row


if __name__ == "__main__":
    os.environ["XPU_CACHE_MODE"] = "off"  # tile sizes are not part of a stored program's key
    sys.exit(run_cases(__doc__, __file__, measured, SIZES))
