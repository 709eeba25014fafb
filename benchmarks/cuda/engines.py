"""ONNX Runtime's CUDA provider through InferenceSession, on a machine with an NVIDIA GPU and the package onnxruntime-gpu.

    python benchmarks/cuda/engines.py MODEL.onnx [MODEL.onnx ...] --out benchmarks/results/gpu_engines.json

For each model: the outputs on cuda:0 against the CPU's and against the ONNX reference tolerance, the plan, strict mode, evidence
from the run (placement, kernels, times), a device that does not exist, and what a run adds to the vendor's own. Exits with 1 when
anything is not as it must be.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import paths  # noqa: F401
from gpu_report import called_us

import xpuruntime as xrt
from xpuruntime import runtime
from xpuruntime.inference.execution.seeded_inputs import sample_feeds
from xpuruntime.numerics import compare_all, tolerance_for
from xpuruntime.targets import DeviceId
from xpuruntime.types import DType

failures: list[str] = []


def check(ok: bool, what: str) -> bool:
    """Note a failure and go on, so that one visit to the machine says everything."""
    print("ok  " if ok else "FAIL", what, flush=True)
    if not ok:
        failures.append(what)
    return ok


def one_model(path: Path) -> dict[str, Any]:
    """Everything that is asked of one model."""
    with xrt.InferenceSession(path, device="cpu", engine="onnxruntime") as sess:
        feeds = sample_feeds(sess.input_info, symbols=None)
        names = [s.name for s in sess.output_info]
        reference = [sess.run(feeds)[n] for n in names]
        cpu_ms = round(called_us(lambda: sess.run(feeds), 20, first=3) / 1e3, 4)
    started = time.perf_counter()
    with xrt.InferenceSession(path, device="cuda:0", engine="onnxruntime") as sess:
        start_s = time.perf_counter() - started
        outputs = [sess.run(feeds)[n] for n in names]
        results = compare_all(names, outputs, reference, tolerance_for(DType.FLOAT32))
        check(
            all(r.ok for r in results),
            f"{path.stem}: cuda:0 equals cpu, max|d|/max|ref| {max(r.max_rel for r in results):.2e}",
        )
        cuda_ms = round(called_us(lambda: sess.run(feeds), 200, first=3) / 1e3, 4)
        receipt = sess.receipt()
        evidence = receipt.evidence["r0"]
        print(receipt.text(rows=8))
        devices = sorted({row.device for row in evidence.rows})
        check(DeviceId("cuda") in map(DeviceId.parse, devices), f"{path.stem}: steps ran on {devices}")
    confirmed = receipt.confirmed
    try:
        xrt.InferenceSession(path, device="cuda:0", engine="onnxruntime", strict=True).close()
        strict = "passed"
    except xrt.StrictError as error:
        strict = str(error)
    check(
        (strict == "passed") == confirmed,
        f"{path.stem}: strict {strict[:300]!r}, receipt confirmed {confirmed}",
    )
    return {
        "model": path.stem,
        "comparisons": [r.to_json() for r in results],
        "start_s": round(start_s, 3),
        "cpu_ms": cpu_ms,
        "cuda_ms": cuda_ms,
        "confirmed": confirmed,
        "strict": strict,
        "evidence": evidence.to_json(),
    }


def onnxruntime_version() -> str:
    """Version of the loaded library; a CPU build's metadata may be next to it."""
    import onnxruntime

    return str(onnxruntime.__version__)


def refusals(path: Path) -> dict[str, Any]:
    """Devices and options that cannot be had: the named error, the vendor's reason."""
    refusals_by_engine = {}
    for name, ask in {
        "cuda:63": {"device": "cuda:63", "engine": "onnxruntime"},
        "npu": {"device": "npu"},
        "unknown provider option": {
            "device": "cuda:0",
            "engine": "onnxruntime",
            "exec_policy": xrt.ExecutionPolicy(engine_options={"onnxruntime": {"no_such_option": "1"}}),
        },
    }.items():
        try:
            xrt.InferenceSession(path, **ask).close()
            check(False, f"{name} must be refused")
        except xrt.XpuError as error:
            check(bool(error.do), f"{name} is refused: {str(error)[:300]}")
            refusals_by_engine[name] = error.to_json()
    policy = xrt.ExecutionPolicy(allow_fallback="cpu")
    with xrt.InferenceSession(path, device="cuda:63", engine="onnxruntime", exec_policy=policy) as sess:
        check(sess.plan.regions[0].device == "cpu", "cuda:63 with allow_fallback='cpu' runs on the CPU")
    with xrt.InferenceSession(path) as sess:
        check(sess.plan.regions[0].device == "cuda:0", "with nothing named, the GPU is taken")
    return refusals_by_engine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    report = runtime.cuda()
    check(report.status.ok, f"CUDA: {report.status.message or 'ready'}")
    result = {
        "machine": {
            "cpu": runtime.cpu().model,
            "cpus": runtime.cpu().usable_cores,
            "gpu": report.devices[0].name if report.devices else "",
            "driver": report.driver_version,
            "versions": {
                "python": platform.python_version(),
                "xpuruntime": xrt.__version__,
                "numpy": np.__version__,
                "onnxruntime": onnxruntime_version(),
            },
            "command": " ".join(["python benchmarks/cuda/engines.py", *map(str, arguments.models)]),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        },
        "cuda": report.to_json(),
        "models": [one_model(path) for path in arguments.models],
        "refusals": refusals(arguments.models[0]),
        "failures": failures,
    }
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
