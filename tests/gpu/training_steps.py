"""Training on a device: gradients of whole networks near float64, captured steps in flat memory, and kernels of attention by policy.

    python tests/gpu/training_steps.py --out benchmarks/results/cuda_training_steps.json [--device cpu] [PART ...]

Needs transformers. ``--device cpu`` tries the script: it captures nothing and sees no kernels.
"""

from __future__ import annotations

import argparse
import copy
import re
import resource
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from gpu_report import Report, arguments, run_parts
from torch import Tensor, nn

import xpuruntime.pytorch as xrt_torch
from xpuruntime.pytorch.capture.step import CapturedStep

WORDS = 211
_NO_KERNEL = re.compile("cuda[A-Z]|cu[A-Z]|Mem(cpy|set)|Activity")
"""Calls of the driver and the runtime, and copies, which the profiler lists beside kernels."""
SUM_RATIO, EACH_RATIO = 1.5, 4.0
"""Bounds on our error over eager's: of all gradients together, and of each. Two correct orders of sums differ by a few times eager's error."""
Case = tuple[nn.Module, tuple[Tensor, ...]]


def gpt2(device: str, layers: int = 12, size: int = 768, heads: int = 12, length: int = 128) -> Case:
    """Return GPT-2 without dropout, and tokens."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=size, n_head=heads, n_positions=length, vocab_size=WORDS, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config).to(device), (torch.randint(0, WORDS, (2, length)).to(device),)


def resnet50(device: str) -> Case:
    """Return ResNet-50 in training mode, and images."""
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=10))
    return model.to(device), (torch.randn(8, 3, 64, 64).to(device),)


class Decoder(nn.Module):
    """Two blocks of causal attention. Those of transformers give attention a mask tensor, which cuDNN's does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(128, 3 * 128) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(128, 128) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(128) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, qkv, out in zip(self.norms, self.qkv, self.out, strict=True):
            q, k, v = (t.unflatten(2, (2, 64)).transpose(1, 2) for t in qkv(norm(x)).split(128, 2))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(y.transpose(1, 2).flatten(2))
        return x


NETWORKS: dict[str, Callable[[str], Case]] = {"gpt2": gpt2, "resnet50": resnet50}


def loss_of(y: Any) -> Tensor:
    """Return a loss that every logit has a different share in."""
    logits = getattr(y, "logits", y)
    logits = logits if logits.dtype is torch.float64 else logits.float()
    shares = torch.linspace(-1, 1, logits.shape[-1], device=logits.device, dtype=logits.dtype)
    return ((logits - shares) ** 2).mean()


def gradients(
    run: Callable[..., Any], net: nn.Module, inputs: Sequence[Tensor], low: Any
) -> dict[str, Tensor]:
    """Return the gradients of a step. low: the 16-bit type of autocast, or None."""
    net.zero_grad()
    device = inputs[0].device.type
    with torch.autocast(device, dtype=low, enabled=low is not None):
        loss = loss_of(run(*inputs))
    loss.backward()
    return {n: p.grad.double() for n, p in net.named_parameters() if p.grad is not None}


