"""Decode and prefill of a language model on this CPU: ours, and transformers eager and compiled, in tokens per second.

    python benchmarks/cpu_llm.py FOLDER_OR_GGUF [--dtype float32] [--threads 2] [--prompt 128] [--tokens 64] [--rounds 5] [--compiled]
    python benchmarks/cpu_llm.py --config config.json --dtype bfloat16     # seeded weights of these sizes

The same weights, the same tokens, teacher-forced, a cache of fixed size on both sides; logits are compared before anything is timed.
Contenders alternate, and the best round of each counts, so that a busy neighbour disturbs all alike. ``bandwidth``: the bytes of weights
that one token reads by its time, beside what one pass of NumPy's sum reads on as many threads as the contenders have.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from machine import facts

from xpuruntime.llm import Checkpoint, DecoderConfig, Generator, open_checkpoint


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("model", nargs="?", help="a folder or a .gguf file")
    parse.add_argument("--config", help="config.json of a model whose weights are seeded instead")
    parse.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--prompt", type=int, default=128)
    parse.add_argument("--tokens", type=int, default=64)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--compiled", action="store_true", help="torch.compile too (minutes)")
    asked = parse.parse_args()
    result = measure(asked)
    print(json.dumps(result, indent=1))


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    import torch

    torch.set_num_threads(asked.threads)
    machine = facts("torch", "transformers")
    found = open_checkpoint(asked.model) if asked.model else None
    reference = torch_model(found, asked.config, getattr(torch, asked.dtype))
    config = DecoderConfig.from_json(reference.config.to_dict())
    tokens = np.random.default_rng(0).integers(0, config.vocab, asked.prompt + asked.tokens).tolist()
    capacity = asked.prompt + asked.tokens
    contenders: dict[str, Contender] = {}
    ours = Generator(
        reference, capacity=capacity, dtype=asked.dtype, buckets=(asked.prompt,), threads=asked.threads
    )
    contenders["xpuruntime"] = Ours(ours)
    contenders["transformers eager"] = Theirs(reference, capacity)
    if asked.compiled:
        contenders["transformers compiled"] = Theirs(reference, capacity, compiled=True)
    logits = {n: c.logits(tokens, asked.prompt) for n, c in contenders.items()}
    want = logits["transformers eager"]
    agree = {n: float(abs(x - want).max() / abs(want).max()) for n, x in logits.items()}
    best: dict[str, dict[str, float]] = {n: {"prefill": np.inf, "decode": np.inf} for n in contenders}
    for _ in range(asked.rounds):
        for name, contender in contenders.items():
            for part, seconds in contender.time(tokens, asked.prompt).items():
                best[name][part] = min(best[name][part], seconds)
    read = sum(int(np.prod(s)) for s in config.shapes().values()) * np.dtype(ours.dtype.numpy).itemsize
    if not config.tied:  # one row of the table is read, not all of it
        read -= config.vocab * config.hidden * np.dtype(ours.dtype.numpy).itemsize
    memory = bandwidth(asked.threads)
    rows = {
        n: {
            "prefill_tokens_per_s": round(asked.prompt / t["prefill"], 1),
            "decode_tokens_per_s": round(asked.tokens / t["decode"], 2),
            "decode_GB_per_s": round(read * asked.tokens / t["decode"] / 1e9, 2),
            "share_of_bandwidth": round(read * asked.tokens / t["decode"] / 1e9 / memory, 3),
            "furthest_from_eager": float(f"{agree[n]:.2g}"),
        }
        for n, t in best.items()
    }
    return {
        "model": found.name if found else str(asked.config),
        "dtype": asked.dtype,
        "threads": asked.threads,
        "prompt": asked.prompt,
        "tokens": asked.tokens,
        "dispatches_per_token": len(ours.decode.plan.calls),
        "bandwidth_GB_per_s": round(memory, 2),
        "rows": rows,
        "machine": machine,
    }


class Contender:
    """Reads a prompt, then takes the following tokens one by one."""

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        """Logits of the last row."""
        raise NotImplementedError

    def step(self, token: int, position: int) -> np.ndarray:
        """Logits of what follows."""
        raise NotImplementedError

    def logits(self, tokens: Sequence[int], prompt: int) -> np.ndarray:
        """Of the prompt's last row and every later one, float32."""
        rows = [self.prefill(tokens[:prompt]).astype(np.float32)]
        rows += [self.step(t, prompt + i).astype(np.float32) for i, t in enumerate(tokens[prompt:])]
        return np.stack(rows)

    def time(self, tokens: Sequence[int], prompt: int) -> dict[str, float]:
        """Seconds of both parts."""
        begun = time.perf_counter()
        self.prefill(tokens[:prompt])
        between = time.perf_counter()
        for i, token in enumerate(tokens[prompt:]):
            self.step(token, prompt + i)
        return {"prefill": between - begun, "decode": time.perf_counter() - between}


