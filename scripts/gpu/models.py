"""Whole networks on CUDA by the native engine beside PyTorch on the same device: how far from float64, and how fast.

    python scripts/gpu/models.py --out benchmarks/results/cuda_models.json [--compile] [--device cuda:0] [--size full] [PART ...]

Parts: ``accuracy`` (ResNet-18 and -50 in float32 without TF32, and in float16 and bfloat16, over 20 inputs), ``images`` (ResNet-50 in
float16, images per second beside PyTorch eager, a CUDA graph of it and, with ``--compile``, torch.compile), ``decoder`` (the sizes of
Qwen2.5-1.5B: a cut of four layers against float64 through prefill and 64 steps, then milliseconds per token at a context of 1,024). Outputs are
checked before anything is timed. Needs torch and transformers; on a machine without a GPU ``--device cpu --size small`` tries the script itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gpu_machine import Report, arguments, run_parts

import xpuruntime as xrt
from xpuruntime.llm import Generator
from xpuruntime.testing import models

QWEN = {
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}  # fmt: skip
SMALL = {
    "vocab_size": 500, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}  # fmt: skip


def wait(device: str) -> None:
    """Until everything queued on the device is done."""
    if device != "cpu":
        torch.cuda.synchronize()


def milliseconds(run: Callable[[], Any], device: str, seconds: float = 0.5) -> float:
    """Median over rounds of the time of a run, several queued behind one another in a round."""
    for _ in range(5):
        run()
    wait(device)
    start = time.perf_counter()
    run()
    wait(device)
    times = max(3, min(50, int(0.05 / (time.perf_counter() - start))))
    found: list[float] = []
    while sum(found) * times < seconds:
        start = time.perf_counter()
        for _ in range(times):
            run()
        wait(device)
        found.append((time.perf_counter() - start) / times)
    return statistics.median(found) * 1e3


def far(got: Any, want: np.ndarray[Any, Any]) -> float:
    """max|d| / max|ref|."""
    return float(np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max())


def session(module: Any, x: torch.Tensor, device: str, precision: str) -> tuple[xrt.InferenceSession, str]:
    """A native session on float32 inputs, and the name of its input."""
    policy = None if precision == "float32" else xrt.ExecutionPolicy(precision=precision)
    made = xrt.InferenceSession(
        module, device=device, engine="native", example_inputs=(x,), exec_policy=policy
    )
    return made, made.input_info[0].name


def accuracy(asked: argparse.Namespace) -> Any:
    """Errors against float64, ours and PyTorch's on the same device."""
    found: dict[str, Any] = {}
    for name in ("resnet18", "resnet50"):
        module, _ = models.build(name, asked.size)
        images = torch.from_numpy(models.inputs(name, 20, size=asked.size)["image"])
        with torch.inference_mode():
            want = module.to(asked.device).double()(images.to(asked.device).double()).cpu().numpy()
            theirs = {}
            for dtype in ("float32", "float16", "bfloat16"):
                kind = getattr(torch, dtype)
                there = module.to(kind)
                theirs[dtype] = far(there(images.to(asked.device, kind)).double().cpu().numpy(), want)
        module, _ = models.build(name, asked.size)
        for dtype, other in theirs.items():
            opened, entry = session(module, images[:1], asked.device, dtype)
            with opened:
                ours = np.concatenate(
                    [next(iter(opened.run({entry: i[None].numpy()}).values())) for i in images]
                )
            same = bool((np.argsort(ours)[:, -5:] == np.argsort(want)[:, -5:]).all())
            error = far(ours, want)
            limit = 1e-5 if dtype == "float32" else 1.25 * other
            row = {"ours": error, "torch": other, "ok": error <= limit, "same_top5": same}
            found[f"{name} {dtype}"] = row
            print(f"   {name} {dtype}: {row}", flush=True)
    return found


def images(asked: argparse.Namespace) -> Any:
    """ResNet-50 in float16."""
    found: dict[str, Any] = {}
    for batch in (1, 32, 256) if asked.size == "full" else (1, 4):
        row = found[f"batch {batch}"] = _batch(asked, batch)
        print(f"   batch {batch}: {row}", flush=True)
    return found


