"""Attribution of receipts: every node is explained and the measured time is in named kernels or primitives, for ResNet-50, BERT and PP-OCR.

    python tests/gpu/attribution.py --models FOLDER --out benchmarks/results/cuda_attribution.json [--device cuda:0] [PART ...]
    python tests/gpu/attribution.py --models FOLDER --device cpu --engines native,onnxruntime,openvino --out benchmarks/results/attribution.json

FOLDER holds ``resnet50.onnx``, ``bert.onnx``, ``ppocr-det.onnx`` and ``ppocr-rec.onnx``. ``--write`` makes it, on a machine with torch, onnxscript and
rapidocr. Parts: ``attribution`` (each model on each engine), ``swap`` (another function is called behind the plan; CPU only) and ``files``
(the receipt of the first model as files for other tools, in the folder of the results, for ``benchmarks/viewers.py``).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gpu_report import Report, arguments, name_of_device, run_parts

import xpuruntime as xrt
from xpuruntime.profiler.receipt import Receipt
from xpuruntime.workbench.inputs import Inputs

IMAGES = {"ppocr-det": (1, 3, 320, 320), "ppocr-rec": (1, 3, 48, 320)}
"""Sizes of the inputs of models with open shapes."""
MODELS = ("resnet50", "bert", *IMAGES)
_SWAP = "XPU_TEST_SWAP_KERNEL"


def write_models(folder: Path) -> None:
    """Export the seeded networks in full size, and copy the files that rapidocr ships. What is there already stays."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        path = folder / f"{name}.onnx"
        if path.is_file():
            continue
        if name in IMAGES:
            from examples.zoo import MODELS as ZOO

            path.write_bytes(ZOO[name].onnx_path().read_bytes())
        else:
            write_seeded(name, path)


def write_seeded(name: str, path: Path, size: str = "full") -> None:
    """Export a seeded network by PyTorch's exporter, or by ours without onnxscript."""
    from xpuruntime.testing.conformance.seeded.export import export_onnx
    from xpuruntime.testing.conformance.seeded.networks import build

    if importlib.util.find_spec("onnxscript"):
        export_onnx(name, path, size=size)
        return
    from xpuruntime.frontends.onnx_writer import to_onnx
    from xpuruntime.frontends.torch import import_torch

    module, example = build(name, size)
    data: Any = to_onnx(*import_torch(module, example, model_name=name))
    path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())


def session_of(args: argparse.Namespace, name: str, engine: str) -> xrt.InferenceSession:
    """Open a session. The self-check is off, as random pixels are no page, and PP-OCR's scores of them are near 0."""
    policy = xrt.ExecutionPolicy(self_check="off")
    path = args.models / f"{name}.onnx"
    return xrt.InferenceSession(
        path, engine=engine, device=args.device, threads=args.threads, exec_policy=policy
    )


def feeds_of(session: xrt.InferenceSession, name: str) -> dict[str, Any]:
    """Return seeded inputs."""
    if name in IMAGES:
        x = np.random.default_rng(0).standard_normal(IMAGES[name], dtype=np.float32)
        return {session.input_info[0].name: x}
    return Inputs().samples(session.model.inputs)[0]


def receipt_of(args: argparse.Namespace, name: str, engine: str) -> Receipt:
    """Run a model once and return its receipt."""
    with session_of(args, name, engine) as session:
        session.run(feeds_of(session, name))
        return session.receipt()


def attribution(report: Report, args: argparse.Namespace) -> Any:
    """Check nodes and time of each model on each engine."""
    results: dict[str, Any] = {}
    for name in MODELS:
        for engine in args.engines.split(","):
            receipt = receipt_of(args, name, engine)
            figures, label = receipt.attribution, f"{name} on {engine}, {args.device}"
            reasons = [why for e in receipt.evidence.values() for why in e.explained.values()]
            report.bound(f"{label}: nodes explained", 100 * figures.node_share, at_least=100, unit="%")
            share = None if figures.time_share is None else 100 * figures.time_share
            report.bound(f"{label}: time in named kernels or primitives", share, at_least=99, unit="%")
            report.check(not any("unknown" in w for w in reasons), f"{label}: no reason is 'unknown'")
            report.check(receipt.confirmed, f"{label}: the receipt is confirmed")
            rows = [row for e in receipt.evidence.values() for row in e.rows]
            if args.device != "cpu" and engine == "native":
                report.check(all(r.seen for r in rows), f"{label}: CUPTI saw the kernels of every call")
            results[f"{name} {engine}"] = figures.to_json() | {
                "steps": len(rows),
                "kernels": len({r.kernel for r in rows}),
                "threads": args.threads,
                "findings": [str(f) for f in receipt.findings],
            }
    return results


