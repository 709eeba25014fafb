"""Bisections: a node that is broken on purpose is named, in few runs and little memory, and the saved folder fails alone.

    python tests/gpu/bisection.py --models FOLDER --out benchmarks/results/cuda_bisection.json [--device cuda:0] [--seed 0]
    python tests/gpu/bisection.py --models FOLDER --device cpu --out benchmarks/results/bisection.json

FOLDER holds ten ONNX files. ``--write`` makes it, on a machine with torch, transformers and onnxscript: eight seeded networks and two of the sizes
of vendors' models. In each network one weight of one node, drawn by the seed, is changed. Parts: ``weights`` (against the original
model), ``kernels`` (a kernel is made wrong by a hook, which the CPU has; against ONNX Runtime).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gpu_report import Report, arguments, name_of_device, run_parts
from onnx import TensorProto, numpy_helper

from xpuruntime.runtime.memory.pool import MemoryPool
from xpuruntime.workbench.bisect import bisect
from xpuruntime.workbench.bisect.report import Bisection
from xpuruntime.workbench.inputs import Inputs
from xpuruntime.workbench.values.side import Side, open_source

SEEDED = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "efficientnet_b0",
    "densenet121",
    "vit",
    "bert",
    "qwen2",
)
_HOOK = "XPU_TEST_WRONG_KERNEL"


def write_models(folder: Path) -> None:
    """Export the ten networks. What is there already stays."""
    from attribution import write_seeded
    from vendor_networks import NETWORKS

    folder.mkdir(parents=True, exist_ok=True)
    for name in SEEDED:
        if not (folder / f"{name}.onnx").is_file():
            write_seeded(name, folder / f"{name}.onnx", "small")
    for name in ("minilm", "text_recognizer"):  # the weights of the third are one constant each
        model, feeds = NETWORKS[name]()
        (folder / f"{name}_onnx.onnx").write_bytes(model)
        np.savez(folder / f"{name}_onnx.npz", **feeds)


def side_of(path: Path, args: argparse.Namespace) -> Side:
    """Return a model on the native engine."""
    return Side(open_source(path), engine="native", device=args.device, threads=1)


def feeds_of(path: Path, side: Side) -> dict[str, Any]:
    """Return the inputs that are stored next to the model, or seeded ones."""
    stored = path.with_suffix(".npz")
    if stored.is_file():
        with np.load(stored) as arrays:
            return dict(arrays)
    return Inputs().samples(side.model.inputs)[0]


def weighted_nodes(model: onnx.ModelProto) -> dict[str, str]:
    """Return the first weight with several dims of each node that has one."""
    floats = {t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) > 1}
    readers: dict[str, int] = {}
    for n in model.graph.node:
        for i in floats & set(n.input):
            readers[i] = readers.get(i, 0) + 1
    return {
        n.name: first for n in model.graph.node if (first := next((i for i in n.input if readers.get(i) == 1), ""))
    }  # fmt: skip


def with_changed_weight(path: Path, node: str, to: Path) -> Path:
    """Write a copy of the model in which the weight of one node is 1.25 times as large."""
    model = onnx.load(path)
    name = weighted_nodes(model)[node]
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.25), name))
    onnx.save(model, to)
    return to


# ── memory ──

_PEAKS = """
import argparse, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import bisection as b
args = argparse.Namespace(device=sys.argv[5])
path, changed = Path(sys.argv[3]), Path(sys.argv[4])
sides = b.side_of(changed, args), b.side_of(path, args)
feeds = b.feeds_of(path, sides[0])
if sys.argv[2] == "plain":
    with sides[0].open() as session:
        session.run(feeds)
else:
    b.bisect(*sides, feeds)
