"""Sessions whose receipts are checked, and helpers that read receipts: rows, recorded kernels, and differences between two runs."""

from __future__ import annotations

import argparse
import re
from typing import Any

import numpy as np
import torch
from gpu_report import Report

import xpuruntime as xrt


class Layers(torch.nn.Module):
    """A network with the two ops whose kernels the checks choose: matmul and attention."""

    def __init__(self, size: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = torch.nn.Linear(size, 3 * size), torch.nn.Linear(size, size)
        self.norm = torch.nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, rows, size = x.shape
        q, k, v = (
            self.into(self.norm(x))
            .view(batch, rows, 3, self.heads, size // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, rows, size))


def opened(
    module: Any, x: torch.Tensor, args: argparse.Namespace, kernels: Any = None, precision: str = "float16"
) -> Any:
    """Open a native session."""
    policy = xrt.ExecutionPolicy(precision=None if precision == "float32" else precision)
    return xrt.InferenceSession(
        module,
        device=args.device,
        engine="native",
        example_inputs=(x,),
        exec_policy=policy,
        kernel_policy=kernels,
    )


def rows_of(sess: Any, x: torch.Tensor) -> tuple[Any, Any, Any]:
    """Return the output of a run, its receipt, and the receipt's evidence."""
    outputs = sess.run({sess.input_info[0].name: x.numpy()})
    receipt = sess.receipt()
    (evidence,) = receipt.evidence.values()
    return next(iter(outputs.values())), receipt, evidence


def seen_of(evidence: Any) -> list[dict[str, Any]]:
    """Return the evidence's rows in the form of the result file."""
    return [
        {
            "nodes": list(r.nodes[:3]),
            "kernel": r.kernel,
            "time_us": r.time_us,
            "seen": [str(s) for s in r.seen],
        }
        for r in evidence.rows
    ]


def changed(before: Any, after: Any) -> list[str]:
    """Return the kernels (catalogue names) of rows whose entry point or recorded kernels differ between two runs."""

    def kernels_by_nodes(evidence: Any) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
        kernels: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for row in evidence.rows:
            kernels.setdefault(tuple(row.nodes), []).append((row.kernel, *(s.name for s in row.seen)))
        return kernels

    was, now = kernels_by_nodes(before), kernels_by_nodes(after)
    return sorted({row[0].partition(":")[0] for n, rows in now.items() if was.get(n) != rows for row in rows})


def judge_seen(report: Report, name: str, evidence: Any) -> None:
    """Check that CUPTI recorded every call, and generated kernels under their own names."""
    note = next((n for n in evidence.notes if "CUPTI" in n or "no record" in n), "")
    report.check("recorded" in note, f"{name}: {note or 'no word of CUPTI'}")
    report.check(
        "dropped" not in note and "no known call" not in note, f"{name}: every record found its call"
    )
    unseen = [r.kernel for r in evidence.rows if not r.seen]
    report.bound(
        f"{name}: calls whose kernels CUPTI saw",
        len(evidence.rows) - len(unseen),
        at_least=len(evidence.rows),
        unit="calls",
    )
    strange = [
        r.kernel for r in evidence.rows
        if r.seen and "(" not in r.kernel and r.kernel.rpartition(": ")[2] not in {s.name for s in r.seen}
    ]  # fmt: skip
    report.check(not strange, f"{name}: generated kernels ran under their own names {strange[:3]}")
    # A library call may end with a kernel of ours (a norm or activation that the library lacks), which runs under its own name.
    libraries = [
        r.kernel for r in evidence.rows
        if ("cublas" in r.kernel or "cudnn" in r.kernel)
        and r.kernel.rpartition(": ")[2] not in {s.name for s in r.seen}
    ]  # fmt: skip
    report.check(
        all(re.search(r"\((cublas|cudnn)\w+.*\)", k) for k in libraries),
        f"{name}: {len(libraries)} library calls name their entry point and what it chose",
    )


def layers(args: argparse.Namespace) -> tuple[Any, torch.Tensor, np.ndarray[Any, Any]]:
    """Return the small network, an input, and its output in float64."""
    torch.manual_seed(0)
    module, x = Layers().eval(), torch.randn(2, 128, 256)
    with torch.no_grad():
        want = Layers().double().eval()
        want.load_state_dict(module.state_dict())
        return module, x, want(x.double()).numpy()


def near(report: Report, what: str, got: Any, want: np.ndarray[Any, Any]) -> None:
    """Check a float16 output against float64."""
    error = float(np.abs(np.asarray(got, np.float64) - want).max() / np.abs(want).max())
    report.bound(f"{what}: max|d| / max|ref| against float64", error, at_most=5e-3)
