"""Qwen2.5-1.5B's sizes on CUDA by the native engine compared with PyTorch on the same device: how far from float64, and how fast a token is.

    python benchmarks/cuda/decoders.py --out benchmarks/results/cuda_decoders.json [--compile] [--device cuda:0] [--size full] [PART ...]

Parts: ``four`` and ``full`` (four layers, all 28: prefill, then 64 steps whose tokens are given, against float64), ``speed`` (prefill, and one token at
a context of 1,024, next to PyTorch eager, a CUDA graph of it and, with ``--compile``, torch.compile), and, only when it is named, ``compiled``
(torch.compile alone). Needs torch and transformers; on a machine without a GPU ``--device cpu --size small`` tries the script itself. Where a token's
time is spent: ``decoder_cuts.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paths  # noqa: F401
import torch
from gpu_report import Report, arguments, run_parts
from models import far, milliseconds, prepare

from xpuruntime.llm import Generator

QWEN = {
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
SMALL = {
    "vocab_size": 500, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 5, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
TOKEN_MS, PREFILL_MS = 1.2, 8.0
COMPILE_S = 150
"""Seconds that torch.compile may take."""


def sizes_of(args: argparse.Namespace) -> dict[str, Any]:
    """The configuration of a size."""
    return QWEN if args.size == "full" else SMALL


def qwen(sizes: dict[str, Any], device: str, **changes: Any) -> Any:
    """The model with seeded weights in float32, biases and norms changed too: nothing hides."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        made = Qwen2ForCausalLM(Qwen2Config(**{**sizes, **changes})).eval()
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(torch.randn(p.shape, generator=generator, device=device) * 0.02)
    return made


def in_bfloat16(model: Any) -> Any:
    """The model with its weights in bfloat16, changed in place. Buffers stay: rotations by rounded frequencies are far off a thousand tokens on."""
    for p in model.parameters():
        p.data = p.data.bfloat16()
    return model


def agreement(report: Report, asked: argparse.Namespace, layers: int) -> dict[str, Any]:
    """Logits of the last token of a prompt and of each forced token after it: ours and PyTorch's, in float32 and bfloat16, against float64."""
    sizes = sizes_of(asked)
    prompt, steps = (128, 64) if asked.size == "full" else (16, 8)
    tokens = np.random.default_rng(0).integers(0, sizes["vocab_size"], prompt + steps)
    given = torch.from_numpy(tokens[None]).to(asked.device)

    def logits(of: Any) -> Any:
        """Only those that are compared are made."""
        hidden = of.model(given).last_hidden_state[:, prompt - 1 : -1]
        return of.lm_head(hidden)[0].double().cpu().numpy()

    model = qwen(sizes, asked.device, num_hidden_layers=layers)
    with torch.inference_mode():
        want = logits(model.double())  # of the same weights: float32 fits
        theirs = {"float32": far(logits(model.float()), want)}
        model.cpu()
        theirs["bfloat16"] = far(
            logits(in_bfloat16(qwen(sizes, asked.device, num_hidden_layers=layers))), want
        )
    if asked.device != "cpu":
        torch.cuda.empty_cache()
    found: dict[str, Any] = {"prompt": prompt, "steps": steps}
    for dtype, other in theirs.items():
        ours = Generator(model, capacity=prompt + steps, dtype=dtype, buckets=(prompt,), device=asked.device)
        with ours:
            rows = [ours.steps.read([tokens[:prompt].tolist()])[0].astype(np.float64)]
            rows += [
                ours.steps.step([int(tokens[i])], [i])[0].astype(np.float64)
                for i in range(prompt, prompt + steps - 1)
            ]
        error = far(np.array(rows), want)
        limit = max(1e-5, 1.25 * other) if dtype == "float32" else 1.25 * other
        found[dtype] = {"ours": error, "torch": other}
        report.bound(
            f"Qwen2.5-1.5B sizes, {layers} layers, prefill and {steps} forced steps, {dtype}: from float64",
            error,
            at_most=limit,
        )
    return found


def four(report: Report, asked: argparse.Namespace) -> Any:
    """Four layers through prefill and forced steps, against float64."""
    return agreement(report, asked, 4)


