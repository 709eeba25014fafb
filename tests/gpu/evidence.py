"""What receipts prove on a CUDA device: kernels that CUPTI saw, joined to nodes; choices of kernels and algorithms that show in them.

    python tests/gpu/evidence.py --out benchmarks/results/cuda_evidence.json [--device cuda:0] [PART ...]

Needs torch. Outputs are checked against PyTorch or the plain session before a receipt is believed.
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
"""An algorithm that no library has: asking for it makes it list those that it has."""


class Words(torch.nn.Module):
    """A table of 100 rows, read at places that an input names."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) * 2.0


def receipts(report: Report, asked: argparse.Namespace) -> Any:
    """Receipts of ResNet-18 and of a vision transformer: every call joined to kernels that the driver ran."""
    found = {}
    for name in ("resnet18", "vit"):
        module, (x, *_) = models.build(name, "full" if asked.device != "cpu" else "small")
        sess = opened(module, x, asked)
        _, receipt, evidence = rows_of(sess, x)
        judge_seen(report, name, evidence)
        report.check(receipt.confirmed, f"{name}: the receipt is confirmed by evidence")
        found[name] = {
            "rows": seen_of(evidence),
            "notes": list(evidence.notes),
            "text": receipt.text(rows=20).split("\n"),
        }
    return found


