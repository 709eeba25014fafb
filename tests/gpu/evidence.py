"""Acceptance checks of receipts on a CUDA device: kernels that CUPTI recorded, joined to nodes, and pinned kernels and algorithms.

    python tests/gpu/evidence.py --out benchmarks/results/cuda_evidence.json [--device cuda:0] [PART ...]

Needs torch. Outputs are compared with PyTorch or the default session before a receipt is checked.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gpu_report import Report, arguments, called_us, run_parts
from receipt_facts import changed, judge_seen, layers, near, opened, rows_of, seen_of

import xpuruntime as xrt
from xpuruntime.errors import BuildError, RunError
from xpuruntime.testing.conformance.seeded import networks as models

NOWHERE = 99_999
"""An algorithm that no library has. The error for it lists the available ones."""


class Words(torch.nn.Module):
    """An embedding table of 100 rows, indexed by an input."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) * 2.0


def receipts(report: Report, args: argparse.Namespace) -> Any:
    """Check receipts of ResNet-18 and a vision transformer: every call is joined to kernels that the driver ran."""
    results = {}
    for name in ("resnet18", "vit"):
        module, (x, *_) = models.build(name, "full" if args.device != "cpu" else "small")
        sess = opened(module, x, args)
        _, receipt, evidence = rows_of(sess, x)
        judge_seen(report, name, evidence)
        report.check(receipt.confirmed, f"{name}: the receipt is confirmed by evidence")
        results[name] = {
            "rows": seen_of(evidence),
            "notes": list(evidence.notes),
            "text": receipt.text(rows=20).split("\n"),
        }
    return results


