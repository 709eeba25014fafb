"""A decoder of Qwen2.5-1.5B's sizes on CUDA, native engine next to PyTorch: errors against float64, and the time of a token.

    python benchmarks/cuda/decoders.py --out benchmarks/results/cuda_decoders.json [--compile] [--device cuda:0] [--size full] [PART ...]

Parts: ``four`` and ``full`` (four layers or all 28: prefill, then 64 forced steps, against float64), ``speed`` (prefill, and one token at
a context of 1,024, next to PyTorch eager, a CUDA graph of it and, with ``--compile``, torch.compile), ``prompts`` (the default prefill lengths next to
short ones) and, only if named, ``weights`` (weights of fewer bits) and ``compiled`` (torch.compile alone). Needs torch and transformers; on a machine without a GPU ``--device cpu --size small`` tests the script itself.
``decoder_breakdown.py`` measures where a token's time is spent.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, run_parts
from models import far, milliseconds, prepare
from support.blocks import random_blocks

from xpuruntime.llm import Generator, open_checkpoint
from xpuruntime.llm.build import BUCKETS
from xpuruntime.llm.checkpoint.data import Checkpoint, blocks_name
from xpuruntime.runtime.weights.int4 import int4_groups, int4_values
from xpuruntime.storage.blocks import BLOCK_FORMATS

QWEN = {
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
SMALL = {
    "vocab_size": 500, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
TOKEN_MS, PREFILL_MS = 1.2, 8.0
COMPILE_S = 150
"""Time limit of torch.compile in seconds."""


def sizes_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the model configuration for ``--size``."""
    return QWEN if args.size == "full" else SMALL


def qwen(sizes: dict[str, Any], device: str, **changes: Any) -> Any:
    """Return the model with seeded float32 weights. Biases and norms are random as well, so that an error in them changes the output."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(Qwen2Config(**{**sizes, **changes})).eval()
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator, device=device) * 0.02)
    return model


def in_bfloat16(model: Any) -> Any:
    """Cast the model's weights to bfloat16 in place. Buffers stay float32: rounded rotary frequencies are far off after a thousand tokens."""
    for p in model.parameters():
        p.data = p.data.bfloat16()
    return model


def agreement(report: Report, args: argparse.Namespace, layers: int) -> dict[str, Any]:
    """Compare the logits of a prompt's last token and of each forced token after it with float64: ours and PyTorch's, in float32 and bfloat16."""
    sizes = sizes_of(args)
    prompt, steps = (128, 64) if args.size == "full" else (16, 8)
    tokens = np.random.default_rng(0).integers(0, sizes["vocab_size"], prompt + steps)
    input_ids = torch.from_numpy(tokens[None]).to(args.device)

    def logits(of: Any) -> Any:
        """Return the logits that are compared; no others are computed."""
        hidden = of.model(input_ids).last_hidden_state[:, prompt - 1 : -1]
        return of.lm_head(hidden)[0].double().cpu().numpy()

    model = qwen(sizes, args.device, num_hidden_layers=layers)
    with torch.inference_mode():
        want = logits(model.double())  # the same weights: float32 values are exact in float64
        theirs = {"float32": far(logits(model.float()), want)}
        model.cpu()
        theirs["bfloat16"] = far(
            logits(in_bfloat16(qwen(sizes, args.device, num_hidden_layers=layers))), want
        )
    if args.device != "cpu":
        torch.cuda.empty_cache()
    results: dict[str, Any] = {"prompt": prompt, "steps": steps}
    for dtype, other in theirs.items():
        ours = Generator(model, capacity=prompt + steps, dtype=dtype, buckets=(prompt,), device=args.device)
        with ours:
            rows = [ours.steps.read([tokens[:prompt].tolist()])[0].astype(np.float64)]
            rows += [
                ours.steps.step([int(tokens[i])], [i])[0].astype(np.float64)
                for i in range(prompt, prompt + steps - 1)
            ]
        error = far(np.array(rows), want)
        limit = max(1e-5, 1.25 * other) if dtype == "float32" else 1.25 * other
        results[dtype] = {"ours": error, "torch": other}
        report.bound(
            f"Qwen2.5-1.5B sizes, {layers} layers, prefill and {steps} forced steps, {dtype}: from float64",
            error,
            at_most=limit,
        )
    return results