def full(report: Report, asked: argparse.Namespace) -> Any:
    """All layers through prefill and forced steps, against float64."""
    return agreement(report, asked, sizes_of(asked)["num_hidden_layers"])


def token_of(ours: Generator, context: int, device: str, batch: int = 1) -> Callable[[], Any]:
    """One token of each text at a context, on the device from its input to its logits."""
    if device == "cpu":
        return lambda: ours.steps.step([5] * batch, [context] * batch)
    stream = torch.cuda.current_stream().cuda_stream
    names = [s.name for s in ours.decode.entry.inputs]
    values = (torch.full((batch, 1), 5), torch.full((batch, 1), context), torch.arange(batch))
    there = {n: v.to(device) for n, v in zip(names, values, strict=True)}
    out = ours.decode.run(there, stream=stream)
    return lambda: ours.decode.run(there, out=out, stream=stream)


def speed(report: Report, asked: argparse.Namespace) -> Any:
    """Prefill of 1,024 tokens and one token after them, next to PyTorch."""
    sizes, context = sizes_of(asked), 1024 if asked.size == "full" else 64
    model = in_bfloat16(qwen(sizes, asked.device))
    tokens = np.random.default_rng(1).integers(0, sizes["vocab_size"], context)
    found: dict[str, Any] = {"context": context}
    started = time.perf_counter()
    ours = Generator(
        model.cpu(), capacity=context + 64, dtype="bfloat16", buckets=(context,), device=asked.device
    )
    found["open_s"] = round(time.perf_counter() - started, 1)
    with ours:
        found["calls_per_token"] = len(ours.decode.plan.calls)
        first = ours.steps.read([tokens.tolist()])[0].astype(np.float64)
        runs: dict[str, Callable[[], Any]] = {"native": token_of(ours, context, asked.device)}
        fetched = milliseconds(lambda: ours.steps.step([5], [context]), asked.device)
        found["decode_ms_with_logits_fetched"] = round(fetched, 4)
        prefill: dict[str, Callable[[], Any]] = {"native": lambda: ours.steps.read([tokens.tolist()])}
        model.to(asked.device)
        with torch.inference_mode():
            given = torch.from_numpy(tokens[None]).to(asked.device)
            prefill["eager"] = lambda: model(given, logits_to_keep=1)
            found["prefill"] = judged(report, model, given, first)
            runs |= peers(model, tokens, asked, found)
            rounds = [{n: milliseconds(run, asked.device, 0.2) for n, run in runs.items()} for _ in range(3)]
            found["decode_ms"] = {n: round(statistics.median(r[n] for r in rounds), 4) for n in runs}
            found["prefill_ms"] = {n: round(milliseconds(run, asked.device), 3) for n, run in prefill.items()}
    if asked.compile:
        try:
            found["decode_ms"]["torch.compile"] = compiled_apart(asked)
        except (TimeoutError, RuntimeError, OSError) as error:
            found["no torch.compile"] = f"{type(error).__name__}: {error}"[:300]
            print(f"   no torch.compile: {found['no torch.compile']}", flush=True)
    bytes_read = 2 * sum(p.numel() for p in model.parameters())
    found["weights_TB_per_s"] = round(bytes_read / found["decode_ms"]["native"] / 1e9, 3)
    report.bound(
        "Qwen2.5-1.5B sizes, a token at a context of 1,024",
        found["decode_ms"]["native"],
        at_most=TOKEN_MS,
        unit="ms",
    )
    report.bound(
        "Qwen2.5-1.5B sizes, prefill of 1,024", found["prefill_ms"]["native"], at_most=PREFILL_MS, unit="ms"
    )
    for name, ms in found["decode_ms"].items():
        if name != "native":
            report.bound(
                f"a token's time over {name}'s",
                round(found["decode_ms"]["native"] / ms, 3),
                at_most=1.0,
                required=False,
            )
    return found


