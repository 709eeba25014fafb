"""float32 products of long k by cuBLASLt, summed in parts of so many terms: how far from float64, and what the parts cost.

    python scripts/gpu/long_sums.py --out benchmarks/results/cuda_long_sums.json [--layers 4] [PART ...]

``kernels/cuda/libraries.K_AT_ONCE`` is chosen by this. ``products``: single products beside PyTorch's, without TF32. ``decoder``: layers of Qwen2.5-1.5B's
sizes through a prompt and tokens after it (needs transformers); its first row is the prompt's, whose products are the library's, the others are ours.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gpu_machine import Report, arguments, queued_us, run_parts
from models import far, prepare

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.ir import GraphBuilder
from xpuruntime.kernels.cuda import libraries
from xpuruntime.llm import Generator
from xpuruntime.policies import KernelPolicy
from xpuruntime.runtime import Executor

SHAPES = (
    (128, 1536, 1536),
    (128, 17920, 1536),
    (128, 1536, 8960),
    (1024, 1536, 8960),
    (2048, 2048, 2048),
    (4096, 4096, 4096),
)
"""m, n, k: those of a decoder's prompt, then square ones."""
ALL = 2**30
AT_ONCE = (256, 512, 1024, 2048, ALL)
PROMPT, STEPS = 128, 16


@contextmanager
def at_once(terms: int) -> Iterator[None]:
    """Products compiled meanwhile sum so many terms in one call."""
    before = libraries.K_AT_ONCE
    libraries.K_AT_ONCE = terms
    try:
        yield
    finally:
        libraries.K_AT_ONCE = before


def products(report: Report, asked: argparse.Namespace) -> Any:
    """Single products: error from float64 and microseconds, by terms at once, beside PyTorch."""
    found = {}
    for m, n, k in SHAPES:
        torch.manual_seed(0)
        a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        want = (a.double() @ b.double().T).cpu().numpy()
        row: dict[str, Any] = {"torch": {
            "error": far((a @ b.T).cpu(), want), "us": round(queued_us(lambda a=a, b=b: a @ b.T), 2)}}  # fmt: skip
        for terms in AT_ONCE:
            builder = GraphBuilder("product")
            left, right = builder.input("a", f"float32[{m}, {k}]"), builder.weight("b", f"float32[{n}, {k}]")
            builder.output("y", builder.call("linear", left, right, None))
            with at_once(terms):
                program = compile_graph(
                    builder.build(), target="cuda", policy=KernelPolicy(matmul="cublasLt")
                )
            with Executor(program, "cuda:0") as executor:
                executor.bind({"b": b.cpu().numpy()})
                stream = torch.cuda.current_stream().cuda_stream
                out = executor.run({"a": a}, stream=stream)
                y = torch.from_dlpack(out["y"]).cpu()
                us = queued_us(lambda: executor.run({"a": a}, out=out, stream=stream))  # noqa: B023
                row["all" if terms == ALL else str(terms)] = {
                    "error": far(y, want), "us": round(us, 2), "chose": [x for x in executor.implementations if x][:1]}  # fmt: skip
        found[f"{m}x{n}x{k}"] = row
        print(f"  {m}x{n}x{k}:", {w: (f"{r['error']:.2e}", r["us"]) for w, r in row.items()}, flush=True)
    return found


def decoder(report: Report, asked: argparse.Namespace) -> Any:
    """Logits after a prompt and after each of some given tokens, from float64, by terms at once, beside PyTorch."""
    from decoders import QWEN, qwen

    tokens = np.random.default_rng(0).integers(0, QWEN["vocab_size"], PROMPT + STEPS)
    given = torch.from_numpy(tokens[None]).cuda()
    model = qwen(QWEN, "cuda", num_hidden_layers=asked.layers)

    def logits(of: Any) -> Any:
        return of.lm_head(of.model(given).last_hidden_state[:, PROMPT - 1 : -1])[0].double().cpu().numpy()

    with torch.inference_mode():
        want = logits(model.double())
        rows = {"torch": logits(model.float())}
    model.cpu()
    torch.cuda.empty_cache()
    for terms in (512, 1024, ALL) if asked.layers <= 4 else (1024,):
        with (
            at_once(terms),
            Generator(
                model, capacity=PROMPT + STEPS, dtype="float32", buckets=(PROMPT,), device="cuda:0"
            ) as ours,
        ):
            made = [np.array(ours.steps.read([tokens[:PROMPT].tolist()])[0])]
            made += [
                np.array(ours.steps.step([int(tokens[i])], [i])[0]) for i in range(PROMPT, PROMPT + STEPS - 1)
            ]
        rows["all" if terms == ALL else str(terms)] = np.array(made)
    found = {w: {"prompt": far(r[:1], want[:1]), "after it": far(r[1:], want[1:])} for w, r in rows.items()}
    print("  ", found, flush=True)
    return found


PARTS = {"products": products, "decoder": decoder}


def main(given: Sequence[str] | None = None) -> int:
    """1 when a part fails."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--layers", type=int, default=4)
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0), packages=("torch",), given=given, parser=parser, before=prepare
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
