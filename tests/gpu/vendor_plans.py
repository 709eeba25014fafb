"""Plans of cuDNN in the store: other processes restore them, with the same bits; what is no plan of the call is built again.

    python tests/gpu/vendor_plans.py --out benchmarks/results/cuda_vendor_plans.json [restored] [damaged] [many]

Each start is a process of its own that opens one network with cuDNN's kernels. It counts the plans that it reads from the store and those that it
writes after it built them. The self-check of sessions compares every output with PyTorch's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from gpu_report import Report, arguments, name_of_device, run_parts

import xpuruntime as xrt
from xpuruntime import _core
from xpuruntime.runtime.backends import cuda
from xpuruntime.storage.store import Store

_CHANNELS = 24
_SIDE = 20
DTYPES = ("float32", "float16", "bfloat16")


class Network(torch.nn.Module):
    """Convolutions of different sizes, strides, groups and activations, then attention in 16 bits."""

    def __init__(self, count: int, attends: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        kinds = [
            (3, 1, 1, torch.nn.ReLU),
            (1, 1, 1, torch.nn.Identity),
            (3, 2, 1, torch.nn.Identity),
            (5, 1, 4, torch.nn.ReLU6),
        ]
        self.layers = torch.nn.ModuleList()
        for i in range(count):
            size, stride, groups, act = kinds[i % len(kinds)]
            channels = _CHANNELS + 8 * (i // len(kinds))
            self.layers.append(
                torch.nn.Sequential(
                    torch.nn.Conv2d(_CHANNELS, channels, size, stride, size // 2, groups=groups),
                    act(),
                    torch.nn.Conv2d(channels, _CHANNELS, 1),
                )
            )
        self.attends = attends

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all layers' means, as one row per channel."""
        total = torch.stack([layer(x).mean((2, 3)) for layer in self.layers]).sum(0)
        if not self.attends:
            return total
        rows = x.flatten(2).transpose(1, 2).unflatten(2, (1, _CHANNELS)).transpose(1, 2)
        return total + torch.nn.functional.scaled_dot_product_attention(rows, rows, rows).mean((1, 2))


def start(dtype: str, count: str, device: str) -> dict[str, Any]:
    """Open the network in this process. Return the number of plans that were read and written, the seconds, and the output's digest."""
    read, written = list[str](), list[str]()

    def get(key: str) -> bytes:
        plan = cuda._stored_plan(key)
        if plan:
            read.append(key)
        return plan

    def put(key: str, plan: bytes) -> None:
        written.append(key)
        cuda._store_plan(key, plan)

    cuda.keep_plans()  # once for all devices, so that it does not replace what follows
    _core.set_plan_store(get, put)
    model = Network(int(count), dtype != "float32").eval()
    x = torch.randn(2, _CHANNELS, _SIDE, _SIDE, generator=torch.Generator().manual_seed(1))
    policy = xrt.KernelPolicy(conv="cudnn", attention="cudnn")
    precision = xrt.ExecutionPolicy(precision="model" if dtype == "float32" else dtype, self_check="always")
    began = time.perf_counter()
    with xrt.InferenceSession(
        model,
        device=device,
        engine="native",
        example_inputs=(x,),
        kernel_policy=policy,
        exec_policy=precision,
    ) as session:
        seconds = time.perf_counter() - began
        outputs = [
            next(iter(session.run({session.input_info[0].name: x.numpy()}).values())) for _ in range(2)
        ]
        calls = [c for c in session._executable._last.plan.calls if c.library == "cudnn"]
    return {
        "calls": len(calls), "read": len(read), "written": len(written), "distinct": len({*written, *read}), "seconds": round(seconds, 2),
        "digests": [hashlib.sha256(y.tobytes()).hexdigest()[:16] for y in outputs],
    }  # fmt: skip


def started(store: str, dtype: str, count: int, device: str) -> dict[str, Any]:
    """Return the facts of a start in a new process."""
    command = [sys.executable, __file__, "--start", dtype, str(count), device]
    environment = {**os.environ, "XPU_CACHE_DIR": store, "CUDA_CACHE_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-800:]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def replaced(store: str, change: Callable[[bytes, bytes], bytes]) -> int:
    """Replace each stored plan by the change of it and of another one. The store's own checksums are right. Return the number."""
    at = Store(store)
    entries = [e for e in at.entries() if e.kind == cuda._PLANS]
    plans = [at.get(e.kind, e.key) or b"" for e in entries]
    for i, (entry, plan) in enumerate(zip(entries, plans, strict=True)):
        at.put(entry.kind, entry.ingredients, change(plan, plans[i - 1]))
    return len(entries)


DAMAGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "another call's plan": lambda plan, other: other,
    "half a plan": lambda plan, other: plan[: len(plan) // 2],
    "a plan without its end": lambda plan, other: plan[:-40],
    "noise": lambda plan, other: hashlib.sha256(plan).digest() * 100,
    "noise under the right key": lambda plan, other: b"\n".join([*plan.split(b"\n")[:2], b"\x00\xff{}" * 50]),
    "another program of JSON": lambda plan, other: b"\n".join([*plan.split(b"\n")[:2], b'{"version": 1}']),
}


def restored(report: Report, args: argparse.Namespace) -> Any:
    """A second process restores every plan, and its outputs have the same bits."""
    rows = {}
    for dtype in DTYPES:
        with tempfile.TemporaryDirectory() as store:
            first, second = (
                started(store, dtype, args.layers, args.device),
                started(store, dtype, args.layers, args.device),
            )
            rows[dtype] = {"first": first, "second": second}
            report.check(first["written"] > 0, f"{dtype}: the first start writes plans: {first}")
            report.bound(f"{dtype}: plans that the second start builds", second["written"], at_most=0)
            report.check(
                second["read"] == first["written"], f"{dtype}: the second start reads them all: {second}"
            )
            same = {*first["digests"], *second["digests"]}
            report.check(len(same) == 1, f"{dtype}: the same bits: {same}")
    return rows


def damaged(report: Report, args: argparse.Namespace) -> Any:
    """What is no plan of the call is built again, with the same bits, and a later start restores it."""
    rows = {}
    with tempfile.TemporaryDirectory() as store:
        first = started(store, "float16", args.layers, args.device)
        for name, change in DAMAGES.items():
            count = replaced(store, change)
            row = rows[name] = started(store, "float16", args.layers, args.device)
            report.check(
                row["written"] == count == first["written"], f"{name}: {count} are built again: {row}"
            )
            report.check(row["digests"] == first["digests"], f"{name}: the same bits")
        last = started(store, "float16", args.layers, args.device)
        report.check(last["written"] == 0, f"plans that were built again are restored: {last}")
    return {"first": first, **rows, "last": last}


def many(report: Report, args: argparse.Namespace) -> Any:
    """A network of more plans than the library keeps alive builds each one once."""
    with tempfile.TemporaryDirectory() as store:
        row = started(store, "float16", args.many, args.device)
    report.bound("plans built more than once", row["written"] - row["distinct"], at_most=0)
    return row


PARTS = {"restored": restored, "damaged": damaged, "many": many}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a plan is wrong, missing, or built without need."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--layers", type=int, default=8, help="pairs of convolutions of the network")
    parser.add_argument("--many", type=int, default=140, help="pairs of convolutions of the large network")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--start", nargs=3, help="for the script itself")
    args = parser.parse_args(argv)
    if args.start:
        print(json.dumps(start(*args.start)))
        return 0
    return run_parts(__doc__, PARTS, packages=("torch",), argv=argv, parser=parser, gpu=name_of_device)


if __name__ == "__main__":
    sys.exit(main())