def _batch(asked: argparse.Namespace, batch: int) -> dict[str, Any]:
    module, _ = models.build("resnet50", asked.size)
    shape = models.inputs("resnet50", 1, size=asked.size)["image"].shape
    x = torch.randn(batch, *shape[1:], generator=torch.Generator().manual_seed(batch))
    started = time.perf_counter()
    opened, entry = session(module, x, asked.device, "float16")
    took = time.perf_counter() - started
    half = module.to(asked.device).half().to(memory_format=torch.channels_last)
    given = x.to(asked.device)
    image = given.half().to(memory_format=torch.channels_last)
    with opened, torch.inference_mode():
        got = next(iter(opened.run({entry: given}).values()))
        error = far(got.double().cpu().numpy(), half(image).double().cpu().numpy())
        runs: dict[str, Callable[[], Any]] = {
            "native": lambda: opened.run({entry: given}),
            "eager": lambda: half(image),
        }
        if asked.device != "cpu":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                half(image)
            runs["cuda graph"] = graph.replay
        if asked.compile:
            compiled = torch.compile(half, mode="reduce-overhead")
            runs["torch.compile"] = lambda: compiled(image)
        rounds = [{n: milliseconds(run, asked.device, 0.2) for n, run in runs.items()} for _ in range(3)]
        opened.run({entry: x.numpy()})
        kernels = sorted({r.kernel.partition(":")[0] for r in opened.receipt().evidence["r0"].rows})
    ms = {n: round(statistics.median(r[n] for r in rounds), 4) for n in runs}
    return {
        "ms": ms,
        "images_per_s": round(batch / ms["native"] * 1e3),
        "from_torch": error,
        "ok": error < 2e-2,
        "open_s": round(took, 1),
        "kernels": kernels,
    }


def _qwen(sizes: dict[str, Any], device: str, **changes: Any) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        made = Qwen2ForCausalLM(Qwen2Config(**{**sizes, **changes})).eval()
    generator = torch.Generator(device).manual_seed(1)
    with torch.no_grad():
        for p in made.parameters():  # biases and norms too: nothing hides
            p.add_(torch.randn(p.shape, generator=generator, device=device) * 0.02)
    return made


def decoder(asked: argparse.Namespace) -> Any:
    """A cut through prefill and teacher-forced decode against float64; then speed at full depth."""
    sizes = QWEN if asked.size == "full" else SMALL
    prompt, steps = (128, 64) if asked.size == "full" else (16, 8)
    found: dict[str, Any] = {}
    tokens = np.random.default_rng(0).integers(0, sizes["vocab_size"], prompt + steps)
    given = torch.from_numpy(tokens[None]).to(asked.device)
    model = _qwen(sizes, asked.device, num_hidden_layers=min(4, sizes["num_hidden_layers"]))
    with torch.inference_mode():
        want = model.double()(given).logits[0, prompt - 1 : -1].cpu().numpy()
        model.float()
        theirs = {"float32": far(model(given).logits[0, prompt - 1 : -1].double().cpu().numpy(), want)}
        lower = _qwen(sizes, asked.device, num_hidden_layers=model.config.num_hidden_layers).bfloat16()
        theirs["bfloat16"] = far(lower(given).logits[0, prompt - 1 : -1].double().cpu().numpy(), want)
    model.cpu()
    for dtype, other in theirs.items():
        ours = Generator(model, capacity=prompt + steps, dtype=dtype, buckets=(prompt,), device=asked.device)
        with ours:
            logits = [ours.steps.read([tokens[:prompt].tolist()])[0].astype(np.float64)]
            logits += [
                ours.steps.step([int(tokens[i])], [i])[0].astype(np.float64)
                for i in range(prompt, prompt + steps - 1)
            ]
        error = far(np.array(logits), want)
        row = {"ours": error, "torch": other, "ok": error <= (1e-5 if dtype == "float32" else 1.25 * other)}
        found[f"4 layers {dtype}"] = row
        print(f"   4 layers {dtype}: {row}", flush=True)
    found["speed"] = _speed(asked, sizes)
    print(f"   speed: {found['speed']}", flush=True)
    return found


