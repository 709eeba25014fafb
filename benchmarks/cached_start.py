"""A second start against the first: how long a session takes to its first output with an empty store and with its artifact in it.

    python benchmarks/cached_start.py [--model PATH | NAME ...] [--engine openvino native vendor] [--rounds 5] [--json | --keep]

NAME is a seeded network of full size (``resnet50``, ``bert``; PyTorch writes it to build/seeded, once). Every start is a process of its own that
first opens a tiny model (which loads the vendor's library and the modules of Python), then opens the session and runs once on seeded inputs, both
timed: reading the model, key, build or load, first run. The first start's store is empty. Outputs of all starts must be the same bits; where a
session does not even repeat itself (some kernels of OpenVINO add in the order in which threads arrive), that is said, and bits are compared on one thread.

``vendor`` is OpenVINO without us, with its own cache (``CACHE_DIR``): the same model, the same properties, the same steps.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from machine import facts, keep
from seeded import SEEDED, seeded_onnx

BOUND = 5.0  # times that the second start on OpenVINO is faster, at least
_ZOO = [
    f"build/zoo/{n}.onnx" for n in ("efficientnet-lite0", "magika", "minilm-l6", "ppocr-det", "ppocr-rec")
]
_REPEATS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--model", nargs="*", default=[*_ZOO, "resnet50", "bert"])
    parser.add_argument("--engine", nargs="*", default=["openvino", "vendor"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/cached_start.json")
    parser.add_argument("--start", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.start:
        print(json.dumps(start(*args.start)))
        return 0
    models = [str(seeded_onnx(m)) if m in SEEDED else m for m in args.model]
    rows = []
    for model in models:
        for engine in args.engine:
            rows.append(measure(model, engine, args.rounds))
            print(line(rows[-1]), file=sys.stderr if args.json else sys.stdout, flush=True)
    result = {"machine": facts("openvino"), "bound_openvino": BOUND, "rows": rows}
    if args.keep:
        keep("cached_start", result)
    if args.json:
        print(json.dumps(result, indent=2))
    slow = [r for r in rows if r["engine"] == "openvino" and r["times_faster"] < BOUND]
    return 1 if slow or not all(r["same_bits"] for r in rows if r["engine"] != "vendor") else 0


# ── one start, in a process of its own ──


def start(model: str, engine: str, store: str, shapes: str, threads: str) -> dict[str, Any]:
    """One start, in this process."""
    return STARTS.get(engine, ours)(model, engine, store, json.loads(shapes), int(threads))


def ours(model: str, engine: str, store: str, shapes: Mapping[str, int], threads: int) -> dict[str, Any]:
    """A session."""
    from support.onnx_models import small_classifier

    import xpuruntime as xrt
    from xpuruntime.inference.execution.seeded_inputs import sample_feeds

    # What every process pays once: the vendor's library, Python's modules.
    off = xrt.ExecutionPolicy(caching=False)
    xrt.InferenceSession(small_classifier(), device="cpu", engine=engine, exec_policy=off).close()
    began = time.perf_counter()
    fixed = xrt.ExecutionPolicy(static_shape=True, fixed_shapes=dict(shapes)) if shapes else None
    with xrt.InferenceSession(
        model, device="cpu", engine=engine, cache_dir=store, exec_policy=fixed, threads=threads
    ) as sess:
        opened = time.perf_counter()
        feeds = sample_feeds(sess.input_info)
        run = lambda: list(sess.run(feeds).values())  # noqa: E731
        times = timed(began, opened, run)
        return times | {"from_store": sess.plan.decision("engine").chosen.facts["from_store"]}


def vendor(model: str, engine: str, store: str, shapes: Mapping[str, int], threads: int) -> dict[str, Any]:
    """OpenVINO by itself, with its own cache."""
    import numpy as np
    import openvino
    from openvino import opset13 as ops

    from xpuruntime.frontends.fix_shapes import fix_shapes
    from xpuruntime.frontends.model_file import open_model
    from xpuruntime.inference.execution.seeded_inputs import sample_feeds

    inputs = fix_shapes(open_model(model), shapes).inputs if shapes else open_model(model).inputs
    feeds = sample_feeds(inputs)
    core = openvino.Core()
    x = ops.parameter([1, 4], np.float32)
    core.compile_model(openvino.Model([ops.relu(x)], [x], "tiny"), "CPU")
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    config |= {"INFERENCE_NUM_THREADS": str(threads), "CACHE_DIR": store}
    cached = any(Path(store).iterdir())
    began = time.perf_counter()
    network = core.read_model(model)
    network.reshape({s.name: list(s.shape) for s in inputs})
    request = core.compile_model(network, "CPU", config).create_infer_request()
    opened = time.perf_counter()
    run = lambda: [np.array(v) for v in request.infer(feeds).values()]  # noqa: E731
    return timed(began, opened, run) | {"from_store": cached}


STARTS: Mapping[str, Callable[..., dict[str, Any]]] = {"vendor": vendor}


def timed(began: float, opened: float, run: Callable[[], Sequence[Any]]) -> dict[str, Any]:
    """Seconds to the open session and to its first output; what a few runs gave."""
    outputs = run()
    finished = time.perf_counter()
    bits = [digest(outputs), *(digest(run()) for _ in range(_REPEATS))]
    return {"opened": opened - began, "seconds": finished - began, "outputs": bits}


def digest(outputs: Sequence[Any]) -> str:
    return hashlib.sha256(b"".join(o.tobytes() for o in outputs)).hexdigest()


# ── many of them ──


def measure(model: str, engine: str, rounds: int) -> dict[str, Any]:
    """First and second starts by turns, so that a busy machine is busy for both."""
    threads = facts()["cpus"]
    starts = [pair(model, engine, threads) for _ in range(rounds)]
    first, second = [[p[i] for p in starts] for i in range(2)]
    bits = {b for s in (*first, *second) for b in s["outputs"]}
    repeats = all(len(set(s["outputs"])) == 1 for s in (*first, *second))
    if not repeats:
        bits = {b for s in pair(model, engine, 1) for b in s["outputs"]}
    medians = [statistics.median(s["seconds"] for s in starts) for starts in (first, second)]
    opened = [statistics.median(s["opened"] for s in starts) for starts in (first, second)]
    return {
        "model": Path(model).name,
        "engine": engine,
        "first_s": medians[0],
        "second_s": medians[1],
        "times_faster": medians[0] / medians[1],
        "opened_s": opened,
        "same_bits": len(bits) == 1,
        "repeats_itself": repeats,
        "compared_on_threads": threads if repeats else 1,
        "starts": {"first": [s["seconds"] for s in first], "second": [s["seconds"] for s in second]},
    }


def pair(model: str, engine: str, threads: int) -> list[dict[str, Any]]:
    """A first and a second start."""
    with tempfile.TemporaryDirectory() as store:
        starts = []
        for cached in (False, True):
            args = [model, engine, store, json.dumps(shapes_of(model)), str(threads)]
            process = subprocess.run(
                [sys.executable, __file__, "--start", *args], capture_output=True, text=True, check=True
            )
            starts.append(json.loads(process.stdout))
            assert starts[-1]["from_store"] is cached
        return starts


def shapes_of(model: str) -> dict[str, int]:
    """One for every dim that the model leaves open, so that there is something to compile and to keep on every engine."""
    from xpuruntime.frontends.model_file import open_model
    from xpuruntime.inference.execution.seeded_inputs import sample_symbols

    return sample_symbols(open_model(model).inputs)


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    equality = "same bits" if row["same_bits"] else "OTHER OUTPUTS"
    if not row["repeats_itself"]:
        equality += " on one thread (on more, one session's own runs differ)"
    return (
        f"{row['model']:24} {row['engine']:10} first {row['first_s']:7.3f} s, second {row['second_s']:7.3f} s: "
        f"{row['times_faster']:5.1f} times faster, {equality}"
    )


if __name__ == "__main__":
    sys.exit(main())
