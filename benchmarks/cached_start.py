"""A second start against the first: how long a session takes to open with an empty store and with its artifact in it.

    python benchmarks/cached_start.py [--model PATH ...] [--engine openvino native] [--rounds 5] [--json | --keep]

Every start is a process of its own that first opens a tiny model (which loads the vendor's library and the modules of Python), then opens the session (timed: reading the model, key, build or load) and runs
once on seeded inputs. The first start's store is empty. Outputs of all starts must be the same bits.
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
from pathlib import Path
from typing import Any

from machine import facts, keep

BOUND = 5.0  # times that the second start on OpenVINO is faster, at least


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--model", nargs="*", default=["build/zoo/efficientnet-lite0.onnx"])
    parser.add_argument("--engine", nargs="*", default=["openvino", "native"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/cached_start.json")
    parser.add_argument("--start", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.start:
        print(json.dumps(start(*asked.start)))
        return 0
    rows = [measure(model, engine, asked.rounds) for model in asked.model for engine in asked.engine]
    result = {"machine": facts(), "bound_openvino": BOUND, "rows": rows}
    if asked.keep:
        keep("cached_start", result)
    print(json.dumps(result, indent=2) if asked.json else "\n".join(map(line, rows)))
    slow = [r for r in rows if r["engine"] == "openvino" and r["times_faster"] < BOUND]
    return 1 if slow or not all(r["same_bits"] for r in rows) else 0


def start(model: str, engine: str, store: str, shapes: str) -> dict[str, Any]:
    """One start, in this process."""
    import xpuruntime as xrt
    from xpuruntime.inference.recipe import sample_feeds
    from xpuruntime.testing.onnx_models import small_classifier

    off = xrt.ExecutionPolicy(
        caching=False
    )  # what every process pays once: the vendor's library, Python's modules
    xrt.InferenceSession(small_classifier(), device="cpu", engine=engine, exec_policy=off).close()
    began = time.perf_counter()
    fixed = xrt.ExecutionPolicy(static_shape=True, fixed_shapes=json.loads(shapes))
    with xrt.InferenceSession(
        model, device="cpu", engine=engine, cache_dir=store, exec_policy=fixed if json.loads(shapes) else None
    ) as sess:
        opened = time.perf_counter() - began
        outputs = sess.run(sample_feeds(sess.input_info))
        chosen = sess.plan.decision("engine").chosen
        bits = hashlib.sha256(b"".join(o.tobytes() for o in outputs.values())).hexdigest()
        return {"seconds": opened, "from_store": chosen.facts["from_store"], "outputs": bits}


def measure(model: str, engine: str, rounds: int) -> dict[str, Any]:
    """First and second starts by turns, so that a busy machine is busy for both."""
    first, second = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as store:
            for starts, kept in ((first, False), (second, True)):
                done = subprocess.run(
                    [sys.executable, __file__, "--start", model, engine, store, json.dumps(shapes_of(model))],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                starts.append(json.loads(done.stdout))
                assert starts[-1]["from_store"] is kept
    times = {
        name: statistics.median(s["seconds"] for s in starts)
        for name, starts in (("first", first), ("second", second))
    }
    return {
        "model": Path(model).name,
        "engine": engine,
        "first_s": times["first"],
        "second_s": times["second"],
        "times_faster": times["first"] / times["second"],
        "same_bits": len({s["outputs"] for s in (*first, *second)}) == 1,
        "starts": {"first": [s["seconds"] for s in first], "second": [s["seconds"] for s in second]},
    }


def shapes_of(model: str) -> dict[str, int]:
    """One for every dim that the model leaves open, so that there is something to compile and to keep on every engine."""
    from xpuruntime.frontends.model_file import open_model
    from xpuruntime.inference.recipe import sample_symbols

    return sample_symbols(open_model(model).inputs)


def line(row: dict[str, Any]) -> str:
    """A row for people."""
    same = "same bits" if row["same_bits"] else "OTHER OUTPUTS"
    return (
        f"{row['model']:24} {row['engine']:12} first {row['first_s']:7.3f} s, second {row['second_s']:7.3f} s: "
        f"{row['times_faster']:5.1f} times faster, {same}"
    )


if __name__ == "__main__":
    sys.exit(main())
