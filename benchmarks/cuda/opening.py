"""How long opening a PyTorch network takes on CUDA: with an empty store, and again with what the first session stored.

    python benchmarks/cuda/opening.py --out benchmarks/results/cuda_opening.json [--only NAME,...] [--dtype float16] [--rounds 3]
    python benchmarks/cuda/opening.py --device cpu --only resnet18.timm --profile       # tries the script

The networks are those of ``suite.py``. Every start is a process of its own and the only one that works; it first opens a tiny network, which loads the
modules of Python and the libraries of CUDA. Seconds are from the module to the open session, and to the first output. The parts of ``WATCHED`` are also
timed by themselves: ``export`` and ``decompose`` are PyTorch's, ``compile`` is NVRTC, or the C++ compiler on a processor, and ``prepare`` is what
libraries do for their calls. The first output must be PyTorch's.
"""

from __future__ import annotations

import argparse
import cProfile
import functools
import importlib
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import paths  # noqa: F401
import torch
from gpu_report import arguments, machine, write
from models import rms
from suite import _first, built

import xpuruntime as xrt

NETWORKS = (
    "resnet18.timm", "tf_efficientnetv2_s.timm", "coatnet_0_rw_224.timm", "fastvit_t8.timm", "deit_tiny_patch16_224.timm", "regnety_008.timm",
    "convnext_atto.timm", "mobilenetv3_small_050.timm", "swin_tiny_patch4_window7_224.timm", "r3d_18.torchvision", "googlenet.torchvision",
    "distilbert.transformers", "gpt2.transformers", "hubert.transformers",
)  # fmt: skip
MOST_ERROR = {"float32": 1e-4, "float16": 0.05, "bfloat16": 0.2}
"""Relative root mean square from PyTorch in float32 on the processor."""
GOALS = {"cold": 2.5, "stored": 0.2}
"""Median seconds to the open session."""


WATCHED = {
    "export": ("torch.export", "export"),
    "decompose": ("xpuruntime.frontends.torch.importer", "decomposed"),
    "generate": ("xpuruntime.compiler", "compile"),
    "compile": ("xpuruntime.compiler.emit", "Code.binaries"),
    "prepare": ("xpuruntime._core", "make_executor"),
    "weights": ("xpuruntime.inference.native.executable", "load_weights"),
    "self_check": ("xpuruntime.inference.selection.candidate", "checked_on_opening"),
}
"""Parts of opening, and the functions that do them. ``generate`` contains ``compile``; ``self_check`` may prepare an executor of its own."""


@contextmanager
def watched(seconds: dict[str, float]) -> Iterator[None]:
    """Record how long the parts of opening take."""

    def timed(name: str, function: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began

        return call

    with ExitStack() as stack:
        for part, (module, attribute) in WATCHED.items():
            *path, last = attribute.split(".")
            owner = functools.reduce(getattr, path, importlib.import_module(module))
            function = getattr(owner, last)
            setattr(owner, last, timed(part, function))
            stack.callback(setattr, owner, last, function)
        yield


def start(network: str, dtype: str, device: str, store: str, profile: str) -> dict[str, Any]:
    """Return the seconds of one start in this process."""
    policy = None if dtype == "float32" else xrt.ExecutionPolicy(precision=dtype)
    tiny = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
    ).eval()
    x = torch.randn(1, 3, 8, 8)
    with (
        tempfile.TemporaryDirectory() as other,
        xrt.InferenceSession(
            tiny, device=device, engine="native", example_inputs=(x,), exec_policy=policy, cache_dir=other
        ) as session,
    ):
        session.run({session.input_info[0].name: x.numpy()})
    model, inputs = built(network, 1)
    seconds: dict[str, float] = {}
    recorder = cProfile.Profile()
    with torch.inference_mode(), watched(seconds):
        if profile:
            recorder.enable()
        began = time.perf_counter()
        session = xrt.InferenceSession(
            model, device=device, engine="native", example_inputs=inputs, exec_policy=policy, cache_dir=store
        )
        opened = time.perf_counter()
        if profile:
            recorder.disable()
        outputs = session.run({i.name: v.numpy() for i, v in zip(session.input_info, inputs, strict=True)})
        finished = time.perf_counter()
        session.close()
        error = rms(next(iter(outputs.values())), _first(model(*inputs)).numpy())
    if not error <= MOST_ERROR[dtype]:
        raise SystemExit(f"{network}: the output is {error:.2g} from PyTorch's")
    if profile:
        pstats.Stats(recorder, stream=sys.stderr).sort_stats("cumtime").print_stats(60)
    return {"opened": opened - began, "first_output": finished - began, **seconds}


def pair(network: str, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return a start with an empty store, and one with what that stored."""
    starts = {}
    with tempfile.TemporaryDirectory() as store:
        environment = {**os.environ, "XPU_CACHE_DIR": store, "CUDA_CACHE_DISABLE": "1"}
        for name in GOALS:
            command = [
                sys.executable,
                __file__,
                "--start",
                network,
                args.dtype,
                args.device,
                store,
                "1" if args.profile else "",
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
            if done.returncode:
                raise SystemExit(f"{network}, {name}: exit code {done.returncode}")
            starts[name] = json.loads(done.stdout.splitlines()[-1])
    return starts


def main(argv: Sequence[str] | None = None) -> int:
    """Print the seconds of each network, and the medians next to the goals."""
    parser = arguments(__doc__)
    parser.add_argument("--only", type=lambda t: t.split(","), default=list(NETWORKS), metavar="NAME,...")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    parser.add_argument("--start", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.start:
        print(json.dumps(start(*args.start)))
        return 0
    rows: dict[str, Any] = {}
    name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    facts = machine(name, "torch", "timm", "torchvision", "transformers")
    facts |= {"cpus": len(os.sched_getaffinity(0)), "dtype": args.dtype}
    for network in args.only:
        rounds = [pair(network, args) for _ in range(args.rounds)]
        rows[network] = {
            n: {k: round(statistics.median(r[n].get(k, 0.0) for r in rounds), 3) for k in rounds[0][n]}
            for n in GOALS
        }
        print(network, rows[network], flush=True)
        medians = {n: round(statistics.median(r[n]["opened"] for r in rows.values()), 3) for n in GOALS}
        write(args.out, {"machine": facts, "goals_s": GOALS, "medians_s": medians, "rows": rows})
    print({n: f"{s:.2f} s, goal {GOALS[n]}" for n, s in medians.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