def four(report: Report, args: argparse.Namespace) -> Any:
    """Compare four layers with float64, through prefill and forced steps."""
    return agreement(report, args, 4)


def full(report: Report, args: argparse.Namespace) -> Any:
    """Compare all layers with float64, through prefill and forced steps."""
    return agreement(report, args, sizes_of(args)["num_hidden_layers"])


def token_of(ours: Generator, context: int, device: str, batch: int = 1) -> Callable[[], Any]:
    """Return a function that computes one token of each text at a context, with inputs and logits on the device."""
    if device == "cpu":
        return lambda: ours.steps.step([5] * batch, [context] * batch)
    stream = torch.cuda.current_stream().cuda_stream
    names = [s.name for s in ours.decode.entry.inputs]
    values = (torch.full((batch, 1), 5), torch.full((batch, 1), context), torch.arange(batch))
    there = {n: v.to(device) for n, v in zip(names, values, strict=True)}
    out = ours.decode.run(there, stream=stream)
    return lambda: ours.decode.run(there, out=out, stream=stream)


def speed(report: Report, args: argparse.Namespace) -> Any:
    """Measure prefill of 1,024 tokens and one token after them, next to PyTorch."""
    sizes, context = sizes_of(args), 1024 if args.size == "full" else 64
    model = in_bfloat16(qwen(sizes, args.device))
    tokens = np.random.default_rng(1).integers(0, sizes["vocab_size"], context)
    results: dict[str, Any] = {"context": context}
    started = time.perf_counter()
    ours = Generator(
        model.cpu(), capacity=context + 64, dtype="bfloat16", buckets=(context,), device=args.device
    )
    results["open_s"] = round(time.perf_counter() - started, 1)
    with ours:
        results["calls_per_token"] = len(ours.decode.plan.calls)
        first = ours.steps.read([tokens.tolist()])[0].astype(np.float64)
        runs: dict[str, Callable[[], Any]] = {"native": token_of(ours, context, args.device)}
        fetched = milliseconds(lambda: ours.steps.step([5], [context]), args.device)
        results["decode_ms_with_logits_fetched"] = round(fetched, 4)
        prefill: dict[str, Callable[[], Any]] = {"native": lambda: ours.steps.read([tokens.tolist()])}
        model.to(args.device)
        with torch.inference_mode():
            input_ids = torch.from_numpy(tokens[None]).to(args.device)
            prefill["eager"] = lambda: model(input_ids, logits_to_keep=1)
            results["prefill"] = prefill_errors(report, model, input_ids, first)
            runs |= peers(model, tokens, args, results)
            rounds = [{n: milliseconds(run, args.device, 0.2) for n, run in runs.items()} for _ in range(3)]
            results["decode_ms"] = {n: round(statistics.median(r[n] for r in rounds), 4) for n in runs}
            results["prefill_ms"] = {
                n: round(milliseconds(run, args.device), 3) for n, run in prefill.items()
            }
    if args.compile:
        try:
            results["decode_ms"]["torch.compile"] = compiled_apart(args)
        except (TimeoutError, RuntimeError, OSError) as error:
            results["no torch.compile"] = f"{type(error).__name__}: {error}"[:300]
            print(f"   no torch.compile: {results['no torch.compile']}", flush=True)
    bytes_read = 2 * sum(p.numel() for p in model.parameters())
    results["weights_TB_per_s"] = round(bytes_read / results["decode_ms"]["native"] / 1e9, 3)
    report.bound(
        "Qwen2.5-1.5B sizes, a token at a context of 1,024",
        results["decode_ms"]["native"],
        at_most=TOKEN_MS,
        unit="ms",
    )
    report.bound(
        "Qwen2.5-1.5B sizes, prefill of 1,024", results["prefill_ms"]["native"], at_most=PREFILL_MS, unit="ms"
    )
    for name, ms in results["decode_ms"].items():
        if name != "native":
            report.bound(
                f"a token's time over {name}'s",
                round(results["decode_ms"]["native"] / ms, 3),
                at_most=1.0,
                required=False,
            )
    return results


