"""Sampled tokens of a decoder of Qwen2.5-1.5B's sizes on CUDA, as a user sees them, next to greedy ones; and the device's tokens next to the host's.

    python benchmarks/cuda/sampled_tokens.py --out benchmarks/results/cuda_sampled_tokens.json [--device cuda:0] [--size full] [PART ...]

Parts: ``rows`` (``sample_token`` on rows of 151,936 logits with several settings, next to the interpreter), ``steps`` (each sampled token of a text,
next to the host's choice from the logits of the same step) and ``speed`` (milliseconds per token of ``Generator.generate`` at a context of 1,024, in
alternating rounds). Needs torch and transformers; on a machine without a GPU ``--device cpu --size small`` tests the script itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import paths  # noqa: F401
import torch
from decoders import in_bfloat16, qwen, sizes_of
from gpu_report import Report, arguments, run_parts
from models import prepare

from xpuruntime.compiler import compile as compile_graph
from xpuruntime.inference.native.targets import own_target
from xpuruntime.ir import GraphBuilder, interp
from xpuruntime.llm import Generator, Sampling
from xpuruntime.llm.sampling import pick
from xpuruntime.runtime import Executor
from xpuruntime.targets import DeviceId

GREEDY_SHARE = 1.05
"""Most time of a sampled token, as a multiple of a greedy one's."""
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8},
    "temperature, top_k, top_p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "min_p": {"temperature": 1.2, "min_p": 0.05},
    "penalties, top_p": {
        "temperature": 0.8,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
    },
}
ROWS, DIFFERENT = 32, 1
"""Rows of a setting, and the most tokens of a part that may differ: exponentials differ in their last bit."""


def rows(report: Report, args: argparse.Namespace) -> Any:
    """Compare tokens of single rows with the interpreter's."""
    vocab, rng = sizes_of(args)["vocab_size"], np.random.default_rng(0)
    b = GraphBuilder("rows")
    specs = {
        "logits": f"bfloat16[{ROWS}, {vocab}]", "counts": f"int32[{ROWS}, {vocab}]", "settings": f"float32[{ROWS}, 6]",
        "numbers": f"int64[{ROWS}, 5]",
    }  # fmt: skip
    token, after = b.call("sample_token", *(b.input(n, s) for n, s in specs.items()))
    b.output("token", token)
    b.output("after", after)
    graph = b.build()
    program = compile_graph(graph, target=own_target(DeviceId.parse(args.device)))
    different: dict[str, int] = {}
    with Executor(program, args.device) as executor:
        for name, words in SETTINGS.items():
            sampling = Sampling(**words)
            scale = rng.uniform(0.5, 8, (ROWS, 1))
            numbers = [
                (int(rng.integers(2**63)), i, 0, sampling.top_k, int(sampling.penalizes)) for i in range(ROWS)
            ]
            feeds = {
                "logits": (rng.standard_normal((ROWS, vocab)) * scale).astype(
                    graph.spec("logits").dtype.numpy
                ),
                "counts": (rng.integers(0, 5, (ROWS, vocab)) * (rng.random((ROWS, vocab)) < 0.01)).astype(
                    np.int32
                ),
                "settings": np.array([sampling.settings] * ROWS, np.float32),
                "numbers": np.array(numbers, np.int64),
            }
            got, counts = executor.run_arrays(list(feeds.values()))
            want = interp.run(graph, feeds)
            different[name] = int((got != want["token"]).sum())
            if not different[name]:
                report.check((counts == want["after"]).all(), f"{name}: counts")
    report.bound(
        "rows whose token differs from the interpreter's", sum(different.values()), at_most=DIFFERENT
    )
    return {"rows": ROWS * len(SETTINGS), "different": different}


def opened(args: argparse.Namespace, context: int) -> Generator:
    """Return a generator over seeded weights in bfloat16."""
    model = in_bfloat16(qwen(sizes_of(args), args.device)).cpu()
    return Generator(model, capacity=context + 320, dtype="bfloat16", buckets=(context,), device=args.device)


def steps(report: Report, args: argparse.Namespace) -> Any:
    """Compare each sampled token with the host's choice from the logits of the same step."""
    context, count = (128, 200) if args.size == "full" else (16, 10)
    text = np.random.default_rng(2).integers(0, sizes_of(args)["vocab_size"], context).tolist()
    different: dict[str, int] = {}
    with opened(args, context) as ours:
        for name, words in SETTINGS.items():
            sampling = Sampling(**words)
            counts = np.zeros(sizes_of(args)["vocab_size"], np.int32)
            counts[text] = 1
            ours.steps.write_counts([counts])
            ours.steps.read([text])
            token, different[name] = text[-1], 0
            for step in range(count):
                numbers = [(7, step, 0, sampling.top_k, int(sampling.penalizes))]
                drawn = int(ours.steps.sample([token], [context - 1 + step], [sampling.settings], numbers)[0])
                logits = ours.steps.step([token], [context - 1 + step])[0]
                different[name] += drawn != pick(sampling.processed(logits, counts), sampling, 7, step)
                counts[drawn] += 2
                token = drawn
    report.bound("sampled tokens that differ from the host's", sum(different.values()), at_most=DIFFERENT)
    return {"tokens": count * len(SETTINGS), "different": different}


def speed(report: Report, args: argparse.Namespace) -> Any:
    """Measure greedy and sampled tokens in alternating rounds."""
    context, count, rounds = (1024, 129, 5) if args.size == "full" else (64, 9, 2)
    text = np.random.default_rng(1).integers(0, sizes_of(args)["vocab_size"], context).tolist()
    runs: dict[str, dict[str, Any]] = {
        "greedy": {},
        **SETTINGS,
        "temperature, by the host": {"temperature": 0.8, "logprobs": 0},
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    with opened(args, context) as ours:
        calls = {e.entry.name: len(e.plan.calls) for e in ours.steps.executors}
        for index in range(rounds + 1):
            for name, words in runs.items():
                done = ours.generate(text, max_new_tokens=count, stops=[], seed=3, **words)
                if index:  # the first round warms up
                    times[name].append(1e3 / done.tokens_per_second)
    medians = {name: round(statistics.median(t), 4) for name, t in times.items()}
    for name in SETTINGS:
        share = round(medians[name] / medians["greedy"], 4)
        report.bound(
            f"a token with {name}, over a greedy one",
            share,
            at_most=GREEDY_SHARE,
            required=args.size == "full",
        )
    return {"context": context, "ms_per_token": medians, "calls": calls}


PARTS = {"rows": rows, "steps": steps, "speed": speed}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a part fails or a limit is missed."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    return run_parts(
        __doc__, PARTS, packages=("torch", "transformers"), argv=argv, parser=parser,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none", before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
