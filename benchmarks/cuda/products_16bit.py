"""Linear layers with an activation in 16 bits on CUDA: each tile of ``matmul/generated``, next to ``matmul/cublasLt`` with its epilogue stage and PyTorch. ``kernels/cuda/matmul/generated.py`` takes its crossovers from here.

    python benchmarks/cuda/products_16bit.py --out benchmarks/results/cuda_products_16bit.json [--cases "50176x384x96 gelu float16,..."]

A case is m, n and k, the activation and the dtype. Ours are by CUPTI, from the previous launch's end to its own, the shortest of three runs.
PyTorch's are half of a CUDA graph of two.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import paths  # noqa: F401
import torch
from conv_float32 import _turns
from gpu_report import queued_us
from side_by_side import run_cases
from suite import _graph, alone

import xpuruntime as xrt
from xpuruntime.kernels.cuda.matmul import generated

_SIZES = (
    "50176x384x96", "12544x768x192", "3136x1536x384", "784x3072x768", "3136x384x96", "784x768x192", "196x1536x384", "49x3072x768",
    "3152x3072x768", "197x3072x768", "128x3072x768", "3152x1536x384", "50176x256x64", "12544x512x128", "200704x192x48",
)  # fmt: skip
CASES = (
    *(f"{size} gelu float16" for size in _SIZES),
    *(
        f"{size} {act}"
        for size in ("12544x768x192", "784x3072x768")
        for act in ("gelu bfloat16", "silu float16")
    ),
)
ACTS = {"gelu": torch.nn.GELU, "silu": torch.nn.SiLU}
MOST_ERROR = {"float16": 2e-3, "bfloat16": 2e-2}
"""From float64, relative to the largest value."""


class Copies(torch.nn.Module):
    """Equal linear layers of one input, with weights of their own."""

    def __init__(self, n: int, k: int, act: str, count: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(k, n), ACTS[act]()) for _ in range(count)
        )

    def forward(self, x: Any) -> Any:
        """Return the result of each."""
        return [layer(x) for layer in self.layers]


def measured(text: str, lock: Path | None) -> dict[str, Any]:
    """Return the times of a case."""
    os.environ["XPU_CACHE_MODE"] = "off"
    torch.manual_seed(0)
    size, act, dtype = text.split()
    m, n, k = map(int, size.split("x"))
    x, tiles = torch.randn(m, k), generated.TILES
    seen = dict[str, int]()

    def opened(model: Any, kernel: str) -> Any:
        return xrt.InferenceSession(
            model, device="cuda:0", engine="native", example_inputs=(x,), kernel_policy=xrt.KernelPolicy(matmul=kernel),
            exec_policy=xrt.ExecutionPolicy(precision=dtype),
        )  # fmt: skip

    usual = generated.tensor_stage

    def choice(call: Any, p: Any, sides: Any, target: Any, tile: Any = None) -> Any:
        at = seen.setdefault(call.node.outputs[0].name, len(seen))
        return usual(call, p, sides, target, tiles[at % len(tiles)])

    many, pair = Copies(n, k, act, len(tiles)).eval(), Copies(n, k, act, 2).eval()
    with (
        mock.patch.object(generated, "tensor_stage", choice),
        mock.patch.object(generated, "leads", return_value=False),
    ):
        ours = opened(many, "generated")
    library = opened(pair, "cublasLt")
    row: dict[str, Any] = {"us": {}}
    with alone(lock), ours, library:
        given = x.to("cuda", getattr(torch, dtype))
        outputs = ours.run({ours.input_info[0].name: x.numpy()}).values()
        wants = [y.cpu().numpy() for y in many.to("cuda", torch.float64)(x.to("cuda", torch.float64))]
        row["largest error"] = worst = max(
            float(abs(y - w).max() / abs(w).max()) for y, w in zip(outputs, wants, strict=True)
        )
        if not worst <= MOST_ERROR[dtype]:
            return row | {"error": f"a result is {worst:.2g} from float64"}
        half = pair.to("cuda", getattr(torch, dtype))
        row["torch"] = round(queued_us(_graph(half, (given,)), 20, 3) / 2, 2)
        stages = [us for us, _ in _turns(library, x, "matmul/")]
        each = len(stages) // 2  # the product and, where it has no such epilogue, the second stage
        row["us"]["cublasLt"] = round(min(sum(stages[:each]), sum(stages[each:])), 2)
        for tile, (us, span) in zip(tiles, _turns(ours, x, "matmul/"), strict=True):
            if (tile.blocks(m, n), tile.threads) != (span.grid[0], span.block[0]):
                return row | {"error": f"{tile} is not what ran: {span}"}
            row["us"][f"{tile.rows}x{tile.columns}"] = round(us, 2)
    return row


def note(row: Any) -> str:
    """Return what is printed of a case."""
    return f"torch {row['torch']} {row['us']}"


if __name__ == "__main__":
    sys.exit(run_cases(__doc__, __file__, measured, CASES, note=note))
