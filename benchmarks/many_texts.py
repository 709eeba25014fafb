"""Generation of 1, 8 and 64 texts at once, in tokens per second: BatchGenerator, a Generator for one text after the other, transformers' generate.

    python benchmarks/many_texts.py [--hidden 256 --layers 4] [--texts 1 8 64] [--tokens 32] [--dtype float32] [--threads 2] [--device cpu] [--invariant]

A seeded Llama of the given sizes. Prompts have 4 to 32 tokens; each answer has ``--tokens``. transformers gets the prompts as one padded batch with its
own cache, greedy. Every contender's answers are compared with those of the Generator first; an answer that differs must leave it at a token whose
logits are nearly equal (within 1e-3, or 5e-2 in 16 bits, of the largest one). Contenders alternate, and the best round of each counts. Compiling and
opening are not timed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from xpuruntime import BatchGenerator, Generator

Answers = list[tuple[int, ...]]
PROMPT_TOKENS = (4, 33)
VOCAB = 4096
CAPACITY = 128


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--hidden", type=int, default=256)
    parse.add_argument("--layers", type=int, default=4)
    parse.add_argument("--texts", type=int, nargs="+", default=[1, 8, 64])
    parse.add_argument("--tokens", type=int, default=32)
    parse.add_argument("--rounds", type=int, default=2)
    parse.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--device", default="cpu")
    parse.add_argument("--invariant", action="store_true", help="demand batch_invariant kernels")
    parse.add_argument("--json", action="store_true")
    args = parse.parse_args()
    model, rng = llama(args.hidden, args.layers, args.dtype), np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, n).tolist() for n in rng.integers(*PROMPT_TOKENS, max(args.texts))]
    opening = {"capacity": CAPACITY, "device": args.device, "threads": args.threads}
    policy = {"version": 1, "kernel": {"batch_invariant": True}} if args.invariant else None
    rows = []
    with (
        Generator(model, buckets=(32,), **opening) as single,
        BatchGenerator(model, texts=max(args.texts), policy=policy, **opening) as batch,
    ):
        words = {"max_new_tokens": args.tokens, "stops": []}

        def one_by_one(texts: Sequence[list[int]]) -> Answers:
            return [single.generate(t, **words).tokens for t in texts]

        def together(texts: Sequence[list[int]]) -> Answers:
            answers = [a.tokens for a in batch.generate(texts, **words)]
            batch.scheduler.pool.forget()  # a later round finds no prompts in the cache
            return answers

        contenders: dict[str, Callable[[Sequence[list[int]]], Answers]] = {
            "BatchGenerator": together,
            "Generator, one by one": one_by_one,
            "transformers": padded_batch(model, args.tokens, args.device, args.threads),
        }
        for count in args.texts:
            texts = prompts[:count]
            want = one_by_one(texts)
            for name, run in contenders.items():
                check(name, single, texts, want, run(texts), 1e-3 if args.dtype == "float32" else 5e-2)
            best = dict.fromkeys(contenders, float("inf"))
            for _ in range(args.rounds):
                for name, run in contenders.items():
                    began = time.perf_counter()
                    run(texts)
                    best[name] = min(best[name], time.perf_counter() - began)
            rows.append({"texts": count, **{n: count * args.tokens / s for n, s in best.items()}})
    print(json.dumps(rows) if args.json else table(rows))
    return 0


def llama(hidden: int, layers: int, dtype: str) -> Any:
    """Return a seeded model in evaluation mode."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=max(1, hidden // 128), max_position_embeddings=2048, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3 if parameter.ndim > 1 else 1)  # logits that tell tokens apart
    return model.to(getattr(torch, dtype)).eval()


def padded_batch(
    model: Any, tokens: int, device: str, threads: int
) -> Callable[[Sequence[list[int]]], Answers]:
    """Return transformers' generation of a batch, padded on the left."""
    import torch

    torch.set_num_threads(threads)
    place = "cuda" if device.startswith("cuda") else "cpu"

    def run(texts: Sequence[list[int]]) -> Answers:
        there = model.to(place)
        longest = max(map(len, texts))
        rows = torch.tensor([[0] * (longest - len(t)) + t for t in texts], device=place)
        seen = torch.tensor([[0] * (longest - len(t)) + [1] * len(t) for t in texts], device=place)
        with torch.no_grad():
            y = there.generate(rows, attention_mask=seen, max_new_tokens=tokens, do_sample=False)
        return [tuple(r) for r in y[:, longest:].tolist()]

    return run


def check(
    name: str, single: Generator, texts: Sequence[list[int]], want: Answers, got: Answers, margin: float
) -> None:
    """Raise ValueError unless each answer is that of the Generator, up to a token with an almost equal logit."""
    for text, w, g in zip(texts, want, got, strict=True):
        at = next((i for i, (a, b) in enumerate(zip(w, g, strict=True)) if a != b), None)
        if at is None:
            continue
        logits = single.read([*text, *w[:at]])[0].astype(np.float64)
        if logits[w[at]] - logits[g[at]] > margin * np.abs(logits).max():
            raise ValueError(
                f"{name}: token {at} of the answer to a prompt of {len(text)} tokens is {g[at]}, wanted {w[at]}"
            )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return tokens per second as a table in Markdown."""
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {row['texts']} | {' | '.join(f'{row[n]:,.0f}' for n in names[1:])} |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
