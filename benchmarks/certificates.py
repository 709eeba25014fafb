"""Certificates of whole networks: differing bits of the training forward and an inference session, and the price in time of the exact policy.

    python benchmarks/certificates.py                               # full sizes, on the host
    python benchmarks/certificates.py --device cuda --keep
    python benchmarks/certificates.py --size small --networks bert --inputs 10

Without the exact policy, the bound that a certificate of 10 inputs states is held against ``--inputs`` others.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import torch
from machine import facts, keep
from support.certified_networks import EXACT, NETWORKS, build

import xpuruntime.pytorch as xrt_torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STATED = 10
"""Inputs from which a bound is stated."""


def measured(name: str, size: str, dtype: str, device: str, inputs: int) -> dict[str, Any]:
    """Return one network's row."""
    module, example = build(name, size, DTYPES[dtype])
    exact = xrt_torch.certify(module, example, EXACT, device=device, samples=2, name=name)
    row = {
        "network": name, "dtype": dtype, "device": device,
        "elements": sum(o.elements for o in exact.outputs),
        "differing": sum(o.differing for o in exact.outputs),
        "modules": len(exact.modules),
        "first": exact.first,
        "session_us": round(exact.session_us), "plain_us": round(exact.plain_us), "training_us": round(exact.training_us),
        "price": round(exact.session_us / exact.plain_us, 2),
    }  # fmt: skip
    if inputs:
        stated = xrt_torch.certify(module, example, device=device, samples=STATED, name=name)
        others = xrt_torch.certify(module, example, device=device, samples=inputs, seed=1, name=name)
        row["bounds"] = [
            {"output": s.name, "bound": s.bound, "largest": o.relative, "holds": o.relative <= s.bound}
            for s, o in zip(stated.outputs, others.outputs, strict=True)
        ]
        row["inputs"] = inputs
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description="Certificates of whole networks")
    parser.add_argument("--networks", nargs="*", default=[*NETWORKS], choices=[*NETWORKS])
    parser.add_argument("--dtypes", nargs="*", default=[*DTYPES], choices=[*DTYPES])
    parser.add_argument("--size", default="full", choices=["full", "small"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--inputs", type=int, default=100, help="other inputs for the stated bound; 0 skips it"
    )
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/certificates.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    result: dict[str, Any] = {"machine": facts("torch", "transformers"), "size": options.size, "rows": []}
    for name in options.networks:
        for dtype in options.dtypes:
            row = measured(name, options.size, dtype, options.device, options.inputs)
            result["rows"].append(row)
            print(json.dumps(row), flush=True)
    if options.keep:
        print(keep("certificates", result, beside=True))
    failed = [r for r in result["rows"] if r["differing"] or not all(b["holds"] for b in r.get("bounds", []))]
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
