"""Where the time of a network goes on CUDA: microseconds of every call (by CUPTI), by kernel and sizes, next to PyTorch's operation where the sizes say which.

    python benchmarks/cuda/network_breakdown.py --out FILE.json --cases "hubert.transformers float32 x1,coatnet_0_224.timm float32 x1"
    python benchmarks/cuda/network_breakdown.py --cases "mixnet_s.timm float16 x1,mixnet_s.timm float16 x1 before,mixnet_s.timm float16 x1 torch"

Cases are those of ``suite.py``, with words after them:

    torch              PyTorch instead: the kernels of its CUDA graph, and the ops of an eager run by sizes
    before             without the rewrites and kernels of ``SWITCHES``
    -gemv ...          without one of them
    attention=cudnn    with a preferred kernel of a family

Calls of equal kernel and sizes are one row with their number. ``us`` is the time of a call's kernels, ``turn_us`` that from the previous call's end to
its own: a kernel that is launched early (programmatic dependent launch) waits within its own time. Networks are opened side by side, each in a process
of its own, and measured one at a time; a session whose outputs are not PyTorch's does not open. For convolutions and products of a library the row has PyTorch's time on the same sizes, channels first and last.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import paths  # noqa: F401
import torch
from gpu_report import queued_us
from side_by_side import run_cases
from suite import _graph, alone, built
from third_party import as_dtype
from torch.profiler import ProfilerActivity, profile

import xpuruntime as xrt
from xpuruntime.compiler import views
from xpuruntime.decisions import Reason, Support
from xpuruntime.kernels.cuda.conv.one_pixel import OnePixel
from xpuruntime.passes import concat_conv, fuse_pointwise
from xpuruntime.program.program import ExecutionPlan, KernelCall

_ROWS = 24
"""Rows of a network, the slowest first."""
_PRINTED = 14
"""Rows that are printed."""
_REPEATS = 4
SWITCHES: Mapping[str, tuple[Any, str, Callable[..., Any]]] = {
    "concat_conv": (concat_conv, "_part", lambda *args: None),
    "gemv": (OnePixel, "supports", lambda *args: Support.no(Reason.NOT_IMPLEMENTED, "it is switched off")),
    "views": (views, "_channel_parts", lambda *args: {}),
    "casts": (fuse_pointwise._FusionGroups, "widened", lambda *args: None),
}
"""What a case may be measured without: the object, its function, and what replaces it."""
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


@contextmanager
def without(words: Sequence[str]) -> Iterator[dict[str, str]]:
    """Switch off what the words of a case say. Yield its preferred kernels by family."""
    off = list(SWITCHES) if "before" in words else [w[1:] for w in words if w.startswith("-")]
    with ExitStack() as stack:
        for name in off:
            stack.enter_context(mock.patch.object(*SWITCHES[name]))
        yield dict(w.split("=", 1) for w in words if "=" in w)


def turns(session: Any, feeds: Sequence[Any]) -> dict[int, float]:
    """Return the shortest microseconds of each call from the previous call's end to its own."""
    executor, shortest = session._executable._last, dict[int, float]()
    executor.observe(feeds)  # single launches; the next runs are those of the CUDA graph
    for _ in range(_REPEATS):
        end = 0.0
        for at, own in sorted(executor.observe(feeds).calls.items(), key=lambda i: i[1][0].start_us):
            last = max(s.start_us + s.time_us for s in own)
            us = last - (end or own[0].start_us)
            end = max(end, last)
            shortest[at] = min(shortest.get(at, us), us)
    return shortest


def of_torch(model: Any, inputs: Any, lock: Path | None) -> dict[str, Any]:
    """Return the kernels of PyTorch's CUDA graph, and the ops of its eager run by sizes."""
    with alone(lock):
        model = model.to("cuda")
        replay = _graph(model, inputs)
        whole = queued_us(replay, 5, 3)
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(_REPEATS):
                replay()
            torch.cuda.synchronize()
        kernels = [
            {
                "kernel": e.key[:140],
                "calls": e.count / _REPEATS,
                "us": round(e.self_device_time_total / e.count, 1),
            }
            for e in recorded.key_averages()
            if e.self_device_time_total
        ]
        with profile(
            activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True
        ) as recorded:
            model(*inputs)
            torch.cuda.synchronize()
        ops = [
            {"op": e.key, "calls": e.count, "us": round(e.self_device_time_total / e.count, 1), "sizes": str(e.input_shapes)[:160]}
            for e in recorded.key_averages(group_by_input_shape=True)
            if e.self_device_time_total and e.key.startswith("aten::")
        ]  # fmt: skip
    busy = sum(k["calls"] * k["us"] for k in kernels)
    for rows in (kernels, ops):
        rows.sort(key=lambda r: -r["calls"] * r["us"])
    return {
        "us": round(whole, 1), "launches": sum(k["calls"] for k in kernels), "busy_us": round(busy, 1), "kernels": kernels[:_ROWS],
        "rows": ops[:_ROWS],
    }  # fmt: skip