def matmul(report: Report, asked: argparse.Namespace) -> Any:
    """cuBLAS against cuBLASLt with a pinned algorithm that is not its default: the entry points change, and only those."""
    module, x, want = layers(asked)
    plain, _, first = rows_of(
        opened(module, x, asked, xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", use="cublas")])), x
    )
    near(report, "cublas", plain, want)
    default, _, lt = rows_of(
        opened(module, x, asked, xrt.KernelPolicy(rules=[xrt.Rule(op="matmul", use="cublasLt")])), x
    )
    near(report, "cublasLt", default, want)
    own = {int(i) for r in lt.rows for i in re.findall(r"cublasLtMatmul algorithm (\d+)", r.kernel)}
    report.check(bool(own), f"cublasLt says its algorithms: {sorted(own)}")
    try:
        pin = {"kernel": "cublasLt", "algorithm": NOWHERE}
        opened(module, x, asked, xrt.KernelPolicy(rules=[{"op": "matmul", "use": pin}]))  # type: ignore[list-item]
        report.check(False, "an algorithm that is not there is refused")
        return {}
    except BuildError as error:
        said = str(error)
        ids = [int(n) for n in re.findall(r"(\d+) \(\d+\)", said)]
        report.check(
            f"offers no algorithm {NOWHERE}" in said and bool(ids),
            f"an algorithm that is not there is refused: {said[:200]}",
        )
    for choice in (*({"algorithm": i} for i in ids if i not in own), {"choice": 1}):
        rule = {"op": "matmul", "use": {"kernel": "cublasLt", **choice}}
        try:
            got, _, pinned = rows_of(opened(module, x, asked, xrt.KernelPolicy(rules=[rule])), x)  # type: ignore[list-item]
            break
        except BuildError:
            continue  # it is not offered for each of the products
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


def attention(report: Report, asked: argparse.Namespace) -> Any:
    """flash_v2 against naive and cuDNN: the kernels seen change for attention, and only there."""
    module, x, want = layers(asked)
    found = {}
    for word in ("flash_v2", "naive", "cudnn"):
        policy = xrt.KernelPolicy(rules=[xrt.Rule(op="attention", use=word)])
        got, _, found[word] = rows_of(opened(module, x, asked, policy), x)
        near(report, word, got, want)
    differ = {word: changed(found["flash_v2"], found[word]) for word in ("naive", "cudnn")}
    for word, kernels in differ.items():
        report.bound(f"flash_v2 to {word}: only attention ran otherwise", kernels == [f"attention/{word}"])
    return {word: seen_of(evidence) for word, evidence in found.items()} | {"changed": differ}


def conv(report: Report, asked: argparse.Namespace) -> Any:
    """cuDNN's engines: one that it does not offer is refused with those that it does, one of those can be pinned."""
    torch.manual_seed(1)
    module, x = torch.nn.Conv2d(64, 64, 3, padding=1).eval(), torch.randn(4, 64, 28, 28)
    with torch.no_grad():
        want = torch.nn.functional.conv2d(
            x.double(), module.weight.double(), module.bias.double(), padding=1
        ).numpy()  # type: ignore[union-attr]
    said = ""
    try:
        opened(
            module,
            x,
            asked,
            xrt.KernelPolicy(rules=[{"op": "conv", "use": {"kernel": "cudnn", "engine": NOWHERE}}]),
        )  # type: ignore[list-item]
    except BuildError as error:
        said = str(error)
    report.check(
        f"offers no engine {NOWHERE}" in said, f"an engine that is not there is refused: {said[:200]}"
    )
    engines = [int(n) for n in re.findall(r"\d+", said.rpartition("but")[2].partition(". ")[0])]
    default, _, plain = rows_of(
        opened(module, x, asked, xrt.KernelPolicy(rules=[xrt.Rule(op="conv", use="cudnn")])), x
    )
    near(report, "cudnn", default, want)
    own = {int(i) for r in plain.rows for i in re.findall(r"engine (\d+)", r.kernel)}
    for engine in [e for e in engines if e not in own][:8]:
        rule = {"op": "conv", "use": {"kernel": "cudnn", "engine": engine}}
        try:
            got, _, pinned = rows_of(opened(module, x, asked, xrt.KernelPolicy(rules=[rule])), x)  # type: ignore[list-item]
        except BuildError:
            continue  # it has no plan for this one
        near(report, f"cudnn, engine {engine}", got, want)
        report.bound(
            "a pinned engine of cuDNN ran, and the receipt says so",
            any(f"engine {engine}," in r.kernel for r in pinned.rows),
        )
        return {"offered": engines, "own": sorted(own), "pinned": seen_of(pinned)}
    report.check(False, f"no other engine of {engines} could be pinned")
    return {"offered": engines, "own": sorted(own)}


def declined(report: Report, asked: argparse.Namespace) -> Any:
    """A preferred algorithm that the library does not have: another kernel computes, recorded; under strict an error."""
    module, x, want = layers(asked)
    policy = xrt.KernelPolicy(matmul={"kernel": "cublasLt", "algorithm": NOWHERE})  # type: ignore[arg-type]
    got, receipt, evidence = rows_of(opened(module, x, asked, policy), x)
    near(report, "what computes instead", got, want)
    report.check(
        len(evidence.fallbacks) >= 2 and "its library declines it" in evidence.fallbacks[0],
        f"recorded: {evidence.fallbacks[:1]}",
    )
    report.check(not receipt.confirmed, "the receipt does not confirm the plan")
    try:
        xrt.InferenceSession(
            module,
            device=asked.device,
            engine="native",
            example_inputs=(x,),
            kernel_policy=policy,
            strict=True,
        )
        report.check(False, "under strict it is an error")
    except xrt.StrictError as error:
        report.check(True, f"under strict it is an error: {str(error)[:160]}")
    return {"fallbacks": list(evidence.fallbacks), "rows": seen_of(evidence)}


def indices(report: Report, asked: argparse.Namespace) -> Any:
    """An index outside its table is an error with kernel and node, for arrays and for tensors that are queued; the next run is right."""
    module, good = Words().eval(), torch.arange(8).reshape(2, 4)
    bad = good.clone()
    bad[1, 2] = 100
    sess = opened(module, good, asked, precision="float32")
    name = sess.input_info[0].name
    said = []
    for i in range(3):
        (y,) = sess.run({name: good.numpy()}).values()
        with torch.no_grad():
            report.check(np.array_equal(y, module(good).numpy()), f"run {i} is right")
        try:
            sess.run({name: bad.numpy()})
            report.check(False, "an index outside is an error")
        except RunError as error:
            said.append(str(error))
            report.check("index 100 is outside a dim of 100" in str(error), str(error)[:200])
    if asked.device != "cpu":
        sess.run({name: bad.to(asked.device)})  # queued: nobody waits
        torch.cuda.synchronize()
        try:
            sess.run({name: good.to(asked.device)})
            report.check(False, "a queued run's report reaches the next run")
        except RunError as error:
            said.append(str(error))
            report.check("a queued run failed" in str(error), str(error)[:200])
        (y,) = sess.run({name: good.to(asked.device)}).values()
        with torch.no_grad():
            report.check(torch.equal(y.cpu(), module(good)), "the run after that is right")
    return {"said": said}


def cost(report: Report, asked: argparse.Namespace) -> Any:
    """A run costs the same before CUPTI was ever used and after it."""
    module, x, _ = layers(asked)
    sess = opened(module, x, asked)
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


def main(given: Sequence[str] | None = None) -> int:
    """The command."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    name: Callable[[], str] = lambda: torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"  # noqa: E731
    return run_parts(__doc__, PARTS, gpu=name, packages=("torch",), given=given, parser=parser)


if __name__ == "__main__":
    sys.exit(main())
