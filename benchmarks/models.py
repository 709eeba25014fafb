"""The demo's trained models on every engine of this machine, on real inputs, one after the other.

    python benchmarks/models.py [--seconds 10] [--threads N] [--keep]

Each model: outputs are compared first, then the engines run in alternation (`xpuruntime.workbench.bench`). `--keep` writes
benchmarks/results/models.json, from which the README's table is made (`python benchmarks/readme_table.py`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from machine import facts, keep

from xpuruntime.workbench.bench.engines import bench
from xpuruntime.workbench.inputs import Inputs
from xpuruntime.workbench.session_options import SessionOptions

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.zoo import MODELS

ENGINES = ("native", "onnxruntime", "openvino")


def main() -> int:
    parser = argparse.ArgumentParser(description="The demo's models on every engine of this machine.")
    parser.add_argument("--seconds", type=float, default=10.0, help="per model")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    about = facts("numpy", "onnx", "onnxruntime", "openvino")
    rows, ok = [], True
    for name in arguments.models:
        model = MODELS[name]
        path, sample = model.onnx_path(), model.samples()[0]
        feeds = model.inputs(sample)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "inputs.npz")
            np.savez(file, **feeds)
            options = SessionOptions(device="cpu", threads=arguments.threads)
            report = bench(
                path, ENGINES, options=options, inputs=Inputs(files=(str(file),)), seconds=arguments.seconds
            )
        print(f"{name}: {report.sentence}")
        ok &= report.ok
        shapes = {n: [str(v.dtype), list(v.shape)] for n, v in feeds.items()}
        rows.append(
            {
                **report.to_json(),
                "model": name,
                "title": model.title,
                "task": model.task,
                "sample": sample.name,
            }
            | {"inputs": shapes}
        )
    if arguments.keep:
        print("wrote", keep("models", {"machine": about, "rows": rows}))
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