def swap(report: Report, args: argparse.Namespace) -> Any:
    """Call another function of the program behind the plan: the receipt is not confirmed and names the step."""
    if args.device != "cpu":
        return {"left out": "the hook is in the backend of the CPU"}
    results = {}
    for name in MODELS:
        with session_of(args, name, "native") as session:
            feeds = feeds_of(session, name)
            session.run(feeds)
            pair = _swappable(session.executable.executor_for(feeds).plan)  # type: ignore[attr-defined]
        if pair is None:
            report.check(False, f"{name}: no two calls take the same arguments")
            continue
        position, symbol = pair
        os.environ[_SWAP] = f"{position}={symbol}"
        try:
            receipt = receipt_of(args, name, "native")
        finally:
            del os.environ[_SWAP]
        wrong = [str(f) for f in receipt.findings if not f.ok]
        report.bound(f"{name}: not confirmed with another function at step {position}", not receipt.confirmed)
        report.check(any(f"step {position} " in w for w in wrong), f"{name}: {wrong[:1]}")
        results[name] = {"step": position, "function": symbol, "findings": wrong}
    return results


def _swappable(plan: Any) -> tuple[int, str] | None:
    """Return the position of a call of a generated kernel, and another function of the same kernel that touches no more memory."""
    sizes = {b.name: b.size_bytes for b in plan.buffers}
    calls = [(i, c) for i, c in enumerate(plan.calls) if c.symbol and not c.library and c.nodes]
    for i, call in calls:
        for _, other in calls:
            a, b = ([sizes[n] for n in (*c.inputs, *c.outputs)] for c in (call, other))
            same = (call.kernel, len(call.inputs), len(a)) == (other.kernel, len(other.inputs), len(b))
            if other.symbol != call.symbol and same and all(x <= y for x, y in zip(b, a, strict=True)):
                return i, other.symbol
    return None


RULES = """version: 1
rules:
  - {rule: confirmed}
  - {rule: coverage, percent: 30}
  - {rule: engines, allow: qnn, name: "fails on purpose"}
"""


def files(report: Report, args: argparse.Namespace) -> Any:
    """Write the receipt of the first model for other tools by the commands that a user would call."""
    if args.out is None:
        return {"left out": "no --out"}
    folder = args.out.absolute().with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yaml").write_text(RULES, encoding="utf-8")
    model, engine = (args.models / f"{MODELS[0]}.onnx").absolute(), args.engines.split(",")[0]
    run = f"run {model} --engine {engine} --device {args.device}"
    commands = {
        f"{run} --save-receipt receipt.json --trace run.pftrace --html receipt.html": 0,
        "inspect receipt.json --export receipt.onnx": 0,
        "inspect receipt.json --export explorer.json": 0,
        "check receipt.json --rules rules.yaml --junit results.xml --markdown summary.md": 1,
    }
    for command, code in commands.items():
        line = [sys.executable, "-m", "xpuruntime", *shlex.split(command)]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
        report.check(done.returncode == code, f"xpu {command.partition(' ')[0]}: exit code {done.returncode} {done.stderr[-300:] if done.returncode != code else ''}")  # fmt: skip
    return {p.name: p.stat().st_size for p in sorted(folder.iterdir())}


PARTS = {"attribution": attribution, "swap": swap, "files": files}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = arguments(__doc__, tuple(PARTS))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--engines", default="native", help="separated by commas")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", type=Path, default=Path("build/attribution"), metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help="write the models first")
    return run_parts(
        __doc__,
        PARTS,
        gpu=name_of_device,
        packages=("onnxruntime", "openvino"),
        argv=argv,
        parser=parser,
        before=lambda args: write_models(args.models) if args.write else None,
    )


if __name__ == "__main__":
    sys.exit(main())
