"""How far two right engines differ on trained models and real inputs: what the tolerance for float32 rests on.

    python benchmarks/agreement.py [--keep]

Every sample of every model of the demo runs on every engine, in float32; the figure is the largest max|d| / max|ref| over samples
and outputs, as `xpuruntime.numerics` measures it.
"""

from __future__ import annotations

import argparse
import sys
from itertools import combinations
from pathlib import Path

from machine import facts, keep

import xpuruntime as xrt
from xpuruntime.numerics import TOLERANCE, compare

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from examples.zoo import MODELS

ENGINES = ("onnxruntime", "openvino")


def main() -> int:
    parser = argparse.ArgumentParser(description="How far engines differ on the demo's models.")
    parser.add_argument("--keep", action="store_true")
    arguments = parser.parse_args()
    about, limit = facts("numpy", "onnx", *ENGINES), TOLERANCE[xrt.DType.FLOAT32]
    rows = []
    for model in MODELS.values():
        sessions = {e: xrt.InferenceSession(model.onnx_path(), engine=e, device="cpu") for e in ENGINES}
        worst, samples = 0.0, model.samples()
        for sample in samples:
            outputs = {e: s.run(model.inputs(sample)) for e, s in sessions.items()}
            for a, b in combinations(ENGINES, 2):
                for name, value in outputs[a].items():
                    worst = max(worst, compare(name, value, outputs[b][name], limit).max_rel)
        nodes = len(sessions[ENGINES[0]].plan.nodes)
        rows.append({"model": model.name, "nodes": nodes, "samples": len(samples), "max_rel": worst})
        print(f"{model.name:<20} {nodes:4} nodes  {len(samples):3} samples  max|d|/max|ref| {worst:.2g}")
    if arguments.keep:
        print("wrote", keep("agreement", {"machine": about, "tolerance": limit, "rows": rows}, timed=False))
    return 0 if all(row["max_rel"] <= limit for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
