"""What `InferenceSession.run` adds to the vendor's own run, on a model of one node and one tensor.

    python benchmarks/overhead.py [--pairs 20000] [--json] [--keep] [--beside-other-work]

The two are called in turn, in alternating order, on the same array; the figure is the median of the paired differences, with
its order-statistic interval. The vendor's session has the same options as ours, and is called in the quickest way that
its Python package documents: `InferenceSession.run` of ONNX Runtime, `InferRequest.set_input_tensor` and `infer` of OpenVINO, which take
a third less than `infer({0: x}, share_inputs=True)[0]`.
The issue's bound is 5 us.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np
import onnx
from machine import facts, keep

import xpuruntime as xrt
from xpuruntime.engines import ENGINES
from xpuruntime.profiler.statistics import BLOCKS, median_interval

BOUND_US = 5.0
MODEL = """
<ir_version: 10, opset_import: ["": 20]>
one (float[1, 16] x) => (float[1, 16] y) { y = Relu (x) }
"""
X = np.linspace(-1, 1, 16, dtype=np.float32)[None]

Run = Callable[[], np.ndarray]


def onnxruntime_run(data: bytes) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    run = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run
    return lambda: run(["y"], {"x": X})[0]  # type: ignore[no-any-return]


def openvino_run(data: bytes) -> Run:
    import openvino

    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": "1", "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.compile_model(openvino.Core().read_model(data), "CPU", options)
    request, tensor = compiled.create_infer_request(), openvino.Tensor

    def run() -> np.ndarray:
        request.set_input_tensor(0, tensor(X, shared_memory=True))
        return request.infer(share_outputs=False).to_tuple()[0]  # type: ignore[no-any-return]

    return run


VENDORS = {"onnxruntime": onnxruntime_run, "openvino": openvino_run}


def ours(engine: str, data: bytes) -> Run:
    run = xrt.InferenceSession(data, engine=engine, device="cpu", threads=1).run
    return lambda: run({"x": X})["y"]  # type: ignore[no-any-return]


def clock(run: Run) -> int:
    start = perf_counter_ns()
    run()
    return perf_counter_ns() - start


def measure(engine: str, pairs: int) -> dict[str, Any]:
    """Medians of both and of their difference, in microseconds; raises AssertionError for a wrong output."""
    data = onnx.parser.parse_model(MODEL).SerializeToString()
    theirs, mine = VENDORS[engine](data), ours(engine, data)
    for run in (theirs, mine):
        np.testing.assert_array_equal(run(), np.maximum(X, 0))
    for _ in range(pairs // 10):
        theirs(), mine()
    vendor, session = np.empty(pairs), np.empty(pairs)
    gc.collect()
    gc.disable()
    for i in range(pairs):
        if i % 2:
            vendor[i], session[i] = clock(theirs), clock(mine)
        else:
            session[i], vendor[i] = clock(mine), clock(theirs)
    gc.enable()
    for run in (theirs, mine):
        np.testing.assert_array_equal(run(), np.maximum(X, 0))
    difference = (session - vendor) / 1000
    # Neighboring calls resemble each other: the interval is that of the medians of blocks, not of single calls.
    blocks = [float(np.median(b)) for b in np.array_split(difference, BLOCKS)]
    interval = median_interval(blocks)
    added = float(np.median(blocks))
    return {
        "engine": engine,
        "pairs": pairs,
        "vendor_us": round(float(np.median(vendor)) / 1000, 3),
        "session_us": round(float(np.median(session)) / 1000, 3),
        "added_us": round(added, 3),
        "added_us_interval": [round(interval.low, 3), round(interval.high, 3)],
        "bound_us": BOUND_US,
        "within_bound": added <= BOUND_US,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What InferenceSession.run adds to the vendor's own run.")
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/overhead.json")
    parser.add_argument(
        "--beside-other-work",
        action="store_true",
        help="keep the figures of a machine that is not quiet: upper bounds, since other work only adds to them",
    )
    parser.add_argument("--engine", choices=sorted(VENDORS), action="append")
    arguments = parser.parse_args()
    about = facts("numpy", *VENDORS)
    engines = arguments.engine or [e for e in VENDORS if e in ENGINES]
    result = {"machine": about, "rows": [measure(engine, arguments.pairs) for engine in engines]}
    if arguments.keep:
        keep("overhead", result, beside=arguments.beside_other_work)
    if arguments.json:
        print(json.dumps(result))
    else:
        print(f"{about['cpu']}, {about['busy']:.0%} busy with other work")
        for row in result["rows"]:
            low, high = row["added_us_interval"]
            print(
                f"{row['engine']:<12} vendor {row['vendor_us']:6.2f} us   session {row['session_us']:6.2f} us"
                f"   added {row['added_us']:5.2f} us [{low:.2f}, {high:.2f}]"
            )
    return 0 if all(row["within_bound"] for row in result["rows"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
