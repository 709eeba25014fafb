"""Products of many rows in 16 bits on Hopper: each tile of ``hopper_gemm.py``, next to ``matmul/cublasLt`` with the launches that its epilogue needs.

    python benchmarks/cuda/products_hopper.py --out benchmarks/results/cuda_products_hopper.json [--cases "1024x8960x1536 gated bfloat16,..."]

A case is m, n and k, the epilogue and the dtype. ``gated``: the product has 2n columns, and the result is silu of its first half times the second.
Others are the activation of a linear layer with a bias. Times are by CUPTI, from the previous launch's end to the call's last one, the shortest of three runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import paths  # noqa: F401
import torch
from conv_float32 import _turns
from side_by_side import run_cases
from suite import alone

import xpuruntime as xrt
from xpuruntime.kernels.cuda.matmul import gemv, generated, hopper_gemm

_LAYERS = ("1536x576", "4864x896", "8960x1536", "8192x2048", "14336x4096")
"""Feed-forward layers of SmolLM2-135M, Qwen2.5-0.5B, 1.5B, Llama-3.2-1B and Llama-3.1-8B."""
_PERCEPTRONS = ("1536x384", "3072x768", "4096x1024", "5120x1280")
"""The first layers of the perceptrons of ViT-S, B, L and H. Others are those of Swin-T."""
CASES = (
    *(f"{m}x{layer} gated bfloat16" for layer in _LAYERS for m in (128, 256, 512, 1024, 4096)),
    *(f"{m}x8960x1536 gated bfloat16" for m in (300, 384, 640, 1000, 1100, 1500, 2048)),
    "1024x8960x1536 gated float16",
    *(f"{m}x{layer} gelu float16" for layer in _PERCEPTRONS for m in (256, 512, 788, 1024, 1576, 3152)),
    *(f"{m}x3072x768 {act} {dtype}" for act, dtype in (("gelu", "bfloat16"), ("silu", "float16")) for m in (512, 3152, 8192)),
    "200x3072x768 gelu float16", "1024x2560x2048 silu bfloat16", "25088x384x96 gelu float16", "6272x768x192 gelu float16",
    *(f"{size} none bfloat16" for size in ("1024x2048x1536", "1024x1536x8960", "4096x4096x4096", "1000x1234x1544")),
)  # fmt: skip
ACTS = {"gelu": torch.nn.GELU, "silu": torch.nn.SiLU, "none": torch.nn.Identity}
MOST_ERROR = {"float16": 1e-3, "bfloat16": 4e-3}
"""From float64, relative to the largest value."""


class Gated(torch.nn.Module):
    """A layer whose first half gates its second."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(k, 2 * n, bias=False)

    def forward(self, x: Any) -> Any:
        """Return the gated result."""
        gate, up = self.layer(x).chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


class Copies(torch.nn.Module):
    """Equal layers, each with weights and an input of its own."""

    def __init__(self, n: int, k: int, act: str, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            Gated(n, k) if act == "gated" else torch.nn.Sequential(torch.nn.Linear(k, n), ACTS[act]()) for _ in range(count)
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        """Return the result of each."""
        return [layer(x[i]) for i, layer in enumerate(self.layers)]


def measured(text: str, lock: Path | None) -> dict[str, Any]:
    """Return the times of a case."""
    os.environ["XPU_CACHE_MODE"] = "off"
    torch.manual_seed(0)
    size, act, dtype = text.split()
    m, n, k = map(int, size.split("x"))
    tiles, halves, narrow = hopper_gemm.HOPPER_TILES, 2 if act == "gated" else 1, getattr(torch, dtype)
    x, seen = torch.randn(len(tiles), m, k).to(narrow), dict[str, int]()
    array = x.float().numpy().astype(xrt.DType.of(dtype).numpy)

    def opened(model: Any, kernel: str, count: int) -> Any:
        return xrt.InferenceSession(
            model, device="cuda:0", engine="native", example_inputs=(x[:count],), kernel_policy=xrt.KernelPolicy(matmul=kernel)
        )  # fmt: skip

    usual = hopper_gemm._stage

    def choice(call: Any, *rest: Any, **more: Any) -> Any:
        at = seen.setdefault(call.node.outputs[0].name, len(seen))
        *before, _, arguments, finish, target = rest
        return usual(call, *before, tiles[at % len(tiles)], arguments, finish, target, **more)

    many, pair = (Copies(n, k, act, count).eval().to(narrow) for count in (len(tiles), 2))
    with (
        mock.patch.object(hopper_gemm, "_stage", choice),
        mock.patch.object(generated, "leads", hopper_gemm.multiplies),
        mock.patch.object(gemv, "gating_repays", return_value=True),
    ):
        ours = opened(many, "generated", len(tiles))
    library = opened(pair, "cublasLt", 2)
    with mock.patch.object(generated, "leads", return_value=False):
        plain = opened(pair, "generated", 2) if act != "gated" else None
    row: dict[str, Any] = {"us": {}}
    with alone(lock), ours, library, plain or contextlib.nullcontext():
        outputs = ours.run({ours.input_info[0].name: array}).values()
        wants = [y.cpu().numpy() for y in many.to("cuda", torch.float64)(x.to("cuda").double())]
        row["largest error"] = worst = max(
            float(abs(y.astype(float) - w).max() / abs(w).max()) for y, w in zip(outputs, wants, strict=True)
        )
        if not worst <= MOST_ERROR[dtype]:
            return row | {"error": f"a result is {worst:.2g} from float64"}
        calls = [us for us, _ in _turns(library, array[:2], "")]
        each = len(calls) // 2
        row["us"]["cublasLt"] = round(min(sum(calls[:each]), sum(calls[each:])), 2)
        for tile, (us, span) in zip(tiles, _turns(ours, array, "matmul/"), strict=True):
            if not span.name.startswith("gated_" if halves == 2 else "matmul_"):
                return row | {"error": f"{tile} is not what ran: {span}"}
            row["us"][str(tile.columns)] = round(us, 2)
        if plain is not None:
            row["us"]["tiles of generated"] = round(
                min(us for us, _ in _turns(plain, array[:2], "matmul/")), 2
            )
        chosen = hopper_gemm.hopper_tile(m, n, k, ours_target(), act if act in ("none", "gated") else "act")
        row["chosen"] = str(chosen.columns) if chosen else None
        row["ratio"] = round(row["us"]["cublasLt"] / row["us"][row["chosen"]], 3)
    return row


def ours_target() -> Any:
    """Return the target of this device."""
    from xpuruntime.codegen.cuda.target import cuda_target

    return cuda_target("cuda")


def note(row: Any) -> str:
    """Return what is printed of a case."""
    return f"{row['ratio']} of {row['chosen']}, {row['us']}"


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a case fails."""
    return run_cases(__doc__, __file__, measured, CASES, note=note, argv=argv)


if __name__ == "__main__":
    sys.exit(main())