class Ours(Contender):
    def __init__(self, model: Generator) -> None:
        self.model = model

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        return self.model.read(tokens)[0]

    def step(self, token: int, position: int) -> np.ndarray:
        return self.model.step(token, position)[0]


class Theirs(Contender):
    """transformers with its static cache."""

    def __init__(self, model: Any, capacity: int, compiled: bool = False) -> None:
        import torch

        self.torch, self.model, self.capacity = torch, model, capacity
        self.run: Callable[..., Any] = torch.compile(model.forward) if compiled else model.forward
        self.cache: Any = None

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        from transformers import StaticCache

        if self.cache is None:
            self.cache = StaticCache(config=self.model.config, max_cache_len=self.capacity)
        with self.torch.inference_mode():
            self.cache.reset()
        return self._run(list(tokens), 0)

    def step(self, token: int, position: int) -> np.ndarray:
        return self._run([token], position)

    def _run(self, tokens: list[int], start: int) -> np.ndarray:
        torch = self.torch
        with torch.inference_mode():
            place = torch.arange(start, start + len(tokens))
            out = self.run(
                input_ids=torch.tensor([tokens]), position_ids=place[None], cache_position=place,
                past_key_values=self.cache, use_cache=True, logits_to_keep=1,
            )  # fmt: skip
            return np.asarray(out.logits[0, -1].float().numpy())


def torch_model(found: Checkpoint | None, config: str | None, dtype: Any) -> Any:
    """transformers' model over a checkpoint's arrays, or over seeded ones."""
    import torch
    import transformers

    if found is not None:
        c = found.config
        kind = transformers.Qwen2Config if c.family == "qwen2" else transformers.LlamaConfig
        facts = {
            "vocab_size": c.vocab, "hidden_size": c.hidden, "intermediate_size": c.inner, "num_hidden_layers": c.layers,
            "num_attention_heads": c.heads, "num_key_value_heads": c.kv_heads, "rms_norm_eps": c.eps,
            "max_position_embeddings": c.max_positions, "tie_word_embeddings": c.tied,
            "rope_parameters": {"rope_type": "default", "rope_theta": c.rotary.base},
        }  # fmt: skip
        if c.rotary.kind != "default":
            raise SystemExit("a model with scaled rotary positions: compare it by --config")
        made_config = kind(**facts)
    else:
        assert config is not None, "give a model or --config"
        made_config = transformers.AutoConfig.for_model(
            **json.loads(Path(config).read_text(encoding="utf-8"))
        )
    made_config.dtype = dtype
    torch.manual_seed(0)
    with torch.device("meta"):
        made = transformers.AutoModelForCausalLM.from_config(made_config, dtype=dtype)
    made = made.to_empty(device="cpu").eval()
    made.tie_weights()
    with torch.no_grad():
        for name, p in made.named_parameters():
            if found is not None:
                p.copy_(torch.from_numpy(np.ascontiguousarray(found.arrays[name]).astype(np.float32)))
            elif "norm" in name:
                p.fill_(1)
            else:
                p.normal_(0, 0.02)
    kind_ = type(made.model.rotary_emb)  # its tables are computed, and were empty
    made.model.rotary_emb = kind_(config=made_config)
    return made


def bandwidth(threads: int) -> float:
    """GB/s that sums over 256 MiB a thread read, the best of five."""
    parts = [np.ones(64 << 20, np.float32) for _ in range(threads)]

    def once() -> float:
        work = [threading.Thread(target=p.view(np.int64).max) for p in parts]
        begun = time.perf_counter()
        for w in work:
            w.start()
        for w in work:
            w.join()
        return time.perf_counter() - begun

    return sum(p.nbytes for p in parts) / min(once() for _ in range(5)) / 1e9


if __name__ == "__main__":
    main()