def _speed(asked: argparse.Namespace, sizes: dict[str, Any]) -> Any:
    context = 1024 if asked.size == "full" else 64
    model = _qwen(sizes, asked.device).bfloat16().cpu()
    started = time.perf_counter()
    ours = Generator(model, capacity=context + 64, dtype="bfloat16", buckets=(context,), device=asked.device)
    took = time.perf_counter() - started
    tokens = np.random.default_rng(1).integers(0, sizes["vocab_size"], context)
    with ours:
        prefill = milliseconds(lambda: ours.steps.read([tokens.tolist()]), asked.device)
        arrays = milliseconds(lambda: ours.steps.step([5], [context]), asked.device)
        found = {
            "context": context,
            "open_s": round(took, 1),
            "calls_per_token": len(ours.decode.plan.calls),
            "prefill_ms": round(prefill, 3),
            "decode_ms_with_logits_fetched": round(arrays, 4),
        }
        if asked.device != "cpu":
            stream = torch.cuda.current_stream().cuda_stream
            names = [s.name for s in ours.decode.entry.inputs]
            values = (torch.full((1, 1), 5), torch.full((1, 1), context), torch.zeros(1, dtype=torch.int64))
            there = {n: v.to(asked.device) for n, v in zip(names, values, strict=True)}
            out = ours.decode.run(there, stream=stream)
            run = lambda: ours.decode.run(there, out=out, stream=stream)  # noqa: E731
            found["decode_ms"] = round(milliseconds(run, asked.device), 4)
            bytes_read = 2 * sum(p.numel() for p in model.parameters())
            found["weights_TB_per_s"] = round(bytes_read / found["decode_ms"] / 1e9, 3)
    return found


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "accuracy": accuracy,
    "images": images,
    "decoder": decoder,
}


IMAGES_MS = {"batch 1": 0.45}
IMAGES_PER_S = {"batch 256": 22_000}


def told(report: Report, name: str, found: Any) -> None:
    """Rows of the table of Shows."""
    rows = {k: v for k, v in found.items() if isinstance(v, dict) and "ok" in v}
    for what, row in rows.items():
        if name == "images":
            ms = row["ms"]
            report.check(row["ok"], f"ResNet-50 float16 {what}: {row['from_torch']:.1e} from torch")
            for peer in ("eager", "cuda graph", "torch.compile"):
                if peer in ms:
                    ratio = round(ms["native"] / ms[peer], 3)
                    report.show(
                        f"ResNet-50 float16 {what}: time over {peer}'s", ratio, at_most=1.0, required=False
                    )
            if what in IMAGES_MS:
                report.show(f"ResNet-50 float16 {what}", ms["native"], at_most=IMAGES_MS[what], unit="ms")
            if what in IMAGES_PER_S:
                report.show(
                    f"ResNet-50 float16 {what}",
                    row["images_per_s"],
                    at_least=IMAGES_PER_S[what],
                    unit="images/s",
                )
        else:
            limit = 1e-5 if "float32" in what else 1.25 * row["torch"]
            report.show(f"{name}, {what}: from float64", row["ours"], at_most=limit)
    speed = found.get("speed", {})
    if "decode_ms" in speed:
        report.show(
            "Qwen2.5-1.5B sizes, a token at a context of 1,024", speed["decode_ms"], at_most=1.2, unit="ms"
        )
        report.show("Qwen2.5-1.5B sizes, prefill of 1,024", speed["prefill_ms"], at_most=8.0, unit="ms")


def _part(name: str) -> Callable[[Report, argparse.Namespace], Any]:
    def run(report: Report, asked: argparse.Namespace) -> Any:
        found = PARTS[name](asked)
        told(report, name, found)
        return found

    run.__doc__ = PARTS[name].__doc__
    return run


def prepare(asked: argparse.Namespace) -> None:
    """Full float32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def main(given: Sequence[str] | None = None) -> int:
    """1 when a part fails or a limit is missed."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--compile", action="store_true", help="torch.compile, too: a minute each")
    return run_parts(
        __doc__, {name: _part(name) for name in PARTS}, packages=("torch", "transformers"), given=given, parser=parser,
        gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none", before=prepare,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