def breakdown(case: str, lock: Path | None) -> dict[str, Any]:
    """Return the rows of a case."""
    parsed = re.fullmatch(r"(.+?) (float32|float16|bfloat16) x(\d+)(.*)", case)
    if parsed is None:
        raise ValueError(f"no case: {case!r}")
    network, dtype, batch, words = parsed[1], parsed[2], int(parsed[3]), parsed[4].split()
    model, inputs = built(network, batch)
    if "torch" in words:
        kind = getattr(torch, dtype)
        return of_torch(model.to(kind), as_dtype(inputs, "cuda:0", kind), lock)
    if words:
        os.environ["XPU_CACHE_MODE"] = "off"  # a program that was compiled with other switches is no result
    with without(words) as preferred:
        return of_ours(model, inputs, dtype, preferred, lock)


def of_ours(
    model: Any, inputs: Any, dtype: str, preferred: Mapping[str, str], lock: Path | None
) -> dict[str, Any]:
    """Return the rows of our session."""
    device = "cuda:0"
    policy = xrt.ExecutionPolicy(precision=None if dtype == "float32" else dtype, self_check="always")
    kernels_by_family: Any = dict(preferred)
    session = xrt.InferenceSession(
        model, device=device, engine="native", example_inputs=inputs, exec_policy=policy,
        kernel_policy=xrt.KernelPolicy(**kernels_by_family) if preferred else None,
    )  # fmt: skip
    names = [i.name for i in session.input_info]
    feeds = dict(zip(names, as_dtype(inputs, device, torch.float32), strict=True))
    with session, alone(lock):
        for _ in range(2):
            session.run(feeds)
        whole = queued_us(lambda: session.run(feeds), 5, 3)
        on_host = {k: v.cpu().numpy() for k, v in feeds.items()}
        session.run(on_host)
        (evidence,) = session.receipt().evidence.values()
        plan = session._executable._last.plan
        own_turns = turns(session, list(on_host.values()))
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for at, (call, seen) in enumerate(zip(plan.calls, evidence.rows, strict=True)):
            kernel = seen.kernel if call.library else f"{call.kernel}: {call.symbol.rpartition('_')[0]}"
            row = rows.setdefault(
                (kernel, sizes_text(call, plan)),
                {"calls": 0, "us": 0.0, "turn": 0.0, "call": call, "op": seen.op},
            )
            row["calls"] += 1
            row["us"] += sum(s.time_us for s in seen.seen) or seen.time_us or 0.0
            row["turn"] += own_turns.get(at, 0.0)
        ordered = sorted(rows.items(), key=lambda i: -i[1]["turn"])
        kernels: dict[str, float] = {}
        for (kernel, _), row in ordered:
            family = kernel.partition(":")[0]
            kernels[family] = round(kernels.get(family, 0) + row["turn"], 1)
        table = []
        for (kernel, sizes), row in ordered[:_ROWS]:
            each, turn = round(row["us"] / row["calls"], 1), round(row["turn"] / row["calls"], 1)
            call = row["call"]
            entry = {
                "kernel": kernel,
                "op": row["op"],
                "calls": row["calls"],
                "us": each,
                "turn_us": turn,
                "sizes": sizes,
            }
            entry |= {
                "tflops": round(call.flops / max(turn, 0.1) / 1e6, 2),
                "gbs": round(call.bytes / max(turn, 0.1) / 1e3),
            }
            try:
                entry |= {"torch": t} if (t := torch_us(call)) else {}
            except Exception as error:
                entry["torch"] = f"{type(error).__name__}: {error}"[:120]
            table.append(entry)
    return {
        "us": round(whole, 1), "launches": len(plan.calls), "busy_us": round(sum(kernels.values()), 1), "kernels": kernels, "rows": table,
    }  # fmt: skip


def note(row: Mapping[str, Any]) -> str:
    """Return what is printed of a case: its time and its slowest rows."""
    lines = [f"{row['us']} us, {row['launches']:g} launches, busy {row['busy_us']} us"]
    if isinstance(row["kernels"], dict):
        lines.append(str(row["kernels"]))
    else:
        lines += [
            f"  {k['calls']:5g} x {k['us']:7} us  {k['kernel'][:90]}" for k in row["kernels"][:_PRINTED]
        ]
    for r in row["rows"][:_PRINTED]:
        times = f"{r['turn_us']:7} ({r['us']})" if "turn_us" in r else f"{r['us']:7}"
        lines.append(
            f"  {r['calls']:5g} x {times} us  {r.get('kernel', r['op'])[:100]} {r['sizes'][:90]} {r.get('torch', '')}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(run_cases(__doc__, __file__, breakdown, (), ("torch", "timm", "transformers"), note=note))