def matmul(report: Report, args: argparse.Namespace) -> Any:
    """Compare cuBLAS, cuBLASLt, and cuBLASLt with a pinned algorithm that is not its default: only the products' entry points change."""
    module, x, want = layers(args)
    plain, _, first = rows_of(
        opened(module, x, args, xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", use="cublas")])), x
    )
    near(report, "cublas", plain, want)
    default, _, lt = rows_of(
        opened(module, x, args, xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", use="cublasLt")])), x
    )
    near(report, "cublasLt", default, want)
    own = {int(i) for r in lt.rows for i in re.findall(r"cublasLtMatmul algorithm (\d+)", r.kernel)}
    report.check(bool(own), f"cublasLt says its algorithms: {sorted(own)}")
    try:
        pin = {"kernel": "cublasLt", "algorithm": NOWHERE}
        opened(module, x, args, xrt.KernelPolicy(rules=[{"op": "matmul", "use": pin}]))  # type: ignore[list-item]
        report.check(False, "an algorithm that is not there is refused")
        return {}
    except BuildError as error:
        message = str(error)
        ids = [int(n) for n in re.findall(r"(\d+) \(\d+\)", message)]
        report.check(
            f"offers no algorithm {NOWHERE}" in message and bool(ids),
            f"an algorithm that is not there is refused: {message[:200]}",
        )
    for choice in (*({"algorithm": i} for i in ids if i not in own), {"choice": 1}):
        rule = {"op": "matmul", "use": {"kernel": "cublasLt", **choice}}
        try:
            got, _, pinned = rows_of(opened(module, x, args, xrt.KernelPolicy(rules=[rule])), x)  # type: ignore[list-item]
            break
        except BuildError:
            continue  # not available for every product
    else:
        report.check(False, f"no other algorithm of {ids} could be pinned")
        return {"offered": ids}
    near(report, f"cublasLt pinned to {choice}", got, want)
    products = [r.kernel for r in pinned.rows if "cublasLtMatmul" in r.kernel]
    asks = f"algorithm {choice.get('algorithm', '')}"
    report.check(all(asks in k for k in products), f"the receipt says the algorithm that ran: {products}")
    for name, before, after in (
        ("cublas to cublasLt", first, lt),
        ("its own algorithm to the pinned one", lt, pinned),
    ):
        differ = changed(before, after)
        report.bound(
            f"{name}: only products ran otherwise",
            bool(differ) and all(k.startswith("matmul/") for k in differ),
        )
    return {
        "cublas": seen_of(first),
        "cublasLt": seen_of(lt),
        "pinned": seen_of(pinned),
        "offered": ids,
        "choice": choice,
    }


def attention(report: Report, args: argparse.Namespace) -> Any:
    """Compare flash_v2 with naive and cuDNN: the recorded kernels change for attention only."""
    module, x, want = layers(args)
    evidence_by_kernel = {}
    for word in ("flash_v2", "naive", "cudnn"):
        policy = xrt.KernelPolicy(rules=[xrt.Rule(op="attention", use=word)])
        got, _, evidence_by_kernel[word] = rows_of(opened(module, x, args, policy), x)
        near(report, word, got, want)
    differ = {
        word: changed(evidence_by_kernel["flash_v2"], evidence_by_kernel[word]) for word in ("naive", "cudnn")
    }
    for word, kernels in differ.items():
        report.bound(f"flash_v2 to {word}: only attention ran otherwise", kernels == [f"attention/{word}"])
    return {word: seen_of(evidence) for word, evidence in evidence_by_kernel.items()} | {"changed": differ}


def conv(report: Report, args: argparse.Namespace) -> Any:
    """Pin engines of cuDNN: the error for an absent one lists the available ones, and one of those can be pinned."""
    torch.manual_seed(1)
    module, x = torch.nn.Conv2d(64, 64, 3, padding=1).eval(), torch.randn(4, 64, 28, 28)
    with torch.no_grad():
        want = torch.nn.functional.conv2d(
            x.double(), module.weight.double(), module.bias.double(), padding=1
        ).numpy()  # type: ignore[union-attr]
    message = ""
    try:
        opened(
            module,
            x,
            args,
            xrt.KernelPolicy(rules=[{"op": "conv", "use": {"kernel": "cudnn", "engine": NOWHERE}}]),
        )  # type: ignore[list-item]
    except BuildError as error:
        message = str(error)
    report.check(
        f"offers no engine {NOWHERE}" in message, f"an engine that is not there is refused: {message[:200]}"
    )
    engines = [int(n) for n in re.findall(r"\d+", message.rpartition("but")[2].partition(". ")[0])]
    default, _, plain = rows_of(
        opened(module, x, args, xrt.KernelPolicy(rules=[xrt.Rule(op="conv", use="cudnn")])), x
    )
    near(report, "cudnn", default, want)
    own = {int(i) for r in plain.rows for i in re.findall(r"engine (\d+)", r.kernel)}
    for engine in [e for e in engines if e not in own][:8]:
        rule = {"op": "conv", "use": {"kernel": "cudnn", "engine": engine}}
        try:
            got, _, pinned = rows_of(opened(module, x, args, xrt.KernelPolicy(rules=[rule])), x)  # type: ignore[list-item]
        except BuildError:
            continue  # it has no plan for this convolution
        near(report, f"cudnn, engine {engine}", got, want)
        report.bound(
            "a pinned engine of cuDNN ran, and the receipt says so",
            any(f"engine {engine}," in r.kernel for r in pinned.rows),
        )
        return {"offered": engines, "own": sorted(own), "pinned": seen_of(pinned)}
    report.check(False, f"no other engine of {engines} could be pinned")
    return {"offered": engines, "own": sorted(own)}


def declined(report: Report, args: argparse.Namespace) -> Any:
    """Prefer an algorithm that the library lacks: another kernel computes and the fallback is recorded; with ``strict`` it is an error."""
    module, x, want = layers(args)
    policy = xrt.KernelPolicy(matmul={"kernel": "cublasLt", "algorithm": NOWHERE})  # type: ignore[arg-type]
    got, receipt, evidence = rows_of(opened(module, x, args, policy), x)
    near(report, "what computes instead", got, want)
    report.check(
        len(evidence.fallbacks) >= 2 and "its library declines it" in evidence.fallbacks[0],
        f"recorded: {evidence.fallbacks[:1]}",
    )
    report.check(not receipt.confirmed, "the receipt does not confirm the plan")
    try:
        xrt.InferenceSession(
            module,
            device=args.device,
            engine="native",
            example_inputs=(x,),
            kernel_policy=policy,
            strict=True,
        )
        report.check(False, "under strict it is an error")
    except xrt.StrictError as error:
        report.check(True, f"under strict it is an error: {str(error)[:160]}")
    return {"fallbacks": list(evidence.fallbacks), "rows": seen_of(evidence)}


def indices(report: Report, args: argparse.Namespace) -> Any:
    """Check that an index out of range is an error that names kernel and node, for arrays and for queued tensors; the next run is right."""
    module, good = Words().eval(), torch.arange(8).reshape(2, 4)
    bad = good.clone()
    bad[1, 2] = 100
    sess = opened(module, good, args, precision="float32")
    name = sess.input_info[0].name
    messages = []
    for i in range(3):
        (y,) = sess.run({name: good.numpy()}).values()
        with torch.no_grad():
            report.check(np.array_equal(y, module(good).numpy()), f"run {i} is right")
        try:
            sess.run({name: bad.numpy()})
            report.check(False, "an index outside is an error")
        except RunError as error:
            messages.append(str(error))
            report.check("index 100 is outside a dim of 100" in str(error), str(error)[:200])
    if args.device != "cpu":
        sess.run({name: bad.to(args.device)})  # queued, not awaited
        torch.cuda.synchronize()
        try:
            sess.run({name: good.to(args.device)})
            report.check(False, "a queued run's report reaches the next run")
        except RunError as error:
            messages.append(str(error))
            report.check("a queued run failed" in str(error), str(error)[:200])
        (y,) = sess.run({name: good.to(args.device)}).values()
        with torch.no_grad():
            report.check(torch.equal(y.cpu(), module(good)), "the run after that is right")
    return {"said": messages}


def cost(report: Report, args: argparse.Namespace) -> Any:
    """Check that a run takes as long after the first use of CUPTI as before it."""
    module, x, _ = layers(args)
    sess = opened(module, x, args)
    name, feed = sess.input_info[0].name, x.numpy()

    def microseconds() -> float:
        return called_us(lambda: sess.run({name: feed}), 400)

    microseconds()
    before = microseconds()
    sess.receipt()
    after = microseconds()
    report.bound(
        "time of a run after an observation over that before", after / before, at_most=1.05, required=False
    )
    return {"before_us": before, "after_us": after}


PARTS = {
    "cost": cost, "receipts": receipts, "matmul": matmul, "attention": attention, "conv": conv, "declined": declined, "indices": indices,
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    name: Callable[[], str] = lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"  # noqa: E731
    return run_parts(__doc__, PARTS, gpu=name, packages=("torch",), argv=argv, parser=parser)


if __name__ == "__main__":
    sys.exit(main())
