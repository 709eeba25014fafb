"""Locks on a GPU: two cold processes with empty stores have the plan and the bits of the lock, measure nothing, and refuse a changed library.

    python tests/gpu/locks.py --models FOLDER --out benchmarks/results/cuda_locks.json [--device cuda:0] [PART ...]

FOLDER holds ``resnet50.onnx``; ``--write`` exports it. Parts: ``session`` (``xpu lock`` with cuDNN's engines for convolutions) and ``regions`` (a
``DAGExecutor`` with regions on the GPU and on the CPU).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from gpu_report import Report, arguments, name_of_device, run_parts

import xpuruntime as xrt
from xpuruntime.errors import LockError
from xpuruntime.frontends.onnx.importer import import_onnx
from xpuruntime.inference.lock_checks import validators
from xpuruntime.program.lock import Lock, plan_digest
from xpuruntime.workbench.inputs import Inputs
from xpuruntime.workbench.values.side import open_source

_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import locks
print(json.dumps(locks.under_lock(*sys.argv[2:])))
"""
_CHANGED = "9.9.9"


def under_lock(kind: str, model: str, lock: str, feeds: str, change: str) -> dict[str, Any]:
    """Open and run a model under a lock. change: a library that reports another version, or empty."""
    if change:
        facts = validators._device_facts
        validators._device_facts = lambda device: {
            k: _CHANGED if k == change else v for k, v in facts(device).items()
        }
    try:
        with xrt.profile() as trace, np.load(feeds) as arrays:
            if kind == "session":
                with xrt.InferenceSession(model, lock=lock) as session:
                    outputs, plan = session.run(dict(arrays)), session.plan
            else:
                imported = import_onnx(model)
                with xrt.DAGExecutor(imported.graph, lock=lock) as dag:
                    dag.load_weights(imported.weights)
                    outputs, plan = dag.execute(dict(arrays)), dag.plan
    except LockError as error:
        return {"refused": [c[0] for c in error.changes], "text": str(error)}
    measured = [s.name for s in trace.spans if s.name.startswith("measure: ")]
    return {
        "plan": plan_digest(plan),
        "outputs": digest_of(outputs),
        "events": len(trace.spans),
        "measured": measured,
    }


def digest_of(outputs: dict[str, Any]) -> str:
    """Return the sha256 of outputs in the order of their names."""
    return hashlib.sha256(
        b"".join(np.ascontiguousarray(outputs[k]).tobytes() for k in sorted(outputs))
    ).hexdigest()


def cold(folder: Path, name: str, kind: str, model: Path, change: str = "") -> dict[str, Any]:
    """Return ``under_lock`` of a fresh process with an empty store, in which the environment asks for something else."""
    environment = os.environ | {"XPU_CACHE_DIR": str(folder / name), "XPU_ENGINE": "onnxruntime"}
    files = [str(model), str(folder / "the.lock"), str(folder / "feeds.npz"), change]
    line = [sys.executable, "-c", _PROCESS, str(Path(__file__).resolve().parent), kind, *files]
    done = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=200, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def judged(
    report: Report, folder: Path, kind: str, model: Path, lock: Lock, outputs: dict[str, Any], device: str
) -> dict[str, Any]:
    """Check two cold processes and one with a changed library."""
    libraries = [n for n in lock.validators if n.startswith("library ")]
    change = next((n for n in libraries if "cudnn" in n.lower()), libraries[0] if libraries else "")
    names = {"first": "", "second": "", **({"changed": change} if change else {})}
    with ThreadPoolExecutor(len(names)) as pool:
        seen = dict(
            zip(names, pool.map(lambda n: cold(folder, n, kind, model, names[n]), names), strict=True)
        )
    for name in ("first", "second"):
        one = seen[name]
        report.bound(
            f"{kind}: the {name} cold process has the plan of the lock", one.get("plan") == lock.plan
        )
        report.bound(
            f"{kind}: the {name} cold process has equal bits", one.get("outputs") == digest_of(outputs)
        )
        report.bound(f"{kind}: the {name} cold process measures nothing", one.get("measured") == [])
    if change:
        report.bound(
            f"{kind}: a changed {change} is refused with its name", seen["changed"].get("refused") == [change]
        )
    elif device != "cpu":
        report.check(False, f"{kind}: the lock names no library")
    words = Counter(c.kernel for p in lock.programs for c in p.calls)
    implementations = Counter(c.implementation for p in lock.programs for c in p.calls if c.implementation)
    return {
        "validators": dict(lock.validators),
        "kernels": dict(words.most_common()),
        "implementations": dict(implementations.most_common(12)),
        "pinned": sorted({w for p in lock.programs for w in p.kernels.values() if "[" in w}),
        "regions": [f"{r.engine} on {r.device}: {len(r.nodes)}" for r in lock.regions],
        "processes": seen,
    }