def right(report: Report, args: argparse.Namespace) -> Any:
    """Gradients of the backend ``xpuruntime`` against float64, beside eager's."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    found: dict[str, Any] = {}
    for name, build in NETWORKS.items():
        net, inputs = build(args.device)
        wide = tuple(t.double() if t.is_floating_point() else t for t in inputs)
        exact_net = copy.deepcopy(net).double()
        exact = gradients(exact_net, exact_net, wide, None)
        start = copy.deepcopy(net.state_dict())
        for low in (None, torch.bfloat16, *((torch.float16,) if args.device != "cpu" else ())):
            torch.compiler.reset()
            errors = []
            for run in (net, torch.compile(net, backend="xpuruntime")):
                net.load_state_dict(start)
                got = gradients(run, net, inputs, low)
                errors.append({n: float((got[n] - t).norm()) for n, t in exact.items()})
            kind = str(low or torch.float32).removeprefix("torch.")
            found[f"{name} {kind}"] = judged(report, f"{name} {kind}", *errors, exact)
    return found


def judged(
    report: Report, who: str, eager: dict[str, float], mine: dict[str, float], exact: dict[str, Tensor]
) -> Any:
    """Compare errors: of all gradients together, and of each."""
    largest = max(float(t.norm()) for t in exact.values())
    total = [sum(e**2 for e in errors.values()) ** 0.5 for errors in (mine, eager)]
    # A gradient that is 0 but for rounding, as of a key's bias, has no error to compare with.
    ratios = {n: mine[n] / max(eager[n], 1e-7 * largest) for n in exact}
    worst = max(ratios, key=ratios.__getitem__)
    report.bound(
        f"{who}: error of all gradients over eager's", total[0] / total[1], at_most=SUM_RATIO, unit="x"
    )
    report.bound(
        f"{who}: largest error of one gradient over eager's", ratios[worst], at_most=EACH_RATIO, unit="x"
    )
    scale = sum(float(t.norm()) ** 2 for t in exact.values()) ** 0.5
    return {"error": total[0] / scale, "eager": total[1] / scale, "worst": worst, "ratio": ratios[worst]}


def captured(report: Report, args: argparse.Namespace) -> Any:
    """Ten thousand captured steps: device memory and the process stay as large, and the loss falls. Needs the device for itself."""
    net, _ = gpt2(args.device, layers=2, size=64, heads=2, length=32)
    run = torch.compile(net, backend="xpuruntime")
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, capturable=args.device != "cpu")

    def body(tokens: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss

    step = xrt_torch.capture_graph(body)
    assert isinstance(step, CapturedStep)
    batches = [torch.randint(0, 7, (2, 32)).cumsum(1).remainder(WORDS).to(args.device) for _ in range(16)]

    def losses(count: int) -> list[float]:
        return [float(step(batches[i % 16]).detach()) for i in range(count)]

    first = losses(500)
    before, process = _device_bytes(args.device), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    steps = 10_000 if args.device != "cpu" else 50
    last = losses(steps)
    grown = _device_bytes(args.device) - before
    host = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - process) / 1024
    report.bound(f"{steps} captured steps: device memory", grown, at_most=0, unit="bytes more")
    report.bound(f"{steps} captured steps: the process", host, at_most=16, unit="MiB more")
    mean = [sum(part[-16:]) / 16 for part in (first[:16], last)]
    report.check(
        all(map(_finite, last)) and mean[1] < mean[0], f"the loss falls from {mean[0]:.3f} to {mean[1]:.3f}"
    )
    if args.device != "cpu":
        report.check(step.report[-1].captured, "the step is captured")
    return {"losses": mean, "device_bytes": grown, "process_mib": host}


def _device_bytes(device: str) -> int:
    if device == "cpu":
        return 0
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def _finite(value: float) -> bool:
    return value - value == 0


def launched(work: Callable[[], Any], device: str) -> Counter[str]:
    """Return the kernels that CUPTI saw, with their counts, through PyTorch's profiler; on a processor none."""
    work()
    if device == "cpu":
        return Counter()
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return Counter({e.key: e.count for e in seen.key_averages() if not _NO_KERNEL.match(e.key)})


def swaps(report: Report, args: argparse.Namespace) -> Any:
    """flash_v2, cudnn and naive in a step of a decoder: the kernels that differ are those of attention, forward and backward."""
    torch.manual_seed(0)
    net, inputs = Decoder().to(args.device), (torch.randn(2, 256, 128).to(args.device),)
    seen: dict[str, Counter[str]] = {}
    own: dict[str, set[str]] = {}
    for word in ("flash_v2", "cudnn", "naive"):
        torch.compiler.reset()
        run = torch.compile(net, backend="xpuruntime")

        def work(run: Callable[..., Any] = run) -> Any:
            return gradients(run, net, inputs, torch.bfloat16)

        with xrt_torch.set_kernel_policy(attention=word):
            work()
            with xrt_torch.record() as record:
                work()
            seen[word] = launched(work, args.device)
        mine = [p for p in record.prepared if p.op.startswith("attention")]
        own[word] = {k.partition(": ")[2].partition(" ")[0] for p in mine for k in p.kernels}
        for phase in ("train_forward", "train_backward"):
            kernels = sorted({k.partition(":")[0] for p in mine if p.phase == phase for k in p.kernels})
            if args.device != "cpu":
                named = kernels == [f"attention/{word}"] or (word == "naive" and phase == "train_backward")
                report.check(named, f"{word}: {phase} of attention runs {', '.join(kernels)}")
    if args.device == "cpu":
        return None
    for a in seen:
        for b in (w for w in seen if w != a):
            strange = [k for k in (seen[a] - seen[b]) if not _of_attention(k, a, own[a])]
            report.check(
                not strange,
                f"{a} in place of {b} adds only kernels of attention{': ' if strange else ''}{strange}",
            )
    return {word: {"attention": sorted(own[word]), "kernels": dict(counts)} for word, counts in seen.items()}


def _of_attention(kernel: str, word: str, symbols: set[str]) -> bool:
    """Tell whether a kernel is attention's: our symbol, or one of cuDNN's, whose names say what they compute."""
    if word == "cudnn":
        return any(part in kernel for part in ("cudnn", "sdpa", "fmha", "flash", "attention"))
    return any(symbol in kernel for symbol in symbols) or (word == "naive" and "gemm" in kernel)


PARTS = {"right": right, "captured": captured, "swaps": swaps}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a check fails."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return run_parts(
        __doc__, PARTS, gpu=lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
        packages=("torch", "transformers"), argv=argv, parser=parser,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
