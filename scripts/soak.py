"""Run one session from many threads for long: ``scripts/soak.py [--runs 1000000] [--threads 64] [--engine native]``.

Every output is compared with NumPy's, bit for bit, since the products are exact. Memory is read at the beginning (after a warm-up), in the middle and
at the end. The exit code is 1 if an output was wrong, a run failed, or memory grew by more than ``--grow`` MiB.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROWS, WIDTH, INPUTS = 4, 32, 256


def model() -> tuple[bytes, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return relu(x w + b) over small integers, whose sums are exact in float32 in any order."""
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)
    weight = draw.integers(-8, 9, (WIDTH, WIDTH)).astype(np.float32)
    bias = draw.integers(-8, 9, WIDTH).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [ROWS, WIDTH]) for n in "xy"]
    initializers = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    graph = helper.make_graph(nodes, "soak", values[:1], values[1:], initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(proto.SerializeToString()), weight, bias


def resident() -> float:
    """Return the resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--engine", default="native")
    parser.add_argument(
        "--grow", type=float, default=16, help="MiB by which memory may grow after the warm-up"
    )
    args = parser.parse_args()
    import xpuruntime as xrt

    data, weight, bias = model()
    draw = np.random.default_rng(1)
    inputs = draw.integers(-8, 9, (INPUTS, ROWS, WIDTH)).astype(np.float32)
    expected = np.maximum(inputs @ weight + bias, 0)
    wrong, failed, completed = [0] * args.threads, [0] * args.threads, [0] * args.threads

    def work(thread: int, runs: int, session: Any) -> None:
        for i in range(runs):
            at = (thread * 7919 + i * 31) % INPUTS
            try:
                output = session.run(x=inputs[at])["y"]
            except Exception as error:
                failed[thread] += 1
                print(f"thread {thread}, run {i}: {error}", file=sys.stderr)
                continue
            wrong[thread] += not np.array_equal(output, expected[at])
            completed[thread] += 1

    def stretch(runs: int, session: Any) -> None:
        share = [runs // args.threads + (t < runs % args.threads) for t in range(args.threads)]
        threads = [threading.Thread(target=work, args=(t, n, session)) for t, n in enumerate(share)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    start = time.monotonic()
    with xrt.InferenceSession(data, engine=args.engine, threads=1) as session:
        stretch(min(args.runs, 20 * args.threads), session)  # each context has its memory from now on
        for counts in (wrong, failed, completed):
            counts[:] = [0] * args.threads
        memory = [resident()]
        for half in (args.runs // 2, args.runs - args.runs // 2):
            stretch(half, session)
            memory.append(resident())
    facts = {
        "engine": args.engine, "threads": args.threads, "runs": sum(completed), "wrong": sum(wrong), "failed": sum(failed),
        "resident_mib": dict(zip(("begin", "middle", "end"), (round(m, 1) for m in memory), strict=True)),
        "seconds": round(time.monotonic() - start),
    }  # fmt: skip
    print(json.dumps(facts))
    grown = memory[-1] - memory[0] > args.grow
    return int(bool(sum(wrong) or sum(failed) or sum(completed) != args.runs or grown))


if __name__ == "__main__":
    sys.exit(main())