def prompts(report: Report, args: argparse.Namespace) -> Any:
    """Measure prompts by the default prefill lengths, whose entry points for long prompts are made at the first one, and by short ones alone."""
    sizes, longest = sizes_of(args), 1000 if args.size == "full" else 300
    model = in_bfloat16(qwen(sizes, args.device)).cpu()
    tokens = np.random.default_rng(1).integers(0, sizes["vocab_size"], longest).tolist()
    results: dict[str, Any] = {}
    logits: dict[str, Any] = {}
    for name, buckets in (("default", None), ("16 and 128", BUCKETS)):
        with Generator(model, dtype="bfloat16", buckets=buckets, device=args.device) as ours:
            started = time.perf_counter()
            logits[name] = ours.read(tokens)[0].astype(np.float64)
            row = {"first_s": round(time.perf_counter() - started, 2)}
            for count in (12, 100, 300, longest):
                run = functools.partial(ours.read, tokens[:count])
                row[f"{count}_ms"] = round(milliseconds(run, args.device), 3)
            results[name] = row
            print("  ", name, row, flush=True)
    error = np.abs(logits["default"] - logits["16 and 128"]).max() / np.abs(logits["16 and 128"]).max()
    report.bound("a prompt in one chunk, from one in chunks of 128", round(float(error), 4), at_most=0.08)
    ratio = results["default"][f"{longest}_ms"] / results["16 and 128"][f"{longest}_ms"]
    report.bound("time of a long prompt by default over chunks of 128", round(ratio, 3), at_most=1.02)
    return results


WEIGHTS = ("model", "int8", "fp8", "int4", "int4_128")
"""Words of ``kernel.weights`` that the part ``weights`` measures."""
FORMATS = ("Q4_0", "Q4_K", "Q8_0")
"""Formats of GGUF files that it measures with ``weights: stored``."""


