"""A second start of a language model against the first: how long `Generator` takes to open with an empty store and with program and weights in it.

    python benchmarks/generator_start.py [--size 0.5B] [--layers N] [--rounds 3] [--keep]

A folder with seeded weights of the sizes of Qwen2.5-0.5B (494 M parameters) or Qwen2.5-1.5B (1,544 M) in bfloat16 is written once. Each start is a process of its
own, which imports the package before the clock starts. The checkpoint's files are in the page cache. Answers of all starts must be the same tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import facts, keep

SIZES: dict[str, dict[str, int]] = {
    "0.5B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_attention_heads": 14,
        "num_hidden_layers": 24,
    },
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
    },
}
CONFIG = {
    "model_type": "qwen2", "vocab_size": 151936, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "rope_theta": 1e6, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip
PROMPT = list(range(100, 157))
SAMPLED = {"temperature": 0.8, "top_k": 40, "seed": 1}


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--size", choices=SIZES, default="0.5B")
    parser.add_argument("--layers", type=int, default=0, help="instead of all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/generator_start.json")
    parser.add_argument("--start", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start:
        print(json.dumps(start(*args.start, args.device)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        sizes = SIZES[args.size] | ({"num_hidden_layers": args.layers} if args.layers else {})
        parameters = written(Path(folder), sizes)
        time.sleep(2.5)  # the store keeps no weights of files that just changed
        rounds = [pair(folder, args.device) for _ in range(args.rounds)]
    rows = {
        which: {
            k: statistics.median(r[i][k] for r in rounds) for k in ("open_s", "first_token_s", "sampled_s")
        }
        for i, which in enumerate(("first", "second"))
    }
    answers = {json.dumps(s["tokens"]) for r in rounds for s in r}
    result = {
        "machine": facts(),
        "device": args.device,
        "layers": sizes["num_hidden_layers"],
        "parameters": parameters,
        "weights_bytes": rounds[0][0]["weights_bytes"],
        **rows,
        "same_tokens": len(answers) == 1,
        "starts": rounds,
    }
    print(json.dumps({k: v for k, v in result.items() if k not in ("starts", "machine")}, indent=1))
    if args.keep:
        name = f"{'' if args.device == 'cpu' else 'cuda_'}generator_start{'' if args.size == '0.5B' else '_' + args.size}"
        keep(name, result, beside=True)
    return 0 if result["same_tokens"] else 1


def written(folder: Path, sizes: dict[str, int]) -> int:
    """Write a checkpoint, and return the number of its parameters."""
    import ml_dtypes
    import numpy as np

    from xpuruntime.llm import DecoderConfig
    from xpuruntime.storage.tensor_files import write_safetensors

    config = {**CONFIG, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    arrays = {
        n: (rng.standard_normal(s, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
        for n, s in DecoderConfig.from_json(config).shapes().items()
    }
    write_safetensors(arrays, folder / "model.safetensors")
    return sum(a.size for a in arrays.values())


def pair(folder: str, device: str) -> list[dict[str, Any]]:
    """A first and a second start."""
    with tempfile.TemporaryDirectory() as store:
        starts = []
        for cached in (False, True):
            done = subprocess.run(
                [sys.executable, __file__, "--device", device, "--start", folder, store],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            starts.append(json.loads(done.stdout))
            assert starts[-1]["from_store"] is cached
        return starts


def start(folder: str, store: str, device: str) -> dict[str, Any]:
    """One start, in this process."""
    from xpuruntime.llm import Generator

    began = time.perf_counter()
    with Generator(folder, cache_dir=store, device=device) as model:
        opened = time.perf_counter()
        model.generate(PROMPT, max_new_tokens=1)
        first = time.perf_counter()
        tokens = list(model.generate(PROMPT, max_new_tokens=16).tokens)
        sampling = time.perf_counter()
        tokens += model.generate(PROMPT, max_new_tokens=2, **SAMPLED).tokens
        sampled = time.perf_counter()
        return {
            "open_s": opened - began,
            "first_token_s": first - opened,
            "sampled_s": sampled - sampling,  # with the program that samples, from the compiler or the store
            "tokens": tokens,
            "weights_bytes": model.weights.size_bytes,
            "from_store": all(p.from_store for p in model.programs.opened.values())
            and model.programs.loaded.from_store,
        }


if __name__ == "__main__":
    sys.exit(main())