print(json.dumps([b.most_resident(), b.most_on_device(args.device)]))
"""


def most_resident() -> int:
    """Return the largest resident memory of this process so far. (``ru_maxrss`` begins with that of the parent.)"""
    with Path("/proc/self/status").open(encoding="ascii") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) << 10


def most_on_device(device: str) -> int:
    """Return the most bytes of a CUDA device that this process had in buffers, arenas and weights so far; 0 for the CPU."""
    return 0 if device == "cpu" else MemoryPool(device).statistics().peak_bytes


def peak_memory(mode: str, path: Path, changed: Path, device: str) -> tuple[int, int]:
    """Return the largest resident memory of a fresh process in bytes, with its libraries, and the most that it had on the device.

    The programs are stored already, so nothing is compiled.
    """
    folder = str(Path(__file__).resolve().parent)
    line = [sys.executable, "-c", _PEAKS, folder, mode, str(path), str(changed), device]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=True)
    host, on_device = json.loads(done.stdout.splitlines()[-1])
    return host, on_device


# ── parts ──


def again(found: Bisection) -> int | None:
    """Run the command of the saved folder in a fresh process and return its exit code."""
    saved = found.reproduction
    if saved is None:
        return None
    line = [sys.executable, "-m", "xpuruntime", *saved.command.split()[1:]]
    return subprocess.run(line, cwd=saved.folder, capture_output=True, timeout=300, check=False).returncode


def judge(report: Report, label: str, node: str, found: Bisection, count: int, code: int) -> dict[str, Any]:
    """Check one bisection and return its row."""
    names = found.node.nodes if found.node is not None else ()
    report.bound(f"{label}: {node} is named", node in names)
    report.bound(f"{label}: runs", found.runs, at_most=found.bound, unit="runs")
    exit_code = again(found)
    report.bound(f"{label}: the saved folder alone exits with {code}", exit_code == code)
    saved = found.reproduction
    return {
        "broken": node,
        "named": list(names),
        "nodes": count,
        "runs": found.runs,
        "bound": found.bound,
        "scope": None if saved is None else saved.scope,
        "exit code": exit_code,
    }


def weights(report: Report, args: argparse.Namespace) -> Any:
    """Change a weight of one node of each network, and bisect against the original."""
    paths = sorted(args.models.glob("*.onnx"))
    rows = {}
    with ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        for path, (row, own) in zip(paths, pool.map(changed_weight, paths, [args] * len(paths)), strict=True):
            report.checks += own.checks
            report.failures += own.failures
            rows[path.stem] = row
    report.bound("networks", len(rows), at_least=10)
    return rows


def changed_weight(path: Path, args: argparse.Namespace) -> tuple[dict[str, Any], Report]:
    """Change a weight of a drawn node of one network, and bisect. Return its row and its checks."""
    report = Report()
    model = onnx.load(path)
    draw = random.Random(f"{args.seed} {path.stem}")
    node = draw.choice(sorted(weighted_nodes(model)))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        changed = with_changed_weight(path, node, Path(folder) / f"{path.stem}-changed.onnx")
        right = side_of(path, args)
        found = bisect(side_of(changed, args), right, feeds_of(path, right), save=Path(folder) / "saved")
        row = judge(report, path.stem, node, found, len(model.graph.node), 1)
        plain = peak_memory("plain", path, changed, args.device)
        search = peak_memory("bisect", path, changed, args.device)
    for kind, one, two in zip(("host", "device"), plain, search, strict=True):
        if one:
            what = f"{path.stem}: {kind} memory of the bisection over a plain run's"
            report.bound(what, round(two / one, 2), at_most=2)
    row |= {
        "plain_run_bytes": plain,
        "bisection_bytes": search,
        "seconds": round(time.perf_counter() - started, 1),
    }
    return row, report


def kernels(report: Report, args: argparse.Namespace) -> Any:
    """Make the kernel of one node of each network wrong, and bisect against ONNX Runtime. The saved folder is right without the hook."""
    if args.device != "cpu":
        return {"left out": "the hook is in the backend of the CPU"}
    rows = {}
    for path in sorted(args.models.glob("*.onnx")):
        side = side_of(path, args)
        feeds = feeds_of(path, side)
        with side.open() as session:
            calls = session.executable.executor_for(feeds).plan.calls  # type: ignore[attr-defined]
        draw = random.Random(f"{args.seed} kernel {path.stem}")
        broken = [c for c in calls if c.nodes and not c.kernel.startswith("movement/")]
        other = Side(side.model, engine="onnxruntime", device="cpu", threads=1)
        found, hidden = None, 0
        with tempfile.TemporaryDirectory() as folder:
            while (
                found is None or not found.differs
            ):  # no output shows a wrong element of a token that none reads
                hidden += found is not None
                call = draw.choice(broken)
                os.environ[_HOOK] = f"node {call.nodes[0]}:element"
                try:
                    found = bisect(side, other, feeds, save=Path(folder) / "saved")
                finally:
                    del os.environ[_HOOK]
            shown = found.reproduction is not None and found.reproduction.fails
            report.bound(f"{path.stem}: the saved folder fails alone under the hook", bool(shown))
            rows[path.stem] = judge(report, path.stem, call.nodes[-1], found, len(side.model.nodes), 0) | {
                "kernel": call.kernel,
                "drawn again": hidden,
            }
    return rows


PARTS = {"weights": weights, "kernels": kernels}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--seed", default="0", help="draws the broken nodes")
    parser.add_argument("--models", type=Path, default=Path("build/bisection"), metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=1, help="networks of the part weights at the same time")
    parser.add_argument("--write", action="store_true", help="write the models first")
    return run_parts(
        __doc__,
        PARTS,
        gpu=name_of_device,
        packages=("onnx", "onnxruntime"),
        argv=argv,
        parser=parser,
        before=lambda args: write_models(args.models) if args.write else None,
    )


if __name__ == "__main__":
    sys.exit(main())
