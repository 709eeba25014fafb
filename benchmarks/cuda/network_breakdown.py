"""Where the time of a network goes on CUDA: microseconds of every call (by CUPTI), by kernel and sizes, next to PyTorch's operation where the sizes say which.

    python benchmarks/cuda/network_breakdown.py --out FILE.json --cases "hubert.transformers float32 x1,coatnet_0_224.timm float32 x1"

Cases are those of ``suite.py``. Calls of equal kernel and sizes are one row with their number. Networks are opened side by side, each in a process of
its own, and measured one at a time. For convolutions and products of a library the row has PyTorch's time on the same sizes, channels first and last.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import queued_us
from side_by_side import run_cases
from suite import alone, built
from third_party import as_dtype

import xpuruntime as xrt
from xpuruntime.program.program import ExecutionPlan, KernelCall

_ROWS = 24
"""Rows of a network, the slowest first."""
_NOT_SIZES = ("engine", "algorithm", "choice", "in", "out", "alpha")


def sizes_text(call: KernelCall, plan: ExecutionPlan) -> str:
    """Return the shapes of a call's operands and results, and a library's options."""
    specs = {b.name: b.spec for b in plan.buffers}
    shapes = [str(list(specs[n].shape)) for n in (*call.inputs, *call.outputs) if n in specs]
    options = [f"{k}={v}" for k, v in call.options.items() if k not in _NOT_SIZES and "shape" not in k]
    return " ".join([*shapes, *options])


def torch_us(call: KernelCall) -> dict[str, float]:
    """Return the microseconds of PyTorch's operation on the same sizes; empty for calls of other libraries."""
    o = call.options
    if "x_shape" in o and "w_shape" in o:
        return {name: round(queued_us(run, 10, 3), 1) for name, run in _convolutions(o).items()}
    if "a_line" in o:
        kind = getattr(torch, o["in"])
        a = torch.randn(o["batch"], o["m"], o["k"], device="cuda", dtype=kind)
        b = torch.randn(o["batch"], o["k"], o["n"], device="cuda", dtype=kind)
        if o["b_transposed"]:
            b = b.transpose(1, 2).contiguous().transpose(1, 2)
        return {"matmul": round(queued_us(lambda: torch.bmm(a, b), 10, 3), 1)}
    return {}


def _convolutions(o: Mapping[str, Any]) -> dict[str, Callable[[], Any]]:
    kind = getattr(torch, o["in"])
    groups = o["x_shape"][1] // o["w_shape"][1]
    x, w = (torch.randn(*o[n], device="cuda", dtype=kind) for n in ("x_shape", "w_shape"))
    before, after = [e for p in reversed(o["begin"]) for e in (p, 0)], o["end"]
    if list(o["begin"]) != list(o["end"]):
        before = [e for p, q in zip(reversed(o["begin"]), reversed(after), strict=True) for e in (p, q)]
        x, padding = torch.nn.functional.pad(x, before), [0, 0]
    else:
        padding = list(o["begin"])
    how = {"stride": o["stride"], "padding": padding, "dilation": o["dilation"], "groups": groups}
    last = torch.channels_last
    x2, w2 = x.contiguous(memory_format=last), w.contiguous(memory_format=last)
    return {
        "channels first": lambda: torch.conv2d(x, w, None, **how),
        "channels last": lambda: torch.conv2d(x2, w2, None, **how),
    }


def breakdown(case: str, lock: Path | None) -> dict[str, Any]:
    """Return the rows of a case."""
    network, dtype, batch = case.rsplit(" ", 2)
    device = "cuda:0"
    policy = None if dtype == "float32" else xrt.ExecutionPolicy(precision=dtype)
    model, inputs = built(network, int(batch[1:]))
    session = xrt.InferenceSession(
        model, device=device, engine="native", example_inputs=inputs, exec_policy=policy
    )
    names = [i.name for i in session.input_info]
    feeds = dict(zip(names, as_dtype(inputs, device, torch.float32), strict=True))
    with session, alone(lock):
        for _ in range(2):
            session.run(feeds)
        whole = queued_us(lambda: session.run(feeds), 5, 3)
        session.run({k: v.cpu().numpy() for k, v in feeds.items()})
        (evidence,) = session.receipt().evidence.values()
        plan = session._executable._last.plan
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for call, seen in zip(plan.calls, evidence.rows, strict=True):
            kernel = seen.kernel if call.library else f"{call.kernel}: {call.symbol.rpartition('_')[0]}"
            row = rows.setdefault(
                (kernel, sizes_text(call, plan)), {"calls": 0, "us": 0.0, "call": call, "op": seen.op}
            )
            row["calls"] += 1
            row["us"] += sum(s.time_us for s in seen.seen) or seen.time_us or 0.0
        ordered = sorted(rows.items(), key=lambda i: -i[1]["us"])
        kernels: dict[str, float] = {}
        for (kernel, _), row in ordered:
            family = kernel.partition(":")[0]
            kernels[family] = round(kernels.get(family, 0) + row["us"], 1)
        table = []
        for (kernel, sizes), row in ordered[:_ROWS]:
            each = round(row["us"] / row["calls"], 1)
            call = row["call"]
            entry = {"kernel": kernel, "op": row["op"], "calls": row["calls"], "us": each, "sizes": sizes}
            entry |= {
                "tflops": round(call.flops / max(each, 0.1) / 1e6, 2),
                "gbs": round(call.bytes / max(each, 0.1) / 1e3),
            }
            try:
                entry |= {"torch": t} if (t := torch_us(call)) else {}
            except Exception as error:
                entry["torch"] = f"{type(error).__name__}: {error}"[:120]
            table.append(entry)
    return {"us": round(whole, 1), "kernels": kernels, "rows": table}


def note(row: Mapping[str, Any]) -> str:
    """Return what is printed of a case."""
    return f"{row['us']} us {row['kernels']}"


if __name__ == "__main__":
    sys.exit(run_cases(__doc__, __file__, breakdown, (), ("torch", "timm", "transformers"), note=note))