def judged(report: Report, model: Any, given: Any, ours: Any) -> dict[str, float]:
    """How far the logits after a prompt are from those of the same weights in float32: ours, and PyTorch's in bfloat16. Leaves the model as it was."""

    def last(of: Any) -> Any:
        return of(given, logits_to_keep=1).logits[0, -1].double().cpu().numpy()

    theirs = last(model)
    want = last(model.float())
    in_bfloat16(model)
    errors = {"ours": far(ours, want), "torch": far(theirs, want)}
    report.bound("prefill of 1,024, bfloat16: from float32", errors["ours"], at_most=1.25 * errors["torch"])
    return errors


def token_by(model: Any, tokens: Any, device: str) -> Callable[[Any], Any]:
    """PyTorch's way to one token after a context, with a cache of one size: a function of the model as it is or compiled.

    Caches of transformers 5 count their positions themselves: one small launch sets all counts back after every step.
    """
    from transformers import StaticCache

    context = len(tokens)
    cache = StaticCache(config=model.config, max_cache_len=context + 64)
    model(torch.from_numpy(tokens[None]).to(device), past_key_values=cache, logits_to_keep=1)
    counts = [x.cumulative_length for x in cache.layers if hasattr(x, "cumulative_length")]
    before = [torch.full_like(count, context) for count in counts]
    token = torch.full((1, 1), 5, device=device)
    place = torch.full((1, 1), context, device=device)

    def step(of: Any) -> Any:
        logits = of(
            token, past_key_values=cache, position_ids=place, cache_position=place[0], logits_to_keep=1
        ).logits
        if counts:
            torch._foreach_copy_(counts, before)
        return logits

    return step


def peers(
    model: Any, tokens: Any, asked: argparse.Namespace, found: dict[str, Any]
) -> dict[str, Callable[[], Any]]:
    """Steps of PyTorch that are timed by turns with ours; ``found`` records why one is not available."""
    step = token_by(model, tokens, asked.device)
    made: dict[str, Callable[[], Any]] = {"eager": lambda: step(model)}
    if asked.device != "cpu":
        try:
            made["cuda graph"] = captured(made["eager"])
        except Exception as error:
            found["no cuda graph"] = f"{type(error).__name__}: {error}"[:300]
    return made


def captured(step: Callable[[], Any]) -> Callable[[], Any]:
    """A CUDA graph of a step."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def compiled(report: Report, asked: argparse.Namespace) -> Any:
    """A token's time by torch.compile, in the mode that users take for decoding; by itself, since nothing else ends its compiler in time."""
    sizes, context = sizes_of(asked), 1024 if asked.size == "full" else 64
    model = in_bfloat16(qwen(sizes, asked.device))
    tokens = np.random.default_rng(1).integers(0, sizes["vocab_size"], context)
    fast = torch.compile(model, mode="reduce-overhead" if asked.device != "cpu" else "default", dynamic=False)
    with torch.inference_mode():
        step = token_by(model, tokens, asked.device)
        want = step(model).double().cpu().numpy()
        report.check(far(step(fast).double().cpu().numpy(), want) < 0.1, "torch.compile says what eager says")
        return {"decode_ms": round(milliseconds(lambda: step(fast), asked.device), 4)}


def compiled_apart(asked: argparse.Namespace) -> float:
    """The same in a process of its own, which is ended after COMPILE_S. Raises TimeoutError, RuntimeError."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "compiled.json"
        line = [
            sys.executable,
            __file__,
            "compiled",
            "--device",
            asked.device,
            "--size",
            asked.size,
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
        found = json.loads(out.read_text(encoding="utf-8"))["compiled"]
        if "decode_ms" not in found:
            raise RuntimeError(str(found.get("error", found)))
        return float(found["decode_ms"])


PARTS = {"four": four, "full": full, "speed": speed, "compiled": compiled}
USUAL = ("four", "full", "speed")


def main(argv: Sequence[str] | None = None) -> int:
    """1 when a part fails or a limit is missed."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--compile", action="store_true", help=f"torch.compile, too: up to {COMPILE_S} s")
    asked = parser.parse_args(argv)
    named = list(sys.argv[1:] if argv is None else argv)
    return run_parts(
        __doc__, PARTS, packages=("torch", "transformers"), given=named if asked.parts else [*named, *USUAL], parser=parser,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none", before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