def rounded(model: Any, word: str) -> Any:
    """Round the weights of the model's linear layers, in place and in float32, to what codes and scales of ``word`` say."""
    group = 0 if word in ("int8", "fp8") else int(word.partition("_")[2] or 32)
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(
            model.lm_head.weight.clone()
        )  # the embedding table is not quantized
        for layer in (m for m in model.modules() if isinstance(m, torch.nn.Linear)):
            w = layer.weight.float().cpu().numpy()
            if group:
                w = int4_values(int4_groups(w, group), group)
            elif word == "fp8":
                scale = (abs(w).max(1, keepdims=True) / 448).astype(np.float32)
                w = (
                    torch.from_numpy(w / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float().numpy()
                    * scale
                )
            else:
                scale = (abs(w).max(1, keepdims=True) / 127).astype(np.float32)
                w = np.rint(w / scale) * scale
            layer.weight.copy_(torch.from_numpy(w))
    return model


def in_blocks(model: Any, name: str) -> Checkpoint:
    """Return the model's checkpoint with random blocks of a format instead of the matrices of its layers and of its output layer."""
    found, form = open_checkpoint(model), BLOCK_FORMATS[name]
    layers = [
        n for n, spec in found.specs.items() if spec.rank == 2 and int(spec.shape[1]) % form.values == 0
    ]
    arrays = dict(found.arrays)
    for n in layers:
        rows, width = arrays[n].shape
        arrays[blocks_name(n)] = random_blocks(name, rows, width // form.values)
    return replace(found, arrays=arrays, formats=dict.fromkeys(layers, name), files={}, folder=None)


def with_weights(model: Any, word: str, context: int, device: str) -> Generator:
    """Return the generator that stores weights as ``word`` says."""
    policy = {"version": 1, "kernel": {"weights": word}}
    return Generator(
        model, capacity=context + 64, dtype="bfloat16", buckets=(context,), device=device, policy=policy
    )


def logits_of(model: Any, ids: Any, given: int) -> Any:
    """Return the logits of a prompt's last token and of those after it, but the last one."""
    return model(ids).logits[0, given - 1 : -1].double().cpu().numpy()


def weights(report: Report, args: argparse.Namespace) -> Any:
    """Measure weights of fewer bits: logits of four layers next to PyTorch with the same rounded weights, then a token's time and a prompt's."""
    sizes, context = sizes_of(args), 1024 if args.size == "full" else 64
    results: dict[str, Any] = {"context": context, "layers": args.layers or sizes["num_hidden_layers"]}
    tokens = np.random.default_rng(0).integers(0, sizes["vocab_size"], 144 if args.size == "full" else 24)
    given = len(tokens) - 16
    words = args.words or (*WEIGHTS, *(f"stored, {name}" for name in FORMATS))
    for word in (w for w in WEIGHTS[1:4] if w in words):
        model = in_bfloat16(qwen(sizes, args.device, num_hidden_layers=min(4, sizes["num_hidden_layers"])))
        with with_weights(model.cpu(), word, given, args.device) as ours:
            rows = [ours.steps.read([tokens[:given].tolist()])[0].astype(np.float64)]
            rows += [
                ours.steps.step([int(tokens[i])], [i])[0].astype(np.float64)
                for i in range(given, len(tokens) - 1)
            ]
        with torch.inference_mode():
            exact, ids = rounded(model.to(args.device).float(), word), torch.from_numpy(tokens[None])
            want = logits_of(exact, ids.to(args.device), given)
            theirs = logits_of(in_bfloat16(exact), ids.to(args.device), given)
        errors = {"ours": far(np.array(rows), want), "torch": far(theirs, want)}
        report.bound(
            f"weights in {word}, four layers: from float32 with the same weights",
            errors["ours"],
            at_most=1.25 * errors["torch"],
        )
        results[f"{word}, four layers"] = errors
        del model, exact
    layers = args.layers or sizes["num_hidden_layers"]
    model = in_bfloat16(qwen(sizes, args.device, num_hidden_layers=layers)).cpu()
    prompt = np.random.default_rng(1).integers(0, sizes["vocab_size"], context).tolist()
    for word in words:
        kind, _, name = word.partition(", ")
        source = in_blocks(model, name) if name else model
        started = time.perf_counter()
        with with_weights(source, kind, context, args.device) as ours:
            row = {"open_s": round(time.perf_counter() - started, 1), "stored_bytes": ours.weights.size_bytes}
            ours.steps.read([prompt])
            row["decode_ms"] = round(milliseconds(token_of(ours, context, args.device), args.device, 0.2), 4)
            row["prefill_ms"] = round(
                milliseconds(lambda of=ours: of.steps.read([prompt]), args.device, 0.2), 3
            )
            row["kernels"] = sorted(
                {c.kernel for c in ours.decode.plan.calls if c.kernel.startswith("matmul/")}
            )
        results[word] = row
        print(f"   {word}: {row}", flush=True)
    return results


def prefill_errors(report: Report, model: Any, input_ids: Any, ours: Any) -> dict[str, float]:
    """Return the errors of the logits after a prompt against float32 with the same weights: ours, and PyTorch's in bfloat16.

    The model is bfloat16 again afterwards.
    """

    def last(of: Any) -> Any:
        return of(input_ids, logits_to_keep=1).logits[0, -1].double().cpu().numpy()

    theirs = last(model)
    want = last(model.float())
    in_bfloat16(model)
    errors = {"ours": far(ours, want), "torch": far(theirs, want)}
    report.bound("prefill of 1,024, bfloat16: from float32", errors["ours"], at_most=1.25 * errors["torch"])
    return errors


def token_by(model: Any, tokens: Any, device: str, batch: int = 1) -> Callable[[Any], Any]:
    """Return a function that computes one token of each text after a context by PyTorch with a static cache. It takes the model, eager or compiled.

    Caches of transformers 5 count their positions themselves. One small launch resets all counts after every step.
    """
    from transformers import StaticCache

    context = len(tokens)
    cache = StaticCache(config=model.config, max_cache_len=context + 64)
    input_ids = torch.from_numpy(tokens[None]).to(device).expand(batch, -1)
    model(input_ids, past_key_values=cache, logits_to_keep=1)
    counts = [x.cumulative_length for x in cache.layers if hasattr(x, "cumulative_length")]
    before = [torch.full_like(count, context) for count in counts]
    token = torch.full((batch, 1), 5, device=device)
    place = torch.full((batch, 1), context, device=device)

    def step(of: Any) -> Any:
        logits = of(
            token, past_key_values=cache, position_ids=place, cache_position=place[0], logits_to_keep=1
        ).logits
        if counts:
            torch._foreach_copy_(counts, before)
        return logits

    return step


def peers(
    model: Any, tokens: Any, args: argparse.Namespace, results: dict[str, Any], batch: int = 1
) -> dict[str, Callable[[], Any]]:
    """Return PyTorch's steps to time in turns with ours; ``results`` records why one is not available."""
    step = token_by(model, tokens, args.device, batch)
    steps: dict[str, Callable[[], Any]] = {"eager": lambda: step(model)}
    if args.device != "cpu":
        try:
            steps["cuda graph"] = captured(steps["eager"])
        except Exception as error:
            results["no cuda graph"] = f"{type(error).__name__}: {error}"[:300]
    return steps


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """Capture a step in a CUDA graph. Return its replay, which keeps the step and so the tensors that the graph reads."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # which may still read the prompt
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(kept: Callable[[], Any] = step) -> None:
        graph.replay()

    return replay


def compiled(report: Report, args: argparse.Namespace) -> Any:
    """Measure a token's time by torch.compile, in the mode recommended for decoding. Runs in a process of its own, which can be killed."""
    sizes, context = sizes_of(args), 1024 if args.size == "full" else 64
    model = in_bfloat16(qwen(sizes, args.device))
    tokens = np.random.default_rng(1).integers(0, sizes["vocab_size"], context)
    fast = torch.compile(model, mode="reduce-overhead" if args.device != "cpu" else "default", dynamic=False)
    with torch.inference_mode():
        step = token_by(model, tokens, args.device)
        want = step(model).double().cpu().numpy()
        report.check(far(step(fast).double().cpu().numpy(), want) < 0.1, "torch.compile says what eager says")
        return {"decode_ms": round(milliseconds(lambda: step(fast), args.device), 4)}


def compiled_apart(args: argparse.Namespace) -> float:
    """Run the part ``compiled`` in another process, which is killed after COMPILE_S. Raises TimeoutError, RuntimeError."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "compiled.json"
        line = [
            sys.executable,
            __file__,
            "compiled",
            "--device",
            args.device,
            "--size",
            args.size,
            "--out",
            str(out),
        ]
        process = subprocess.Popen(line, start_new_session=True)
        try:
            process.wait(COMPILE_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"compiling and measuring took over {COMPILE_S} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        result = json.loads(out.read_text(encoding="utf-8"))["compiled"]
        if "decode_ms" not in result:
            raise RuntimeError(str(result.get("error", result)))
        return float(result["decode_ms"])


PARTS = {
    "four": four,
    "full": full,
    "speed": speed,
    "prompts": prompts,
    "weights": weights,
    "compiled": compiled,
}
USUAL = ("four", "full", "speed", "prompts")


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a part fails or a limit is missed."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--words", nargs="*", default=[], help="of the part weights, instead of all")
    parser.add_argument("--layers", type=int, default=0, help="of the part weights, instead of all")
    parser.add_argument("--compile", action="store_true", help=f"torch.compile, too: up to {COMPILE_S} s")
    args = parser.parse_args(argv)
    arguments_given = list(sys.argv[1:] if argv is None else argv)
    return run_parts(
        __doc__, PARTS, packages=("torch", "transformers"), argv=arguments_given if args.parts else [*arguments_given, *USUAL], parser=parser,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none", before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