# ── parts ──


def session(report: Report, args: argparse.Namespace) -> Any:
    """Lock ResNet-50 with cuDNN's engines by ``xpu lock``."""
    model = args.models / "resnet50.onnx"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rules = [{"op": "conv", "prefer": ["cudnn"] if args.device != "cpu" else ["onednn"]}]
        policy = {"version": 1, "kernel": {"rules": rules}, "execution": {"self_check": "off"}}
        (folder / "policy.json").write_text(json.dumps(policy))
        line = ["lock", str(model), "--policy", str(folder / "policy.json"), "--engine", "native", "--device", args.device, "-o", str(folder / "the.lock")]  # fmt: skip
        subprocess.run(
            [sys.executable, "-m", "xpuruntime", *line], check=True, timeout=200, capture_output=True
        )
        lock = Lock.load(folder / "the.lock")
        with xrt.InferenceSession(model, lock=lock) as opened:
            feeds = Inputs().samples(opened.model.inputs)[0]
            np.savez(folder / "feeds.npz", **feeds)
            outputs = opened.run(feeds)
        row = judged(report, folder, "session", model, lock, outputs, args.device)
    if args.device != "cpu":
        used = sum(n for w, n in row["kernels"].items() if w.partition("[")[0] == "conv/cudnn")
        report.bound("session: convolutions by cuDNN", used, at_least=1)
    return row


def regions(report: Report, args: argparse.Namespace) -> Any:
    """Lock a DAGExecutor with the convolutions on the device and the rest of the head in ONNX Runtime on the CPU."""
    model = args.models / "resnet50.onnx"
    imported = import_onnx(model)
    feeds = Inputs().samples(open_source(model).inputs)[0]
    heads = {"linear": "onnxruntime", "matmul": "onnxruntime"}
    plan = xrt.partition(imported.graph, engine=f"native on {args.device}", place=heads, others=("onnxruntime",), absorb=False)  # fmt: skip
    with tempfile.TemporaryDirectory() as name, xrt.DAGExecutor(plan, threads=1) as dag:
        folder = Path(name)
        np.savez(folder / "feeds.npz", **feeds)
        dag.load_weights(imported.weights)
        outputs = dag.execute(feeds)
        lock = dag.lock()
        lock.save(folder / "the.lock")
        row = judged(report, folder, "regions", model, lock, outputs, args.device)
    report.bound("regions: engines", len({r.engine for r in lock.regions}), at_least=2)
    return row


PARTS = {"session": session, "regions": regions}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--models", type=Path, default=Path("build/attribution"), metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help="write the model first")
    return run_parts(
        __doc__,
        PARTS,
        gpu=name_of_device,
        packages=("onnx", "onnxruntime"),
        argv=argv,
        parser=parser,
        before=lambda args: write_model(args.models / "resnet50.onnx") if args.write else None,
    )


def write_model(path: Path) -> None:
    """Export ResNet-50 unless it is there, in another process: PyTorch brings CUDA libraries of its own, which would be those of the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        script = "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import attribution; attribution.write_seeded('resnet50', pathlib.Path(sys.argv[2]))"
        line = [sys.executable, "-c", script, str(Path(__file__).resolve().parent), str(path)]
        subprocess.run(line, check=True, timeout=200)


if __name__ == "__main__":
    sys.exit(main())
