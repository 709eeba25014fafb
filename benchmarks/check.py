"""The bounds on times that this project promises, measured on this machine: `make bench-check`. Wants a quiet machine.

    python benchmarks/check.py [NAME ...]

No test asserts a time; these do. Exits with 1 where a bound is exceeded.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))  # for `support`


@dataclass(frozen=True)
class Bound:
    """One promise: ``measure`` returns a figure in ``unit`` that must not be above ``limit``."""

    name: str
    limit: float
    unit: str
    measure: Callable[[], float]


def report(bounds: Sequence[Bound]) -> int:
    """Measure each, print a row for each, and return the exit code."""
    over = 0
    for bound in bounds:
        value = bound.measure()
        within = value <= bound.limit
        over += not within
        print(
            f"{bound.name:<28} {value:9.3f} {bound.unit:<3} of {bound.limit:g} {bound.unit:<3} {'held' if within else 'EXCEEDED'}"
        )
    return 1 if over else 0


def script(name: str, *arguments: str) -> dict[str, Any]:
    """The JSON document of another benchmark; it exits with 1 where its own bound is exceeded."""
    command = [sys.executable, str(HERE / name), "--json", *arguments]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout)  # type: ignore[no-any-return]


def overhead(engine: str) -> Callable[[], float]:
    return lambda: script("overhead.py", "--engine", engine, "--pairs", "4000")["rows"][0]["added_us"]  # type: ignore[no-any-return]


def seconds(work: Callable[[], object]) -> float:
    """Of this thread's own time."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def help_seconds() -> float:
    """Processor time of ``xpu --help``, the least of five."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "xpuruntime.cli", "--help"]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return min(once() for _ in range(5))


def ten_thousand_nodes() -> float:
    """Build a graph, write and read it as text and as JSON."""
    from xpuruntime import ir

    def work() -> None:
        b = ir.GraphBuilder("big")
        x, w = b.input("x", "float32[n, 8, 16, 16]"), b.weight("w", "float32[8, 8, 3, 3]")
        for _ in range(5000):
            x = b.relu(b.convolution(x, w, stride=[1, 1], padding=[1, 1], dilation=[1, 1]))
        b.output("y", x)
        graph = b.build()
        assert ir.parse(str(graph)) == graph
        assert ir.Graph.from_json(graph.to_json()) == graph

    return seconds(work)


def ten_thousand_onnx_nodes() -> float:
    """Import an ONNX model of so many."""
    from onnx import TensorProto, helper, numpy_helper

    from xpuruntime import load_onnx

    nodes, last = [], "x"
    for i in range(5000):
        nodes += [
            helper.make_node("Add", [last, "w"], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], [f"r{i}"]),
        ]
        last = f"r{i}"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in ("x", last))
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [weight]))
    return seconds(lambda: load_onnx(model))


def hostile_text() -> float:
    """Refuse texts of graphs that are deep or long; the slowest."""
    from xpuruntime import ir
    from xpuruntime.errors import FormatError

    def refuse(text: str) -> None:
        try:
            ir.parse(text)
        except (FormatError, ir.IrError):
            return
        raise AssertionError("not refused")

    texts = (
        'graph "g" { input %x: float32[' + "(" * 9000,
        'graph "' + "\\u0041" * 50_000,
        'graph "g" { %y: float32[] = full(size=[], value=' + "9" * 5000 + ", dtype=float32) }",
    )
    return max(seconds(lambda t=t: refuse(t)) for t in texts)  # type: ignore[misc]


def crashers() -> float:
    """Files that once crashed a reader or stopped it; the slowest."""
    from support import fuzz_targets

    files = sorted((HERE.parent / "tests" / "fuzz" / "crashers").glob("*/*"))
    return max(
        seconds(lambda f=f: fuzz_targets.run(f.parent.name, f.read_bytes()))  # type: ignore[misc]
        for f in files
    )


BOUNDS = (
    Bound("onnxruntime: added per run", 5.0, "us", overhead("onnxruntime")),
    Bound("openvino: added per run", 5.0, "us", overhead("openvino")),
    Bound("ops: added per call", 4.0, "us", lambda: script("dispatch.py")["added_us"]),
    Bound("import: added to numpy's", 80.0, "ms", lambda: script("import_time.py")["added_ms"]),
    Bound("xpu --help", 0.3, "s", help_seconds),
    Bound("graph of 10,000 nodes", 10.0, "s", ten_thousand_nodes),
    Bound("ONNX model of 10,000 nodes", 30.0, "s", ten_thousand_onnx_nodes),
    Bound("hostile text", 2.0, "s", hostile_text),
    Bound("files that once crashed", 5.0, "s", crashers),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="The bounds on times, measured on this machine.")
    parser.add_argument("names", nargs="*", help="only those whose name contains one of these words")
    names = parser.parse_args().names
    return report([b for b in BOUNDS if not names or any(w in b.name for w in names)])


if __name__ == "__main__":
    raise SystemExit(main())
