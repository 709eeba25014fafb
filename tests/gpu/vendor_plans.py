"""Plans of cuDNN in the store: other processes restore them, with the same bits; what is no plan of the call is built again.

    python tests/gpu/vendor_plans.py --out benchmarks/results/cuda_vendor_plans.json [restored] [damaged] [many] [stores]

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
from pathlib import Path
from typing import Any

import torch
from gpu_report import Report, arguments, name_of_device, run_parts

import xpuruntime as xrt
from xpuruntime.runtime.execution import plan_stores
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


def start(dtype: str, count: str, device: str, where: str) -> dict[str, Any]:
    """Open the network in this process. Return the number of plans that were read and written, the seconds, and the output's digest."""
    read, written = list[str](), list[str]()

    class WatchedStore(Store):
        """A store that records the plans that are read and written."""

        def get(self, kind: str, key: str) -> bytes | None:
            payload = super().get(kind, key)
            if kind == plan_stores.PLANS and payload is not None:
                read.append(key)
            return payload

        def put(self, kind: str, ingredients: Any, *payload: Any) -> str:
            key = super().put(kind, ingredients, *payload)
            if kind == plan_stores.PLANS:
                written.append(key)
            return key

    plan_stores.Store = WatchedStore
    model = Network(int(count), dtype != "float32").eval()
    x = torch.randn(2, _CHANNELS, _SIDE, _SIDE, generator=torch.Generator().manual_seed(1))
    policy = xrt.KernelPolicy(conv="cudnn", attention="cudnn")
    precision = xrt.ExecutionPolicy(
        precision="model" if dtype == "float32" else dtype,
        self_check="always",
        caching=False if where == "nowhere" else None,
    )
    began = time.perf_counter()
    with xrt.InferenceSession(
        model,
        device=device,
        engine="native",
        example_inputs=(x,),
        kernel_policy=policy,
        exec_policy=precision,
        cache_dir=where if Path(where).is_absolute() else None,
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


def started(store: str, dtype: str, count: int, device: str, where: str = "default") -> dict[str, Any]:
    """Return the facts of a start in a new process. where: a folder for ``cache_dir``, ``nowhere`` for ``caching: false``, or ``default``."""
    command = [sys.executable, __file__, "--start", dtype, str(count), device, where]
    environment = {**os.environ, "XPU_CACHE_DIR": store, "CUDA_CACHE_DISABLE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-800:]}")
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def replaced(store: str, change: Callable[[bytes, bytes], bytes]) -> int:
    """Replace each stored plan by the change of it and of another one. The store's own checksums are right. Return the number."""
    at = Store(store)
    entries = [e for e in at.entries() if e.kind == plan_stores.PLANS]
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


def entries(folder: str) -> int:
    """Return the number of plans in a store."""
    return sum(e.kind == plan_stores.PLANS for e in Store(folder).entries())


def stores(report: Report, args: argparse.Namespace) -> Any:
    """A session with ``cache_dir=`` keeps its plans there and nowhere else; one with ``caching: false`` writes nothing."""
    rows = {}
    with tempfile.TemporaryDirectory() as default, tempfile.TemporaryDirectory() as own:
        for name, where in {
            "caching: false": "nowhere",
            "cache_dir": own,
            "cache_dir again": own,
            "default": "default",
        }.items():
            row = rows[name] = started(default, "float16", args.layers, args.device, where)
            row["stored"] = {"default": entries(default), "cache_dir": entries(own)}
        off, first, second, last = rows.values()
        report.check(off["read"] == off["written"] == 0, f"caching: false reads and writes no plan: {off}")
        report.check(
            off["stored"] == {"default": 0, "cache_dir": 0}, "caching: false leaves the stores empty"
        )
        report.check(
            first["stored"] == {"default": 0, "cache_dir": first["written"]},
            f"plans are kept in cache_dir alone: {first}",
        )
        report.check(
            first["written"] > 0 == second["written"],
            f"a second session of cache_dir builds no plan: {second}",
        )
        report.check(second["read"] == first["written"], f"it reads them there: {second}")
        report.check(
            last["written"] == first["written"] == last["stored"]["default"],
            f"a session without it keeps them in XPU_CACHE_DIR: {last}",
        )
        same = {digest for row in rows.values() for digest in row["digests"]}
        report.check(len(same) == 1, f"the same bits: {same}")
    return rows


PARTS = {"restored": restored, "damaged": damaged, "many": many, "stores": stores}


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if a plan is wrong, missing, or built without need."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--layers", type=int, default=8, help="pairs of convolutions of the network")
    parser.add_argument("--many", type=int, default=140, help="pairs of convolutions of the large network")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--start", nargs=4, help="for the script itself")
    args = parser.parse_args(argv)
    if args.start:
        print(json.dumps(start(*args.start)))
        return 0
    return run_parts(__doc__, PARTS, packages=("torch",), argv=argv, parser=parser, gpu=name_of_device)


if __name__ == "__main__":
    sys.exit(main())
